# The public names and their modules: the one table, read by type checkers and by `__init__.py`.

from udjfl.data import Client as Client
from udjfl.data import Examples as Examples
from udjfl.data import Federation as Federation
from udjfl.data import load as load
from udjfl.data import register_source as register_source
from udjfl.errors import CheckpointError as CheckpointError
from udjfl.errors import DataError as DataError
from udjfl.errors import DeploymentError as DeploymentError
from udjfl.errors import DivergedError as DivergedError
from udjfl.errors import NotDefinedError as NotDefinedError
from udjfl.errors import QuorumError as QuorumError
from udjfl.errors import ReportError as ReportError
from udjfl.errors import SettingsError as SettingsError
from udjfl.errors import StorageError as StorageError
from udjfl.errors import UdjflError as UdjflError
from udjfl.methods import UDJ as UDJ
from udjfl.methods import FedAvg as FedAvg
from udjfl.methods import Method as Method
from udjfl.methods import Plan as Plan
from udjfl.methods import Reports as Reports
from udjfl.methods import ServedModels as ServedModels
from udjfl.methods import Setup as Setup
from udjfl.methods import method as method
from udjfl.methods import parameters as parameters
from udjfl.methods import register_method as register_method
from udjfl.metrics import Metric as Metric
from udjfl.metrics import register_metric as register_metric
from udjfl.models import register_model as register_model
from udjfl.report.metric_frame import metric_frame as metric_frame
from udjfl.report.opened_run import open as open
from udjfl.settings import CompareSettings as CompareSettings
from udjfl.settings import TrainingSettings as TrainingSettings
from udjfl.simulation.compare import compare as compare
from udjfl.simulation.comparison import Comparison as Comparison
from udjfl.simulation.simulate import simulate as simulate
from udjfl.training.records import Progress as Progress
from udjfl.training.result import Result as Result

__all__: list[str]
__version__: str
