"""Tasks in forked processes: all are done, once, whatever becomes of the processes."""

from __future__ import annotations

import copy
import gc
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_cases import ADDRESS, assert_equal_results, make_clients, make_work, seeded
from torch import Tensor, nn

from udjfl.engine import LocalResult, SerialEngine, StackedEngine, TrainJob, serial, stacked
from udjfl.engine._fork_pool import ForkPool
from udjfl.engine._memory import Tables
from udjfl.errors import DataError
from udjfl.models import buffers_to_vector, cnn, mlp, to_vector

LINUX = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="processes are forked on Linux only"
)


class Squares:
    """A pool whose tasks square numbers, in rows of 100, and write which process did it.

    A task is a pair of its row and a number, or in place of the number what is to happen.
    """

    def __init__(self, workers: int) -> None:
        self.pool = ForkPool(self.run_task, workers)
        self.home = os.getpid()

    def run_task(self, task: tuple[int, Any], tables: Tables) -> None:
        row, number = task
        is_forked = os.getpid() != self.home
        if number == "fail":
            raise DataError(f"task {row}")
        if number == "die" and is_forked:
            os.kill(os.getpid(), signal.SIGKILL)
        if number == "slow here" and not is_forked:
            time.sleep(0.2)  # so that tasks are left for the other processes
        tables["square"][row] = (row if isinstance(number, str) else number) ** 2
        tables["pid"][row] = os.getpid()

    def map(self, numbers: list[Any]) -> tuple[Tensor, set[int]]:
        """The squares, and the processes that computed them."""
        n = len(numbers)
        shapes = {
            "pid": ((n,), torch.int64),
            "square": ((n, 100), torch.float64),
            "empty": ((n, 0), torch.float32),
        }
        tables = self.pool.map(list(enumerate(numbers)), shapes)
        assert tables["empty"].shape == (n, 0)
        assert (tables["square"] == tables["square"][:, :1]).all()
        return tables["square"][:, 0], set(tables["pid"].tolist())


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_all_tasks_are_done(workers: int) -> None:
    squares = Squares(workers)
    for count in (5, 20, 3):  # more memory than before, and less
        assert squares.map(list(range(count)))[0].tolist() == [i**2 for i in range(count)]


@pytest.mark.parametrize("kept", [1, 2, 5])
def test_tables_that_are_still_referred_to_are_not_overwritten(kept: int) -> None:
    squares = Squares(2)
    tables: list[Tensor] = []
    for shift in range(8):
        tables = [*tables, squares.map([shift, shift + 1])[0]][-kept:]
        first = shift + 1 - len(tables)
        assert [table.tolist() for table in tables] == [
            [s**2, (s + 1) ** 2] for s in range(first, shift + 1)
        ]
    assert len(squares.pool.areas) <= kept + 2


@LINUX
def test_other_processes_do_a_part() -> None:
    _, pids = Squares(2).map(["slow here", *range(1, 6)])
    assert os.getpid() in pids
    assert len(pids) == 2


@LINUX
def test_the_first_error_is_raised_and_the_pool_goes_on() -> None:
    squares = Squares(3)
    for _ in range(2):
        with pytest.raises(DataError, match="task 2"):
            squares.map(["slow here", 1, "fail", 3, "fail", 5])
        assert squares.map([1, 2, 3])[0].tolist() == [1, 4, 9]


@LINUX
def test_the_tasks_of_a_process_that_dies_are_done_here() -> None:
    squares = Squares(2)
    for _ in range(2):
        assert squares.map(["slow here", "die", 2, 3])[0].tolist() == [0, 1, 4, 9]
    assert squares.map([5, 6])[0].tolist() == [25, 36]


def test_tasks_that_cannot_be_pickled_are_done_here() -> None:
    class Unpicklable(int):
        def __reduce__(self) -> Any:
            raise TypeError("stays here")

    squares, pids = Squares(2).map([Unpicklable(1), 2, 3])
    assert squares.tolist() == [1, 4, 9]
    assert pids == {os.getpid()}


class Unreadable(int):
    """Can be pickled, but unpickled only in the process that it comes from."""

    def __reduce__(self) -> Any:
        return _read, (int(self), os.getpid())


def _read(value: int, home: int) -> int:
    if os.getpid() != home:
        raise ValueError("not here")
    return value


@LINUX
def test_tasks_that_cannot_be_unpickled_are_done_here() -> None:
    squares = Squares(2)
    assert squares.map([Unreadable(1), 2, 3])[0].tolist() == [1, 4, 9]
    assert squares.map(["slow here", 2, 3])[0].tolist() == [0, 4, 9]


def _is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def _wait_until(is_true: Callable[[], bool]) -> bool:
    for _ in range(500):
        if is_true():
            return True
        time.sleep(0.02)
    return False


@pytest.fixture
def always_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    """However little there is to do, it is shared; chunks of one or two clients are tasks."""
    monkeypatch.setattr(stacked, "CHUNK_FLOPS", 1)
    monkeypatch.setattr(stacked, "SHARED_FLOPS", 0)
    monkeypatch.setattr(serial, "SHARED_PRODUCTS", 0)


@LINUX
@pytest.mark.usefixtures("always_shared")
def test_processes_end_with_their_engine() -> None:
    module = mlp((3,), 3, hidden=4)
    engine = StackedEngine(module, make_clients([9, 9]), workers=2)
    engine.train(
        TrainJob(to_vector(module), buffers_to_vector(module), [0, 1], make_work(), ADDRESS)
    )
    pids = [worker.process.pid for worker in engine.pool.processes]
    assert len(pids) == 1
    del engine
    gc.collect()
    assert _wait_until(lambda: all(_is_gone(pid) for pid in pids))


def _squares_of_pool(n: int) -> list[float]:
    return Squares(2).map(list(range(n)))[0].tolist()


@LINUX
def test_a_daemonic_process_does_all_tasks_itself() -> None:
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.apply(_squares_of_pool, (4,)) == [0, 1, 4, 9]


@LINUX
def test_without_other_processes_all_tasks_are_done_here(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse() -> int:
        raise BlockingIOError("no more processes")

    monkeypatch.setattr(os, "fork", refuse)
    assert _squares_of_pool(4) == [0, 1, 4, 9]
    assert "without other processes: no more processes" in caplog.text


SCRIPT = """
import os, signal, sys
sys.path[:0] = ["tests", "tests/engine"]
from test_fork_pool import Squares
squares = Squares(3)
squares.map([1, 2, 3])
print(*[worker.process.pid for worker in squares.pool.processes], flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@LINUX
def test_processes_end_when_their_parent_is_killed() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    pids = [int(pid) for pid in done.stdout.split()]
    assert len(pids) == 2, done.stderr
    assert _wait_until(lambda: all(_is_gone(pid) for pid in pids))


def _random_layers() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(64, 8),
        nn.BatchNorm1d(8),
        nn.GELU(),
        nn.Dropout(0.3),
        nn.Linear(8, 3),
    )


def _train_twice(
    kind: Any, module: nn.Module, workers: int, client_indices: list[int], **changes: Any
) -> LocalResult:
    clients = make_clients([11, 40, 3, 25, 25, 8, 2], (1, 8, 8))
    engine = kind(copy.deepcopy(module), clients, workers=workers)
    how = {"lr": 0.01, "batch_size": 9, "loss_at": "running", "first_step": True, **changes}
    job = TrainJob(
        to_vector(module), buffers_to_vector(module), client_indices, make_work(**how), ADDRESS
    )
    first, again = engine.train_many([job])[0], engine.train_many([job])[0]
    assert_equal_results(first, again)
    return again


def _squared_losses(
    losses: Tensor, weights: Tensor, groups: Tensor | None, multipliers: Tensor | None
) -> Tensor:
    return (losses.square() * weights).sum(dim=1) * (1 if multipliers is None else multipliers)


@pytest.mark.usefixtures("always_shared")
@pytest.mark.parametrize("objective", [None, _squared_losses])
@pytest.mark.parametrize(
    ("kind", "make"),
    [
        (SerialEngine, _random_layers),
        (SerialEngine, lambda: cnn((1, 8, 8), 3)),
        (StackedEngine, lambda: mlp((1, 8, 8), 3)),
    ],
)
def test_the_number_of_workers_changes_no_bit(
    kind: Any, make: Callable[[], nn.Module], objective: Any
) -> None:
    multipliers = None if objective is None else torch.arange(1.0, 7.0)
    module = seeded(make)
    one, *others = (
        _train_twice(
            kind,
            module,
            workers,
            [0, 1, 3, 4, 5, 3],
            objective=objective,
            multipliers=multipliers,
        )
        for workers in (1, 2, 3, 4)
    )
    for other in others:
        assert_equal_results(one, other)


@pytest.mark.usefixtures("always_shared")
def test_a_client_that_cannot_train_is_named_whichever_process_trains_it() -> None:
    for workers in (1, 2):
        with pytest.raises(DataError, match="'client-5' cannot train this model"):
            _train_twice(SerialEngine, _random_layers(), workers, list(range(7)), batch_size=7)


def test_a_client_is_pickled_without_the_data_of_the_others() -> None:
    many = make_clients([50] * 40, (64,))
    assert len(pickle.dumps(many[0])) < 40_000
    again = pickle.loads(pickle.dumps(many[3]))
    assert torch.equal(again.train.x, many[3].train.x)
