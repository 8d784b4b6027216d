"""The methods: FedAvg, UDJ-FL, and the other 17 of Table 1 of Carey & Wu (FAccT 2025); baselines.

A new one is a file beside this and its class in the list below; a method of another package is
registered with `register_method`, or with an entry point in the group "udjfl.methods".
"""

from udjfl.methods.adafed import AdaFed
from udjfl.methods.adafedadam import AdaFedAdam
from udjfl.methods.afl import AFL
from udjfl.methods.base import (
    METHODS,
    SERVER_SIDE,
    THEORIES,
    Diagnostics,
    Method,
    Plan,
    Reports,
    ServedModels,
    Setup,
    State,
    parameters,
    weighted_sum,
)
from udjfl.methods.cffl import CFFL
from udjfl.methods.corefed import CoreFed
from udjfl.methods.ditto import Ditto
from udjfl.methods.e2fl import E2FL
from udjfl.methods.effl import EFFL
from udjfl.methods.fedavg import FedAvg
from udjfl.methods.feddyn import FedDyn
from udjfl.methods.fedeba import FedEBA
from udjfl.methods.fedfa import FedFa
from udjfl.methods.fedfair3 import FedFair3
from udjfl.methods.fedfv import FedFV
from udjfl.methods.fedmgda import FedMGDA
from udjfl.methods.fednova import FedNova
from udjfl.methods.fedprox import FedProx
from udjfl.methods.fine_tuning import FineTuning
from udjfl.methods.focus import Focus
from udjfl.methods.mfairfl import MFairFL
from udjfl.methods.propfair import PropFair
from udjfl.methods.qffl import QFFL
from udjfl.methods.registry import (
    ALIASES,
    declared_needs,
    find,
    fixed_parameters,
    method,
    parameter_names,
    register_method,
    shared_parameters,
)
from udjfl.methods.scaffold import Scaffold
from udjfl.methods.term import TERM
from udjfl.methods.udj import UDJ

# In the order in which tables list them.
for _cls in (
    *(FedAvg, UDJ, QFFL, AFL, TERM, PropFair, FedMGDA, FedFV, AdaFed, MFairFL),
    *(AdaFedAdam, EFFL, FedFa, E2FL, FedFair3, FedEBA, CoreFed, Focus, CFFL),
    *(FedProx, Scaffold, FedDyn, FedNova, Ditto, FineTuning),
):
    register_method(_cls)

__all__ = [
    "ALIASES",
    "METHODS",
    "SERVER_SIDE",
    "THEORIES",
    "UDJ",
    "Diagnostics",
    "FedAvg",
    "Method",
    "Plan",
    "Reports",
    "ServedModels",
    "Setup",
    "State",
    "declared_needs",
    "find",
    "fixed_parameters",
    "method",
    "parameter_names",
    "parameters",
    "register_method",
    "shared_parameters",
    "weighted_sum",
]
