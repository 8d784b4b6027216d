"""Several seeds as one program: the same bytes as one seed at a time."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from small_runs import Stopped, compare, make_federation, read_files
from torch import Tensor

import udjfl
from udjfl.engine import StackedEngine, stacked
from udjfl.errors import DivergedError
from udjfl.methods import FedAvg, weighted_sum
from udjfl.models import mlp
from udjfl.settings import CompareSettings, TrainingSettings
from udjfl.simulation import programs
from udjfl.simulation.programs import ProgramTask, folder_name, seeds_per_program, share_seeds
from udjfl.training.records import Progress

SHORT: dict[str, Any] = {
    "rounds": 4,
    "hidden": 16,
    "batch_size": 8,
    "lr": 0.05,
    "checkpoint_every": 2,
    "uncertainty_epochs": 2,
    "seeds": [0, 3, 5],
    "workers": 1,
}


def make_by_seed(seed: int) -> udjfl.Federation:
    """Clients of other sizes for each seed."""
    return make_federation(seed=seed, n=24 - 2 * seed, features=16)


def make_alike(seed: int) -> udjfl.Federation:
    """Clients of one size, for every seed."""
    rng = np.random.default_rng(seed)

    def draw(size: int) -> tuple[np.ndarray, np.ndarray]:
        x = rng.normal(size=(size, 16))
        return x, x[:, :3].argmax(axis=1)

    clients = {f"client-{i}": (*draw(20), *draw(9)) for i in range(4)}
    return udjfl.Federation.from_arrays(clients, test=draw(30), class_names="abc")


def make_settings(**changes: Any) -> CompareSettings:
    return CompareSettings(**{**SHORT, "methods": ["fedavg", "rawls"], **changes})


@pytest.fixture
def one_by_one(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Train one seed after the other, until `undo`."""
    monkeypatch.setattr(programs, "can_join", lambda *_: False)
    return monkeypatch


def read_runs(folder: Path) -> dict[str, bytes]:
    return {k: v for k, v in read_files(folder).items() if not Path(k).name.startswith(".")}


# Objectives, pulls, probes, models of clients' own, several models, masks, first steps.
UNUSUAL = ["propfair", "mfairfl", "effl", "fedeba", "cffl", "focus", "e2fl", "adafedadam"]
CASES: dict[str, dict[str, Any]] = {
    "unusual methods": {"methods": UNUSUAL, "rounds": 3},
    "absent clients": {"methods": UNUSUAL, "rounds": 3, "participation": 0.7, "drop_out": 0.3},
    "plain sgd": {"methods": ["rawls", "desert", "qffl"], "momentum": 0.0},
    "loss of the trained model": {"methods": ["rawls", "propfair"], "loss_at": "final"},
    "running loss": {"methods": ["rawls"], "loss_at": "running", "eval_every": 3},
    "ensemble with adam": {
        "methods": ["rawls"],
        "uncertainty": "ensemble",
        "uncertainty_models": 2,
        "uncertainty_optimiser": "adam",
    },
    "two processes": {"methods": ["rawls", "desert"], "workers": 2},
}


@pytest.mark.parametrize("data", [make_by_seed, make_alike])
@pytest.mark.parametrize("case", CASES)
def test_several_seeds_together_write_the_bytes_of_one_by_one(
    case: str,
    data: Any,
    tmp_path: Path,
    one_by_one: pytest.MonkeyPatch,
) -> None:
    one_by_one.setattr(stacked, "SHARED_FLOPS", 0)
    settings = make_settings(**CASES[case])
    events: dict[str, list[udjfl.Progress]] = {"alone": [], "together": []}
    for name in events:
        compare(settings, data, out=tmp_path / name, on_progress=events[name].append)
        one_by_one.setattr(programs, "can_join", lambda *_: True)
    assert read_runs(tmp_path / "together") == read_runs(tmp_path / "alone")

    def key(event: udjfl.Progress) -> tuple[int, str, int]:
        return event.seed, event.label, event.done

    alone, together = (
        sorted((e for e in own if e.stage == "training"), key=key) for own in events.values()
    )
    assert alone == together


def test_seeds_are_trained_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests above compare nothing if every seed has an engine of its own."""
    engines: list[int] = []
    make = StackedEngine.__init__

    def count(self: StackedEngine, module: Any, clients: Any, *args: Any, **others: Any) -> None:
        engines.append(len(clients))
        make(self, module, clients, *args, **others)

    monkeypatch.setattr(StackedEngine, "__init__", count)
    compare(make_settings(uncertainty="paper"), make_by_seed)
    assert engines[0] == 9, "three clients of three seeds"


@pytest.mark.parametrize("calls", [1, 5, 9, 17, 23, 24])
def test_a_stopped_comparison_of_several_seeds_resumes_to_the_same_bytes(
    calls: int, tmp_path: Path
) -> None:
    """Stop at one of 24 events: 3 seeds x 2 methods x 4 rounds."""
    settings = make_settings()
    compare(settings, make_by_seed, out=tmp_path / "whole")
    count = 0

    def stop(event: udjfl.Progress) -> None:
        nonlocal count
        count += event.stage == "training"
        if count == calls:
            raise Stopped

    with pytest.raises(Stopped):
        compare(settings, make_by_seed, out=tmp_path / "stopped", on_progress=stop)
    compare(settings, make_by_seed, out=tmp_path / "stopped", resume=True)
    assert read_runs(tmp_path / "stopped") == read_runs(tmp_path / "whole")


def test_seeds_at_different_rounds_are_resumed_to_the_same_bytes(tmp_path: Path) -> None:
    """One seed is finished, one has lost a checkpoint, one is missing."""
    settings = make_settings()
    compare(settings, make_by_seed, out=tmp_path / "whole")
    compare(settings, make_by_seed, out=tmp_path / "parts")
    (tmp_path / "parts/comparison.json").unlink()
    for path in (tmp_path / "parts/seed-3").rglob("*"):
        if path.name in ("checkpoint.safetensors", "result.json", "model.safetensors"):
            path.unlink()
    for path in sorted((tmp_path / "parts/seed-5").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    compare(settings, make_by_seed, out=tmp_path / "parts", resume=True)
    assert read_runs(tmp_path / "parts") == read_runs(tmp_path / "whole")


@udjfl.parameters
class DivergesOnOneSeed(udjfl.Method):
    """Like FedAvg, but without end in round 2 for clients with 18 examples (seed 3)."""

    name = "diverges_on_one_seed"
    title = "DivergesOnOneSeed"
    paper = "-"
    grade = "verified"
    needs: ClassVar[frozenset[str]] = frozenset({"sizes"})  # type: ignore[misc]

    def aggregate(self, state: Any, reports: udjfl.Reports) -> tuple[Any, Tensor, Any]:
        share = reports.sizes / reports.sizes.sum()
        step = weighted_sum(share, reports.deltas)
        diverges = float(reports.sizes[0]) == 18 and reports.round == 2
        return state, step * math.inf if diverges else step, {"weight": share}


def test_a_method_that_diverges_on_one_seed_does_not_touch_the_others(tmp_path: Path) -> None:
    methods = [udjfl.FedAvg(), udjfl.method("rawls")]
    settings = make_settings()
    without = compare(settings, make_by_seed, methods, out=tmp_path / "without")
    found = compare(settings, make_by_seed, [*methods, DivergesOnOneSeed()], out=tmp_path / "with")
    assert list(found.rows[2].failed) == [3]
    assert "round 2" in found.rows[2].failed[3]
    assert [v is None for v in found.rows[2].metrics["std"].values] == [False, True, False]
    for ours, theirs in zip(found.rows[:2], without.rows, strict=True):
        assert ours.metrics == theirs.metrics
    common = {k: v for k, v in read_runs(tmp_path / "without").items() if k.startswith("seed-")}
    files = read_runs(tmp_path / "with")
    assert {k: files[k] for k in common} == common


def test_a_reference_that_fails_on_one_seed_stops_the_comparison(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain = udjfl.FedAvg.aggregate

    def aggregate(self: Any, state: Any, reports: udjfl.Reports) -> Any:
        state, step, diagnostics = plain(self, state, reports)
        return state, step * (math.nan if float(reports.sizes[0]) == 18 else 1.0), diagnostics

    monkeypatch.setattr(udjfl.FedAvg, "aggregate", aggregate)
    with pytest.raises(DivergedError, match="FedAvg"):
        compare(make_settings(), make_by_seed)


def test_clients_that_differ_from_seed_to_seed_are_refused_before_anything_is_trained() -> None:
    seen: list[udjfl.Progress] = []
    with pytest.raises(udjfl.UdjflError, match="other clients than that of seed 0"):
        compare(
            make_settings(),
            lambda seed: make_federation(3 + seed, features=16),
            on_progress=seen.append,
        )
    assert seen == []


# --- how many seeds are one program


def count_together(n_methods: int = 5, has_folders: bool = False, **changes: Any) -> int:
    federation = make_federation(n_clients=5, n=180, features=64)
    module = mlp((64,), 3, hidden=64)
    return seeds_per_program(
        federation, module, TrainingSettings(**changes), n_methods, has_folders
    )


def test_small_federations_are_trained_together_as_far_as_memory_goes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert count_together() >= 30
    assert 1 < count_together(n_methods=100) < count_together()
    assert count_together(n_methods=10, has_folders=True) <= programs.MOST_FOLDERS // 10
    monkeypatch.setattr(programs, "PROGRAM_BYTES", 1)
    assert count_together() == 1


def test_the_paper_s_larger_federations_are_trained_one_seed_at_a_time() -> None:
    """5 clients with 4,800 images of 28 x 28 are 75 MB, and as much again for each fold."""
    x, y = torch.zeros(24_000, 784), torch.zeros(24_000, dtype=torch.int64)
    test = (torch.ones(10, 784), torch.zeros(10))
    clients = {i: (x[i::5] + torch.arange(4_800)[:, None], y[i::5], *test) for i in range(5)}
    federation = udjfl.Federation.from_arrays(
        clients, test=test, class_names="ab", allow_duplicates=True
    )
    module = mlp((784,), 2, hidden=64)
    assert seeds_per_program(federation, module, TrainingSettings(), 5, False) == 1


@pytest.mark.parametrize("changes", [{"engine": "serial"}, {"engine": "mapped"}])
def test_other_engines_train_one_seed_at_a_time(changes: dict[str, Any]) -> None:
    assert count_together(**changes) == 1


@pytest.mark.parametrize(
    ("n_seeds", "jobs", "together", "expected"),
    [
        (5, 1, 30, [5]),
        (5, 1, 2, [1, 2, 2]),
        (30, 2, 40, [15, 15]),
        (30, 2, 10, [7, 8, 7, 8]),
        (3, 2, 1, [1, 1, 1]),
        (2, 2, 9, [1, 1]),
    ],
)
def test_seeds_are_shared_evenly(
    n_seeds: int, jobs: int, together: int, expected: list[int]
) -> None:
    shares = share_seeds(range(n_seeds), jobs, together)
    assert [seed for share in shares for seed in share] == list(range(n_seeds))
    assert [len(share) for share in shares] == expected


def test_processes_that_share_the_programs_change_no_number(tmp_path: Path) -> None:
    for jobs in (1, 2):
        compare(make_settings(jobs=jobs), make_alike(0), out=tmp_path / str(jobs))
    one, two = (json.loads((tmp_path / f"{j}/comparison.json").read_text()) for j in (1, 2))
    assert one["methods"] == two["methods"]


@pytest.mark.parametrize("events", ["records", "bare", "none"])
def test_a_program_sends_the_events_that_are_wanted(events: programs.Events) -> None:
    settings = make_settings(seeds=[0])
    methods = (FedAvg(), udjfl.method("rawls"))
    ids = make_by_seed(0).ids
    task = ProgramTask(make_by_seed, None, settings, methods, ids, None, None, (0,))
    sent: list[Progress] = []
    replace(task, events=events)(sent.append)
    trained = [event for event in sent if event.stage == "training"]
    assert len(trained) == (0 if events == "none" else settings.training.rounds * len(methods))
    assert all(bool(event.records) == (events == "records") for event in trained)
    assert sent or events == "none"


def test_a_comparison_without_a_listener_sends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted: list[programs.Events] = []
    run = ProgramTask.__call__

    def note(self: ProgramTask, send: Any) -> Any:
        wanted.append(self.events)
        return run(self, send)

    monkeypatch.setattr(ProgramTask, "__call__", note)
    short = {**SHORT, "seeds": [0]}
    for on_progress in (None, lambda event: None):
        udjfl.compare(make_by_seed, ["rawls"], jobs=1, on_progress=on_progress, **short)
    assert wanted == ["none", "records"]


def test_each_method_has_a_valid_folder_name_of_its_own() -> None:
    many = udjfl.UDJ(beta=tuple(map(float, range(100))), gamma=1.0)
    other = udjfl.UDJ(beta=(*map(float, range(99)), 0.0), gamma=1.0)
    names = [
        folder_name(method)
        for method in (udjfl.FedAvg(), many, other, udjfl.UDJ.rawls(), udjfl.UDJ.rawls(4.0))
    ]
    assert len(set(names)) == 5
    assert all(len(name.encode()) <= 255 and "/" not in name for name in names)


def test_names_that_differ_only_in_special_characters_get_two_folders() -> None:
    one, two = (udjfl.UDJ(beta={name: 1.0}, gamma=1.0) for name in ("a b", "a/b"))
    assert folder_name(one) != folder_name(two)
