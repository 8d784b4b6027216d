"""The life of a run around its rounds: description, log, uncertainties, reference."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from small_runs import Stopped, make_federation, stop_after, train_briefly

import udjfl
from udjfl.errors import DataError, SettingsError, StorageError
from udjfl.settings import TrainingSettings
from udjfl.tasks import ACCURACY
from udjfl.training.federation_info import FederationInfo
from udjfl.training.lifecycle import (
    RunLog,
    check_complete,
    describe_run,
    load_uncertainty,
    open_run_folder,
    versions,
)
from udjfl.training.records import Record
from udjfl.training.references import reference_accuracies
from udjfl.training.run_folder import RunFolder
from udjfl.training.server_state import ServerState
from udjfl.training.state import Run, RunSpec
from udjfl.uncertainty import Uncertainty

IDS = ("client-1", "client-2", "client-3")
DATA = {"name": "own data", "fingerprint": "abc"}


def make_run(method: udjfl.Method | None = None, seed: int = 0, **settings: Any) -> Run:
    training = TrainingSettings(**{"rounds": 4, "model": "logistic", **settings})
    spec = RunSpec(method or udjfl.FedAvg(), training, seed)
    return Run(spec, FederationInfo(IDS, (10.0, 20.0, 30.0), torch.zeros(2, 4), 3))


def describe(run: Run, **others: Any) -> dict[str, Any]:
    module = run.spec.build_model(run.federation)
    return describe_run(run, module, others.pop("data", DATA), **others)


# --- the description of a run


def test_a_description_has_everything_that_decides_the_numbers() -> None:
    method = udjfl.UDJ(beta=(1.0, 2.0, 3.0), gamma=1.0)
    run = make_run(method, seed=5, lr=0.25)
    description = describe(run, origin={"data": "tiny", "seed": 5})
    assert description == json.loads(json.dumps(description))  # plain values: no tuples
    assert (description["method"], description["seed"]) == ("udj", 5)
    assert description["params"]["beta"] == [1, 2, 3]
    assert description["training"] == run.settings.model_dump()
    assert description["training"]["lr"] == 0.25
    assert description["model"] == {"1.weight": [3, 4], "1.bias": [3]}
    assert description["federation"] == DATA
    assert description["origin"] == {"data": "tiny", "seed": 5}
    assert "flower" not in description


def test_a_description_on_flower_has_its_settings() -> None:
    description = describe(make_run(), flower={"quorum": 2})
    assert description["flower"] == {"quorum": 2}
    assert description["origin"] is None


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"method": udjfl.UDJ.rawls()}, StorageError, "another method, params; resume it with"),
        ({"seed": 1}, StorageError, "another seed;"),
        ({"lr": 0.5, "rounds": 9}, StorageError, "another rounds, lr;"),
        ({"model": "mlp"}, StorageError, "another model"),
        ({"data": {**DATA, "fingerprint": "xyz"}}, DataError, "was made with other data"),
        ({"flower": {"quorum": 3}}, StorageError, "another quorum;"),
    ],
    ids=["method", "seed", "training", "model", "data", "flower"],
)
def test_a_folder_of_another_run_is_not_opened_and_not_left_locked(
    tmp_path: Path, change: dict[str, Any], error: type[Exception], message: str
) -> None:
    first = describe(make_run(), flower={"quorum": 2})
    open_run_folder(tmp_path, first, resume=False).unlock()
    others = {key: change.pop(key) for key in ("data", "flower") if key in change}
    new = describe(make_run(**change), **{"flower": {"quorum": 2}, **others})
    with pytest.raises(error, match=message):
        open_run_folder(tmp_path, new, resume=True)
    open_run_folder(tmp_path, first, resume=True).unlock()


def test_the_number_of_workers_may_change_and_new_settings_had_their_default(
    tmp_path: Path,
) -> None:
    first = describe(make_run())
    del first["training"]["on_bad_report"]  # as if an older version had written it
    open_run_folder(tmp_path, first, resume=False).unlock()
    open_run_folder(tmp_path, describe(make_run(workers=3)), resume=True).unlock()
    with pytest.raises(StorageError, match="another on_bad_report"):
        open_run_folder(tmp_path, describe(make_run(on_bad_report="exclude")), resume=True)


def test_other_versions_are_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    description = describe(make_run())
    folder = open_run_folder(tmp_path, description, resume=False)
    folder.unlock()
    with caplog.at_level(logging.WARNING, "udjfl"):
        open_run_folder(tmp_path, description, resume=True).unlock()
        assert caplog.text == ""
        folder.write_json("versions.json", {**versions(), "torch": "0.1"})
        open_run_folder(tmp_path, description, resume=True).unlock()
    assert "was started with other versions of the libraries" in caplog.text


# --- the log


def write_rounds(log: RunLog, last: int) -> None:
    for round in range(log.server.round + 1, last + 1):
        server = ServerState(round, torch.full((2,), float(round)), torch.zeros(0), {})
        log.write(server, [Record(round, None, "x", float(round))])


def start() -> ServerState:
    return ServerState(0, torch.zeros(2), torch.zeros(0), {})


def test_a_log_without_a_folder_keeps_records_in_memory() -> None:
    log = RunLog(TrainingSettings(rounds=3), start(), None)
    write_rounds(log, 3)
    log.save_checkpoint()
    assert log.history().records == [Record(t, None, "x", float(t)) for t in (1, 2, 3)]
    assert log.server.round == 3


def test_a_log_in_a_folder_saves_checkpoints_and_continues_from_the_last(tmp_path: Path) -> None:
    """Checkpoints after rounds 2 and 4, and after the last round, 5."""
    settings = TrainingSettings(rounds=5, checkpoint_every=2)
    folder = RunFolder.create(tmp_path, {}, {})
    log = RunLog(settings, start(), folder)
    write_rounds(log, 3)
    resumed = RunLog(settings, start(), folder)
    assert resumed.server.round == 2
    assert resumed.server.vector.tolist() == [2, 2]
    assert [record.round for record in resumed.history().records] == [1, 2]
    write_rounds(resumed, 5)
    last = RunLog(settings, start(), folder)
    assert last.server.round == 5
    assert [record.round for record in last.history().records] == [1, 2, 3, 4, 5]
    folder.unlock()


def test_an_interrupted_log_saves_what_it_has_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = TrainingSettings(rounds=9, checkpoint_every=2)
    folder = RunFolder.create(tmp_path, {}, {})
    saved: list[int] = []
    save = folder.save_checkpoint

    def watch(round: int, tensors: Any) -> None:
        saved.append(round)
        save(round, tensors)

    monkeypatch.setattr(folder, "save_checkpoint", watch)
    log = RunLog(settings, start(), folder)
    log.save_checkpoint()  # nothing to save before round 1
    write_rounds(log, 3)
    log.save_checkpoint()
    log.save_checkpoint()
    assert saved == [2, 3]
    assert RunLog(settings, start(), folder).server.round == 3
    folder.unlock()


# --- uncertainties


def test_every_client_needs_an_uncertainty() -> None:
    uncertainty = Uncertainty("given", {"client-1": 0.1, "client-3": 0.3, "other": 1.0})
    check_complete(uncertainty, ["client-1", "client-3"])
    with pytest.raises(SettingsError, match="uncertainty: no value for client 'client-2'"):
        check_complete(uncertainty, IDS)


def test_uncertainties_are_read_from_the_folder(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert load_uncertainty(folder, IDS) is None
    uncertainty = Uncertainty("entropy", dict.fromkeys(IDS, 0.5))
    folder.write_json("uncertainty.json", uncertainty.as_dict())
    assert load_uncertainty(folder, IDS) == uncertainty
    with pytest.raises(StorageError, match=r"uncertainty\.json is damaged; delete it and resume"):
        load_uncertainty(folder, [*IDS, "client-4"])


# --- the reference


def test_without_a_reference_there_are_no_accuracies() -> None:
    assert reference_accuracies(None, IDS, 0, ACCURACY) is None


@pytest.mark.parametrize("kind", ["result", "folder", "text"])
def test_the_accuracies_of_the_reference_come_from_a_result_or_a_folder(
    tmp_path: Path, kind: str
) -> None:
    result = train_briefly(make_federation(), seed=2, out=tmp_path / "run")
    reference = {"result": result, "folder": tmp_path / "run", "text": str(tmp_path / "run")}[kind]
    assert reference_accuracies(reference, IDS, 2, ACCURACY) == result.client_scores
    assert reference_accuracies(reference, IDS[::-1], 2, ACCURACY) == result.client_scores


@pytest.mark.parametrize("kind", ["result", "folder"])
@pytest.mark.parametrize(
    ("method", "ids", "seed", "message"),
    [
        ("fedavg", IDS[:2], 0, "has other clients; use FedAvg on the same federation"),
        ("fedavg", (*IDS, "client-4"), 0, "has other clients"),
        ("rawls", IDS, 0, "is a run of UDJ-FL rawls; psi is measured from FedAvg"),
        ("fedavg", IDS, 3, "has seed 0, this run has seed 3; use FedAvg with the same seed"),
    ],
    ids=["fewer", "more", "method", "seed"],
)
def test_another_reference_is_refused(
    tmp_path: Path, kind: str, method: str, ids: tuple[str, ...], seed: int, message: str
) -> None:
    result = train_briefly(make_federation(), method, rounds=1, out=tmp_path / "run")
    reference = result if kind == "result" else tmp_path / "run"
    label = "" if kind == "result" else f" {tmp_path / 'run'}"
    with pytest.raises(SettingsError, match=f"^reference:{label} {message}"):
        reference_accuracies(reference, ids, seed, ACCURACY)


def test_a_reference_that_is_not_finished_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Stopped):
        train_briefly(make_federation(), out=tmp_path / "run", on_progress=stop_after(2))
    with pytest.raises(SettingsError, match=r"reference: .*run is not finished; resume it first"):
        reference_accuracies(tmp_path / "run", IDS, 0, ACCURACY)


def test_a_reference_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="holds no run"):
        reference_accuracies(tmp_path, IDS, 0, ACCURACY)
