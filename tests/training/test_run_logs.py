"""Rounds written to other programs, read back from their own local stores."""

from __future__ import annotations

import contextlib
import logging
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from small_runs import make_federation

import udjfl
from udjfl.errors import SettingsError
from udjfl.training import run_logs
from udjfl.training.records import Progress, Record
from udjfl.training.run_logs import collect_numbers, open_log

SHORT: dict[str, Any] = {"rounds": 3, "hidden": 4, "uncertainty_epochs": 1, "eval_every": 2}
LABELS = ("FedAvg", "UDJ-FL rawls")
# Evaluated are round 2 and the last one.
ROUNDS = [2, 3]


def compare_with(log: str) -> udjfl.Comparison:
    return udjfl.compare(make_federation(), "fedavg,rawls", seeds=2, log=log, **SHORT)


def expected_curve(label: str, seed: int, name: str) -> dict[int, float]:
    """Return a curve as a run without a log records it."""
    result = udjfl.simulate(
        make_federation(), {LABELS[0]: "fedavg", LABELS[1]: "rawls"}[label], seed=seed, **SHORT
    )
    metric, _, client = name.partition("/")
    return result.history.series(metric, client or None)


def test_every_number_of_a_round_is_named() -> None:
    records = (
        Record(2, None, "test_accuracy", 80.0),
        Record(2, "a", "test_accuracy", 75.0),
        Record(2, "a", "absent", "did not reply"),
        Record(2, "b", "loss", None),
    )
    event = Progress("FedAvg", 0, "training", 2, 3, records)
    assert collect_numbers(event) == {"test_accuracy": 80.0, "test_accuracy/a": 75.0}


def test_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="pip install 'udjfl[tensorboard]'")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    compare_with(f"tensorboard:folder={tmp_path}")
    folders = sorted(path.name for path in tmp_path.iterdir())
    assert folders == sorted(f"{label}, seed {seed}" for label in LABELS for seed in (0, 1))
    for label in LABELS:
        events = EventAccumulator(str(tmp_path / f"{label}, seed 1"))
        events.Reload()
        for name in ("test_accuracy", "test_accuracy/client-2"):
            curve = {event.step: event.value for event in events.Scalars(name)}
            assert sorted(curve) == ROUNDS
            assert curve == pytest.approx(expected_curve(label, 1, name), rel=1e-5)


@pytest.mark.filterwarnings("default")  # of a program that is not ours
def test_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.chdir(tmp_path)
    pytest.importorskip("mlflow", reason="pip install 'udjfl[mlflow]'")
    from mlflow.tracking import MlflowClient

    compare_with("mlflow:hospitals")
    client = MlflowClient()
    experiment = client.get_experiment_by_name("hospitals")
    runs = client.search_runs([experiment.experiment_id])
    names = sorted(run.info.run_name for run in runs)
    assert names == sorted(f"{label}, seed {seed}" for label in LABELS for seed in (0, 1))
    assert {run.info.status for run in runs} == {"FINISHED"}
    run = next(run for run in runs if run.info.run_name == "FedAvg, seed 1")
    assert run.data.params["hidden"] == "4"
    assert run.data.params["seed"] == "1"
    history = client.get_metric_history(run.info.run_id, "test_accuracy/client-2")
    curve = {point.step: point.value for point in history}
    assert curve == pytest.approx(expected_curve("FedAvg", 1, "test_accuracy/client-2"))


def read_log_blocks(content: bytes) -> Iterator[bytes]:
    """Read the records of a .wandb file: LevelDB's log format after a header of 7 bytes.

    Blocks of 32 KiB have pieces: checksum (4 bytes), length (2), kind (1: whole, 2: first, 3:
    middle, 4: last).
    """
    position, pieces = 7, b""
    while position < len(content):
        left = 32768 - position % 32768
        if left < 7:  # too little for a piece
            position += left
            continue
        length, kind = struct.unpack_from("<HB", content, position + 4)
        pieces += content[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):
            yield pieces
            pieces = b""


@pytest.mark.filterwarnings("default")  # of a program that is not ours
def test_wandb_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WANDB_SILENT", "WANDB_DISABLE_GIT", "WANDB_DISABLE_CODE"):
        monkeypatch.setenv(name, "true")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    wandb = pytest.importorskip("wandb", reason="pip install 'udjfl[wandb]'")
    from wandb.proto import wandb_internal_pb2

    compare_with(f"wandb:hospitals:mode=offline:folder={tmp_path}")
    wandb.teardown()  # as when Python ends: its process writes what is left
    found: dict[str, dict[int, float]] = {}
    for path in tmp_path.glob("wandb/offline-run-*/*.wandb"):
        name, curve = "", {}
        for data in read_log_blocks(path.read_bytes()):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            if record.WhichOneof("record_type") == "run":
                assert record.run.project == "hospitals"
                name = record.run.display_name
            elif record.WhichOneof("record_type") == "history":
                keys = {
                    item.key or "/".join(item.nested_key): item.value_json
                    for item in record.history.item
                }
                if "test_accuracy/client-2" in keys:
                    curve[int(keys["_step"])] = float(keys["test_accuracy/client-2"])
        found[name] = curve
    assert sorted(found) == sorted(f"{label}, seed {seed}" for label in LABELS for seed in (0, 1))
    expected = expected_curve("UDJ-FL rawls", 1, "test_accuracy/client-2")
    assert found["UDJ-FL rawls, seed 1"] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("log", "message"),
    [
        ("tensorbord", r"log: unknown name 'tensorbord'\. Did you mean 'tensorboard'\?"),
        ("tensorboard:place=x", r"log: place: no such setting"),
        ("tensorboard:a:b", "key=value was expected"),
    ],
)
def test_mistakes_are_found_before_training(log: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message), open_log(log):
        pass


def test_a_program_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = (*run_logs.KINDS["wandb"][:2], "no_such_module_here", run_logs.WandbWriter)
    monkeypatch.setitem(run_logs.KINDS, "wandb", kind)
    with pytest.raises(SettingsError, match=r"pip install 'udjfl\[wandb\]'"), open_log("wandb"):
        pass


def test_runs_that_an_error_stopped_are_not_marked_as_finished(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    closed: dict[str, bool] = {}

    class Noting:
        """A writer that notes how its run ended."""

        def __init__(self, options: object, run: str, parameters: object) -> None:
            self.run = run

        def write(self, values: object, round: int) -> None: ...

        def close(self, is_finished: bool) -> None:
            closed[self.run] = is_finished

    kind = (run_logs.TensorBoardOptions, "folder", "json", Noting)
    monkeypatch.setitem(run_logs.KINDS, "tensorboard", kind)
    records = (Record(1, None, "step_norm", 1.0),)
    with contextlib.suppress(ZeroDivisionError), open_log("tensorboard") as log:
        log(Progress("whole", 0, "training", 2, 2, records))
        log(Progress("half", 0, "training", 1, 2, records))
        raise ZeroDivisionError
    assert closed == {"whole, seed 0": True, "half, seed 0": False}
    with open_log("tensorboard") as log:
        log(Progress("half", 0, "training", 1, 2, records))
    assert closed["half, seed 0"]


@pytest.mark.filterwarnings("default")  # of a program that is not ours
def test_mlflow_shows_a_failed_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.chdir(tmp_path)
    pytest.importorskip("mlflow", reason="pip install 'udjfl[mlflow]'")
    from mlflow.tracking import MlflowClient

    with contextlib.suppress(ZeroDivisionError), open_log("mlflow:hospitals") as log:
        log(Progress("half", 0, "training", 1, 2, (Record(1, None, "step_norm", 1.0),)))
        raise ZeroDivisionError
    client = MlflowClient()
    experiment = client.get_experiment_by_name("hospitals")
    [run] = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FAILED"


def test_a_log_that_fails_does_not_stop_the_training(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Full:
        """A writer on a full disk."""

        def __init__(self, *given: object) -> None: ...

        def write(self, values: object, round: int) -> None:
            raise OSError("no space left")

        def close(self, is_finished: bool) -> None:
            raise OSError("no space left")

    kind = (run_logs.TensorBoardOptions, "folder", "json", Full)
    monkeypatch.setitem(run_logs.KINDS, "tensorboard", kind)
    with caplog.at_level(logging.WARNING, "udjfl"):
        comparison = compare_with("tensorboard")
    assert len(comparison.rows) == 2
    said = [record for record in caplog.records if "training goes on" in record.getMessage()]
    assert len(said) == 1
    assert "no space left" in said[0].getMessage()
