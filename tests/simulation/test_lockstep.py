"""Rounds one after another: evaluation may run beside the next round's training, and nobody can tell from what is written."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch
from conftest import make_federation

import udjfl
from udjfl import _threads as threads
from udjfl.engine import stacked
from udjfl.engine.stacked import StackedEngine
from udjfl.errors import DivergedError
from udjfl.training.rounds import Loop, Steps

FAST = {
    "rounds": 4,
    "hidden": 5,
    "batch_size": 8,
    "lr": 0.1,
    "uncertainty_epochs": 2,
    "engine": "stacked",
    "workers": 2,
}


@pytest.fixture
def where(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the threads in which models were evaluated on test data."""
    names: list[str] = []
    evaluate = StackedEngine.evaluate_many

    def watched(self, models, pooled):
        names.append(threading.current_thread().name)
        return evaluate(self, models, pooled)

    monkeypatch.setattr(StackedEngine, "evaluate_many", watched)
    monkeypatch.setattr(stacked, "WORTH_SHARING", 0)  # by processes, however little there is to do
    monkeypatch.setattr(stacked, "CHUNK_FLOPS", 1)
    return names


@pytest.mark.parametrize("method", ["fedavg", "rawls", "afl"])
def test_evaluation_beside_training_writes_what_evaluation_after_it_writes(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: list[str]
) -> None:
    federation = make_federation()
    udjfl.simulate(federation, method, out=tmp_path / "beside", **FAST)
    assert [name.startswith("udjfl aside") for name in where] == [
        True,
        True,
        True,
        False,
    ]  # nothing follows the last round
    where.clear()
    monkeypatch.setattr(StackedEngine, "evaluates_aside", False)
    udjfl.simulate(federation, method, out=tmp_path / "after", **FAST)
    assert not any(name.startswith("udjfl aside") for name in where)
    for name in ("records.jsonl", "model.safetensors", "result.json", "checkpoint.safetensors"):
        assert (tmp_path / "beside" / name).read_bytes() == (
            tmp_path / "after" / name
        ).read_bytes(), name


def test_one_core_evaluates_after_training(where: list[str]) -> None:
    udjfl.simulate(make_federation(), "fedavg", **{**FAST, "workers": 1})
    assert not any(name.startswith("udjfl aside") for name in where)


@pytest.mark.parametrize("error", [DivergedError("round 3 is no good"), KeyboardInterrupt()])
def test_a_round_that_was_played_is_written_down_whatever_stops_the_next(
    error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = Steps.stepped

    def stopped(self, server, answers):
        if server.round == 2:
            raise error
        return step(self, server, answers)

    monkeypatch.setattr(Steps, "stepped", stopped)
    with pytest.raises(type(error)):
        udjfl.simulate(make_federation(), "fedavg", out=tmp_path / "run", **FAST)
    records = list(udjfl.training.run_folder.RunFolder.open(tmp_path / "run").read_records())
    assert {record.round for record in records} == {1, 2}
    assert [
        record.round for record in records if record.metric == "test_loss" and record.client is None
    ] == [1, 2]


def test_a_round_is_settled_before_the_next_one_is_finished(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its records come first, and its checkpoint is of its own model."""
    said: list[tuple[str, int]] = []
    step, records = Steps.stepped, Loop.evaluation_records

    def stepped(self, server, answers):
        said.append(("step", server.round + 1))
        return step(self, server, answers)

    def written(self, t, evaluated):
        said.append(("evaluated", t))
        return records(self, t, evaluated)

    monkeypatch.setattr(Steps, "stepped", stepped)
    monkeypatch.setattr(Loop, "evaluation_records", written)
    udjfl.simulate(make_federation(), "fedavg", **FAST)
    assert said == [(what, t) for t in (1, 2, 3, 4) for what in ("step", "evaluated")]


def test_small_rounds_are_evaluated_by_whoever_trains() -> None:
    """Nothing is begun beside training that is done in a few milliseconds by this process alone."""
    begun: list[str] = []

    def watch() -> None:
        begun.append("aside")

    result = threads.aside(watch)
    assert begun == []
    result()
    assert begun == ["aside"]
    threads.begin_aside(watch)  # nothing is left to be begun
    assert begun == ["aside"]


def test_what_was_put_aside_waits_for_a_free_core() -> None:
    free, told = threading.Event(), threading.Event()

    def when() -> None:
        told.set()
        free.wait(60)

    done: list[int] = []
    result = threads.aside(lambda: done.append(7))
    threads.begin_aside(when)
    assert told.wait(60)
    assert done == []
    free.set()
    result()
    assert done == [7]


def test_nobody_forks_while_something_is_done_aside() -> None:
    begun, go_on = threading.Event(), threading.Event()

    def work() -> int:
        begun.set()
        go_on.wait(60)
        return 7

    result = threads.aside(work)
    threads.begin_aside(lambda: None)
    assert begun.wait(60)
    resting = threading.Thread(target=threads.rest)
    resting.start()
    resting.join(0.2)
    assert resting.is_alive()
    go_on.set()
    resting.join(60)
    assert not resting.is_alive()
    assert result() == 7


def _aside(work):
    result = threads.aside(work)
    threads.begin_aside(lambda: None)
    return result()


def test_what_is_done_aside_keeps_to_one_core_and_hands_on_its_error() -> None:
    main = threading.get_ident()
    seen = _aside(lambda: threads.spread([threading.get_ident, threading.get_ident], workers=2))
    assert len(set(seen)) == 1
    assert main not in seen

    def fail() -> torch.Tensor:
        return torch.zeros(2) @ torch.zeros(3)

    with pytest.raises(RuntimeError, match="inconsistent tensor size"):
        _aside(fail)
