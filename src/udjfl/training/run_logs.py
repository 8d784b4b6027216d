"""Runs in other programs: TensorBoard, MLflow and Weights & Biases, through their own writers.

A log is a callback of `Progress` events: after each round it writes every number that was recorded,
those of clients as `metric/client`. Methods and seeds are runs of their own. A log that fails while
a model trains is left out with a warning: the training is worth more.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Protocol

from pydantic import Field

from udjfl._spec import parse_spec
from udjfl.errors import SettingsError, did_you_mean
from udjfl.settings import Settings, validate_settings
from udjfl.training.records import OnProgress, Progress

logger = logging.getLogger("udjfl")
MOST_METRICS, MOST_PARAMS = 1000, 100  # of one call of MLflow
LONGEST_PARAM = 500  # characters, in older versions of MLflow


class Writer(Protocol):
    """The log of one run."""

    def write(self, values: Mapping[str, float], round: int) -> None:
        """Write the numbers of a round."""

    def close(self, is_finished: bool) -> None:
        """End the run, which has finished or was stopped by an error."""


class TensorBoardOptions(Settings):
    """`tensorboard:FOLDER`."""

    folder: Annotated[Path, Field(description="folder of the event files")] = Path("runs")


class TensorBoardWriter:
    """Event files in a folder of the run's name: `tensorboard --logdir FOLDER` shows them."""

    def __init__(
        self, options: TensorBoardOptions, run: str, parameters: Mapping[str, Any]
    ) -> None:
        from torch.utils.tensorboard import SummaryWriter

        path = options.folder / run.replace(os.sep, "_")
        self.writer: Any = SummaryWriter(path)
        rows = "\n".join(f"| {key} | {value} |" for key, value in parameters.items())
        self.writer.add_text("settings", f"| setting | value |\n|---|---|\n{rows}", 0)

    def write(self, values: Mapping[str, float], round: int) -> None:
        """Add a point to each curve."""
        for name, value in values.items():
            self.writer.add_scalar(name, value, round)

    def close(self, is_finished: bool) -> None:
        """Write what is left; event files do not say whether a run has finished."""
        self.writer.close()


class MlflowOptions(Settings):
    """`mlflow:EXPERIMENT`. MLflow's own MLFLOW_TRACKING_URI says where it is kept."""

    experiment: Annotated[str, Field(description="name of the experiment")] = "udjfl"


class MlflowWriter:
    """A run of an experiment. Its parameters are the settings."""

    def __init__(self, options: MlflowOptions, run: str, parameters: Mapping[str, Any]) -> None:
        from mlflow.entities import Param
        from mlflow.tracking import MlflowClient

        self.client = MlflowClient()
        found = self.client.get_experiment_by_name(options.experiment)
        experiment = (
            self.client.create_experiment(options.experiment)
            if found is None
            else found.experiment_id
        )
        self.run_id = self.client.create_run(experiment, run_name=run).info.run_id
        values = [Param(key, str(value)[:LONGEST_PARAM]) for key, value in parameters.items()]
        for start in range(0, len(values), MOST_PARAMS):
            self.client.log_batch(self.run_id, params=values[start : start + MOST_PARAMS])

    def write(self, values: Mapping[str, float], round: int) -> None:
        """Log the metrics of a step."""
        from mlflow.entities import Metric
        from mlflow.utils.time import get_current_time_millis

        now = get_current_time_millis()
        metrics = [Metric(name, value, now, round) for name, value in values.items()]
        for start in range(0, len(metrics), MOST_METRICS):
            self.client.log_batch(self.run_id, metrics[start : start + MOST_METRICS])

    def close(self, is_finished: bool) -> None:
        """Mark the run as finished or failed."""
        self.client.set_terminated(self.run_id, "FINISHED" if is_finished else "FAILED")


class WandbOptions(Settings):
    """`wandb:PROJECT`. Without a mode, wandb's own settings decide: WANDB_MODE."""

    project: Annotated[str, Field(description="name of the project")] = "udjfl"
    folder: Annotated[Path | None, Field(description="folder of the files; default: wandb")] = None
    mode: Annotated[str | None, Field(description="online or offline")] = None


class WandbWriter:
    """A run of a project; several may go on at the same time."""

    def __init__(self, options: WandbOptions, run: str, parameters: Mapping[str, Any]) -> None:
        import wandb

        self.run: Any = wandb.init(
            project=options.project,
            dir=options.folder,
            mode=options.mode,
            name=run,
            config=dict(parameters),
            reinit="create_new",
        )

    def write(self, values: Mapping[str, float], round: int) -> None:
        """Log the values of a step."""
        self.run.log(dict(values), step=round)

    def close(self, is_finished: bool) -> None:
        """Mark the run as finished or failed."""
        self.run.finish(exit_code=0 if is_finished else 1)


# Options, the option without a key, the module that must be there, and the writer.
KINDS: dict[str, tuple[type[Settings], str, str, Callable[..., Writer]]] = {
    "tensorboard": (TensorBoardOptions, "folder", "tensorboard", TensorBoardWriter),
    "mlflow": (MlflowOptions, "experiment", "mlflow", MlflowWriter),
    "wandb": (WandbOptions, "project", "wandb", WandbWriter),
}


@contextlib.contextmanager
def open_log(choice: str, parameters: Mapping[str, Any] | None = None) -> Iterator[OnProgress]:
    """Return a callback that writes every round's numbers; the runs end with the block.

    Those that an error keeps from their last round are marked as failed.

    choice      "tensorboard", "mlflow" or "wandb", with options: "tensorboard:logs",
                "mlflow:experiment=hospitals", "wandb:udjfl:mode=offline"
    parameters  the settings of the runs, to be kept with them
    """
    make = _choose_writer(choice)
    writers: dict[tuple[str, int], Writer] = {}
    finished: set[tuple[str, int]] = set()
    values, failures = dict(parameters or {}), _Failures(choice)

    def on_progress(event: Progress) -> None:
        key = event.label, event.seed
        if event.stage != "training" or not event.records or key in failures.runs:
            return
        if event.done == event.total:
            finished.add(key)
        with failures.warn_instead(key):
            if key not in writers:
                writers[key] = make(
                    f"{event.label}, seed {event.seed}",
                    {**values, "method": event.label, "seed": event.seed},
                )
            writers[key].write(collect_numbers(event), event.done)

    try:
        yield on_progress
        finished.update(writers)
    finally:
        for key, writer in writers.items():
            with failures.warn_instead(key):
                writer.close(key in finished)


class _Failures:
    """The runs whose log failed; the first one is warned of."""

    def __init__(self, choice: str) -> None:
        self.choice, self.runs = choice, set[tuple[str, int]]()

    @contextlib.contextmanager
    def warn_instead(self, run: tuple[str, int]) -> Iterator[None]:
        """Turn an error of another program into a warning."""
        try:
            yield
        except Exception as error:  # it can fail in any way
            first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
            if not self.runs:
                logger.warning("log %s failed, training goes on: %s", self.choice, first_line)
            self.runs.add(run)


def collect_numbers(event: Progress) -> dict[str, float]:
    """Return every number recorded of a round, by `metric` or `metric/client`."""
    named = {
        r.metric if r.client is None else f"{r.metric}/{r.client}": r.value for r in event.records
    }
    return {
        name: float(value)
        for name, value in named.items()
        if isinstance(value, int | float) and math.isfinite(value)
    }


def _choose_writer(choice: str) -> Callable[[str, Mapping[str, Any]], Writer]:
    """Return what makes the writer of a run; raise an error if that cannot work."""
    name = choice.partition(":")[0].strip()
    if name not in KINDS:
        raise SettingsError(f"log: unknown name {name!r}.{did_you_mean(name, KINDS)}")
    cls, usual, module, writer = KINDS[name]
    spec = parse_spec(choice, "log", usual)
    try:
        options = validate_settings(cls, spec.options)
    except SettingsError as error:
        raise SettingsError([f"log: {mistake}" for mistake in error.mistakes]) from None
    try:
        __import__(module)
    except ImportError as error:
        raise SettingsError(
            f"log: {name} cannot be imported ({error}); install it with: pip install "
            f"'udjfl[{name}]'"
        ) from None
    return lambda run, parameters: writer(options, run, parameters)
