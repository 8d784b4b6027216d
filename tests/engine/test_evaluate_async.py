"""Evaluation beside training: when it runs, what it returns, what it keeps alive."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_cases import ADDRESS, ENGINES, NO_BUFFERS, make_clients, make_work, seeded

from udjfl._threads import run_in_threads, thread_limit
from udjfl.engine import EvaluationJob, EvaluationSet, StackedEngine, TrainJob, stacked
from udjfl.engine._deferred import Deferred, idle_cost
from udjfl.engine._fork_pool import ForkPool
from udjfl.engine._memory import Tables
from udjfl.errors import DataError
from udjfl.models import mlp, to_vector

LINUX = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="processes are forked on Linux only"
)
# Two equal tasks for two workers leave no core idle, three do.
CHEAP = 0.1


class FileWatch:
    """A pool with two tasks that look for a file: one at its end, one until it is there."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.home = os.getpid()
        self.pool = ForkPool(self.run_task, 2)

    def run_task(self, task: tuple[int, str], tables: Tables) -> None:
        row, what = task
        if what == "sleep":
            time.sleep(0.2)
        elif what == "fail":
            raise DataError(f"task {row}")
        elif what == "die" and os.getpid() != self.home:
            os.kill(os.getpid(), signal.SIGKILL)
        elif what == "wait" and row == 1:
            deadline = time.monotonic() + 60
            while not self.file.exists() and time.monotonic() < deadline:
                time.sleep(0.01)
        tables["there"][row] = self.file.exists()

    def map(self, what: str, costs: tuple[float, float] = (1.0, 2.0)) -> list[bool]:
        tasks, shapes = [(0, what), (1, what)], {"there": ((2,), torch.bool)}
        return self.pool.map(tasks, shapes, costs)["there"].tolist()


@LINUX
def test_a_deferred_call_begins_as_soon_as_a_process_is_idle(tmp_path: Path) -> None:
    watch = FileWatch(tmp_path / "done")
    assert watch.map("sleep") == [False, False]
    for _ in range(3):
        result = watch.pool.defer(watch.file.touch, CHEAP)
        assert watch.map("wait")[1], "begun only after all processes had finished"
        result()
        watch.file.unlink()


@LINUX
def test_a_deferred_call_takes_no_time_from_processes_that_work(tmp_path: Path) -> None:
    watch = FileWatch(tmp_path / "done")
    result = watch.pool.defer(watch.file.touch, CHEAP)
    assert not all(watch.map("sleep")), "begun while all processes worked"
    result()
    assert watch.file.exists()


@LINUX
def test_a_call_that_would_end_later_beside_is_made_before(tmp_path: Path) -> None:
    watch = FileWatch(tmp_path / "done")
    result = watch.pool.defer(watch.file.touch, cost=3.0)
    assert all(watch.map("sleep", costs=(1.0, 2.0))), "not made before training"
    result()


def test_idle_work_by_hand() -> None:
    """Three tasks of 2 for two workers end at 4 and 2; tasks of 3, 1, 1 and 1 end at 3 and 3."""
    assert idle_cost([2, 2, 2], 2) == 2
    assert idle_cost([3, 1, 1, 1], 2) == 0
    assert idle_cost([5], 3) == 10
    assert idle_cost([], 2) == 0


@pytest.mark.parametrize(("cost", "pays"), [(2, True), (4, True), (4.1, False), (40, False)])
def test_a_call_pays_beside_training_that_leaves_enough_idle(cost: float, pays: bool) -> None:
    """Of cost 4, half is done in the idle work of 2; all cores would need 4 / 2 before training."""
    assert Deferred(lambda: None, cost).pays_beside([2, 2, 2], 2) is pays


def test_few_clients_leave_a_core_idle_and_many_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """5 clients x 4,800 examples, and 500 x 48, are as much data; tests are a quarter of that."""
    decisions: list[bool] = []

    def decide(self: ForkPool, tasks: Any, shapes: Any, costs: Any = ()) -> Tables:
        flops = 2 * engine.n_parameters * 6000
        decisions.append(Deferred(lambda: None, flops).pays_beside(costs, 2))
        return {name: torch.zeros(tuple(shape), dtype=d) for name, (shape, d) in shapes.items()}

    monkeypatch.setattr(ForkPool, "map", decide)
    module = mlp((784,), 3, weight_norm=False)
    for n_clients, size in ((5, 4800), (500, 48)):
        engine = StackedEngine(module, make_clients([2] * n_clients, (784,)), workers=2)
        engine.sizes = [size] * n_clients
        work = make_work(loss_at="running", batch_size=128)
        engine.train(TrainJob(to_vector(module), NO_BUFFERS, range(n_clients), work, ADDRESS))
    assert decisions == [True, False]


@LINUX
def test_a_deferred_call_is_made_although_tasks_fail_or_a_process_dies(tmp_path: Path) -> None:
    watch = FileWatch(tmp_path / "done")
    result = watch.pool.defer(lambda: 7, CHEAP)
    with pytest.raises(DataError, match="task 0"):
        watch.map("fail")
    assert result() == 7
    result = watch.pool.defer(lambda: 8, CHEAP)
    watch.map("die")
    assert result() == 8


@LINUX
def test_an_interruption_leaves_no_thread_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that waits for ever would keep the process from ending."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    watch = FileWatch(tmp_path / "done")
    watch.map("sleep")
    monkeypatch.setattr("udjfl.engine._fork_pool._run_tasks", interrupt)
    result = watch.pool.defer(lambda: 7, CHEAP)
    with pytest.raises(KeyboardInterrupt):
        watch.map("sleep")
    assert not [thread for thread in threading.enumerate() if thread.name == "udjfl beside"]
    assert result() == 7


@LINUX
def test_no_thread_is_left_when_training_has_ended(tmp_path: Path) -> None:
    """A process forked meanwhile would find the locks of that thread locked for ever."""
    watch = FileWatch(tmp_path / "done")
    result = watch.pool.defer(lambda: time.sleep(0.3), CHEAP)
    watch.map("sleep")
    assert not [thread for thread in threading.enumerate() if thread.name == "udjfl beside"]
    result()


def test_a_call_whose_result_is_requested_first_is_made_then_and_once(tmp_path: Path) -> None:
    watch, calls = FileWatch(tmp_path / "done"), list[str]()
    result = watch.pool.defer(lambda: calls.append("made"), CHEAP)
    assert calls == []
    result()
    result()
    watch.map("sleep")
    assert calls == ["made"]


@LINUX
def test_a_deferred_call_keeps_to_one_core_and_its_error_is_raised_on_request(
    tmp_path: Path,
) -> None:
    watch = FileWatch(tmp_path / "done")

    def run_two() -> list[int]:
        return run_in_threads([threading.get_ident, threading.get_ident])

    with thread_limit(2):
        result = watch.pool.defer(run_two, CHEAP)
        watch.map("sleep")
    assert len(set(result())) == 1
    assert threading.get_ident() not in result()
    failing = watch.pool.defer(lambda: torch.zeros(2) @ torch.zeros(3), CHEAP)
    watch.map("sleep")
    with pytest.raises(RuntimeError, match="inconsistent tensor size"):
        failing()


class Payload:
    def touch(self) -> None:
        pass


def test_nothing_is_kept_alive_longer_than_needed(tmp_path: Path) -> None:
    watch = FileWatch(tmp_path / "done")
    requested, forgotten = Payload(), Payload()
    alive = [weakref.ref(requested), weakref.ref(forgotten)]
    result = watch.pool.defer(requested.touch, CHEAP)
    result()
    del requested
    gc.collect()
    assert alive[0]() is None, "kept by a call that was made"
    result = watch.pool.defer(forgotten.touch, CHEAP)
    del forgotten, result
    gc.collect()
    assert alive[1]() is None, "kept although nobody can request the result"
    watch.map("sleep")


@pytest.mark.parametrize("training_follows", [False, True])
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("name", ENGINES)
def test_every_engine_returns_what_evaluate_many_returns(
    name: str, workers: int, training_follows: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stacked, "SHARED_FLOPS", 0)
    monkeypatch.setattr(stacked, "CHUNK_FLOPS", 1)
    clients, module = make_clients([20, 9, 14]), seeded(lambda: mlp((3,), 3, hidden=4))
    engine = ENGINES[name](module, clients, workers=workers)
    vector, data = to_vector(module), EvaluationSet([client.test for client in clients])
    models = [(vector, NO_BUFFERS), (vector * 0.5, NO_BUFFERS)]
    expected = engine.evaluate_many(models, data)
    wait = engine.evaluate_async([EvaluationJob(models, data)], training_follows)
    if training_follows:
        engine.train_many([TrainJob(vector, NO_BUFFERS, [0, 1, 2], make_work(), ADDRESS)])
    for ours, theirs in zip(wait()[0], expected, strict=True):
        assert torch.equal(ours[0], theirs[0])
        assert torch.equal(ours[1], theirs[1])
    engine.close()
