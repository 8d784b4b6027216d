"""Pieces of work in other processes: all of them done, once, whatever becomes of who does them."""

from __future__ import annotations

import copy
import gc
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import udjfl
from udjfl._threads import aside, begin_aside, cores, sharing, spread
from udjfl.data._contiguous import LARGE, joined
from udjfl.engine import (
    LocalResult,
    LocalTraining,
    SerialEngine,
    StackedEngine,
    TrainJob,
    serial,
    stacked,
)
from udjfl.engine._fork_pool import ForkPool, Tables
from udjfl.errors import DataError
from udjfl.models import buffers_to_vector, cnn, mlp, to_vector

LINUX = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="processes are forked on Linux only"
)
ADDRESS = (1, "batches", 2)


class Squares:
    """Its pieces are the squares of some numbers, in rows of 100, with who computed them."""

    def __init__(self, workers: int) -> None:
        self.crew = ForkPool(self.do, workers)
        self.home = os.getpid()

    def do(self, task: Any, number: int, tables: Tables) -> None:
        what = task[number]
        away = os.getpid() != self.home
        if what == "fail":
            raise DataError(f"piece {number}")
        if what == "die" and away:
            os.kill(os.getpid(), signal.SIGKILL)
        if what == "slow here" and not away:
            time.sleep(0.2)  # so that there is something left for the others
        tables["square"][number] = (number if isinstance(what, str) else what) ** 2
        tables["who"][number] = os.getpid()

    def all(self, task: list[Any]) -> tuple[Tensor, set[int]]:
        n = len(task)
        shapes = {
            "who": ((n,), torch.int64),
            "square": ((n, 100), torch.float64),
            "nothing": ((n, 0), torch.float32),
        }
        tables = self.crew.run(task, n, shapes)
        assert tables["nothing"].shape == (n, 0)
        assert (tables["square"] == tables["square"][:, :1]).all()
        return tables["square"][:, 0], set(tables["who"].tolist())


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_all_pieces_are_done(workers: int) -> None:
    squares = Squares(workers)
    for count in (5, 20, 3):  # more memory than before, and less
        assert squares.all(list(range(count)))[0].tolist() == [i**2 for i in range(count)]


@pytest.mark.parametrize("kept", [1, 2, 5])
def test_what_somebody_still_looks_at_is_not_written_over(kept: int) -> None:
    squares = Squares(2)
    seen: list[Tensor] = []
    for shift in range(8):
        seen = [*seen, squares.all([shift, shift + 1])[0]][-kept:]
        first = shift + 1 - len(seen)
        assert [table.tolist() for table in seen] == [
            [s**2, (s + 1) ** 2] for s in range(first, shift + 1)
        ]
    assert len(squares.crew.areas) <= kept + 2


@LINUX
def test_others_do_a_part() -> None:
    _, who = Squares(2).all(["slow here", *range(1, 6)])
    assert os.getpid() in who
    assert len(who) == 2


@LINUX
def test_the_first_error_is_raised_and_the_crew_goes_on() -> None:
    squares = Squares(3)
    for _ in range(2):
        with pytest.raises(DataError, match="piece 2"):
            squares.all(["slow here", 1, "fail", 3, "fail", 5])
        assert squares.all([1, 2, 3])[0].tolist() == [1, 4, 9]


@LINUX
def test_a_worker_that_dies_leaves_its_work_to_us() -> None:
    squares = Squares(2)
    for _ in range(2):
        assert squares.all(["slow here", "die", 2, 3])[0].tolist() == [0, 1, 4, 9]
    assert squares.all([5, 6])[0].tolist() == [25, 36]


class Waiting:
    """Two pieces that look for a file: the first at its end, the second until it is there."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.crew = ForkPool(self.do, 2)

    def do(self, task: Any, number: int, tables: Tables) -> None:
        if task == "both look":
            time.sleep(0.2)
        elif number == 1:
            deadline = time.monotonic() + 60
            while not self.file.exists() and time.monotonic() < deadline:
                time.sleep(0.01)
        tables["there"][number] = self.file.exists()

    def run(self, task: str) -> list[bool]:
        return self.crew.run(task, 2, {"there": ((2,), torch.bool)})["there"].tolist()


@LINUX
def test_what_was_put_aside_is_done_as_soon_as_one_of_us_has_nothing_left_to_do(
    tmp_path: Path,
) -> None:
    file = tmp_path / "done"
    waiting = Waiting(file)
    assert waiting.run("both look") == [False, False]
    for _ in range(3):
        result = aside(file.touch)
        assert waiting.run("wait")[1], "begun only after everybody had finished"
        result()
        file.unlink()


@LINUX
def test_what_was_put_aside_takes_no_time_from_those_at_work(tmp_path: Path) -> None:
    file = tmp_path / "done"
    result = aside(file.touch)
    assert not all(Waiting(file).run("both look")), "begun while everybody was at work"
    result()
    assert file.exists()


@LINUX
@pytest.mark.parametrize("what", ["die", "fail"])
def test_what_was_put_aside_is_done_whatever_becomes_of_the_work(what: str) -> None:
    squares = Squares(2)
    result = aside(lambda: 7)
    if what == "fail":
        with pytest.raises(DataError, match="piece 0"):
            squares.all(["fail", "fail"])
    else:
        squares.all(["slow here", "die", "die"])
    assert result() == 7


@LINUX
def test_an_interruption_leaves_nothing_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that waits for ever would keep the process from ending."""

    def interrupted(when: Callable[[], object]) -> None:
        begin_aside(when)
        raise KeyboardInterrupt

    monkeypatch.setattr("udjfl._threads.begin_aside", interrupted)
    result = aside(lambda: 7)
    with pytest.raises(KeyboardInterrupt):
        Squares(2).all(["slow here", 2])
    assert result() == 7


def test_a_task_that_cannot_be_sent_is_done_here() -> None:
    class Odd(list[Any]):
        def __reduce__(self) -> Any:
            raise TypeError("stays here")

    found, who = Squares(2).all(Odd([1, 2, 3]))
    assert found.tolist() == [1, 4, 9]
    assert who == {os.getpid()}


def _is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def _wait_until(happened: Callable[[], bool]) -> bool:
    for _ in range(500):
        if happened():
            return True
        time.sleep(0.02)
    return False


@LINUX
def test_processes_end_with_their_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacked, "WORTH_SHARING", 0)
    monkeypatch.setattr(stacked, "CHUNK_FLOPS", 1)
    module = mlp((3,), 3, hidden=4)
    engine = StackedEngine(module, _clients([9, 9]), workers=2)
    engine.train(
        to_vector(module), buffers_to_vector(module), [0, 1], LocalTraining(0.1, 0.9, 5, 1), ADDRESS
    )
    pids = [worker.process.pid for worker in engine.crew.others]
    assert len(pids) == 1
    del engine
    gc.collect()
    assert _wait_until(lambda: all(_is_gone(pid) for pid in pids))


def _in_a_pool(n: int) -> list[float]:
    return Squares(2).all(list(range(n)))[0].tolist()


@LINUX
def test_a_process_that_must_not_have_children_works_alone() -> None:
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.apply(_in_a_pool, (4,)) == [0, 1, 4, 9]


@LINUX
def test_where_no_process_can_be_had_we_work_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse() -> int:
        raise BlockingIOError("no more processes")

    monkeypatch.setattr(os, "fork", refuse)
    assert _in_a_pool(4) == [0, 1, 4, 9]
    assert "without other processes: no more processes" in caplog.text


SCRIPT = """
import os, signal, sys
from tests.engine.test_fork_pool import Squares
squares = Squares(3)
squares.all([1, 2, 3])
print(*[worker.process.pid for worker in squares.crew.others], flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@LINUX
def test_processes_end_when_we_are_killed() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    pids = [int(pid) for pid in done.stdout.split()]
    assert len(pids) == 2, done.stderr
    assert _wait_until(lambda: all(_is_gone(pid) for pid in pids))


def _clients(sizes: list[int], shape: tuple[int, ...] = (3,)) -> tuple[udjfl.Client, ...]:
    rng = np.random.default_rng(0)

    def part(n: int) -> tuple[np.ndarray, np.ndarray]:
        return rng.normal(size=(n, *shape)), rng.integers(0, 3, size=n)

    made = {f"client-{i}": (*part(n), *part(2)) for i, n in enumerate(sizes)}
    return udjfl.Federation.from_arrays(made, test=part(2), class_names="xyz").clients


def _draws() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(64, 8),
        nn.BatchNorm1d(8),
        nn.GELU(),
        nn.Dropout(0.3),
        nn.Linear(8, 3),
    )


def _trained(
    kind: Any, module: nn.Module, workers: int, rows: list[int], **work: Any
) -> LocalResult:
    engine = kind(
        copy.deepcopy(module), _clients([11, 40, 3, 25, 25, 8, 2], (1, 8, 8)), workers=workers
    )
    how = LocalTraining(
        **{
            "lr": 0.01,
            "momentum": 0.9,
            "batch_size": 9,
            "epochs": 2,
            "loss_at": "running",
            "first_step": True,
            **work,
        }
    )
    job = TrainJob(to_vector(module), buffers_to_vector(module), rows, how, ADDRESS)
    first = engine.train_many([job])[0]
    again = engine.train_many([job])[0]
    _same(first, again)
    return again


def _same(ours: LocalResult, theirs: LocalResult) -> None:
    for name in ("deltas", "losses", "steps", "buffers", "first_deltas"):
        assert torch.equal(getattr(ours, name), getattr(theirs, name)), name


def _tilted(
    losses: Tensor, weights: Tensor, groups: Tensor | None, multipliers: Tensor | None
) -> Tensor:
    return (losses.square() * weights).sum(dim=1) * (1 if multipliers is None else multipliers)


@pytest.mark.parametrize("objective", [None, _tilted])
@pytest.mark.parametrize(
    ("kind", "make"),
    [
        (SerialEngine, _draws),
        (SerialEngine, lambda: cnn((1, 8, 8), 3)),
        (StackedEngine, lambda: mlp((1, 8, 8), 3)),
    ],
)
def test_the_number_of_workers_changes_no_bit(
    kind: Any, make: Callable[[], nn.Module], objective: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However little there is to do, it is shared; chunks of one or two clients make several pieces."""
    monkeypatch.setattr(stacked, "CHUNK_FLOPS", 1)
    monkeypatch.setattr(stacked, "WORTH_SHARING", 0)
    monkeypatch.setattr(serial, "WORTH_SHARING", 0)
    rows = [0, 1, 3, 4, 5, 3]
    multipliers = None if objective is None else torch.arange(1.0, 7.0)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = make()
    one, *others = (
        _trained(kind, module, workers, rows, objective=objective, multipliers=multipliers)
        for workers in (1, 2, 3, 4)
    )
    for other in others:
        _same(one, other)


def test_a_client_that_cannot_train_is_named_whoever_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(serial, "WORTH_SHARING", 0)
    for workers in (1, 2):
        with pytest.raises(DataError, match="'client-5' cannot train this model"):
            _trained(SerialEngine, _draws(), workers, list(range(7)), batch_size=7)


def test_a_client_is_pickled_without_the_data_of_the_others() -> None:
    many = _clients([50] * 40, (64,))
    assert len(pickle.dumps(many[0])) < 40_000
    again = pickle.loads(pickle.dumps(many[3]))
    assert torch.equal(again.train.x, many[3].train.x)


def test_rows_that_do_not_follow_each_other_are_copied() -> None:
    base = torch.arange(12.0).view(4, 3)
    assert joined([base[:2], base[2:]]).data_ptr() == base.data_ptr()
    assert (
        joined([base[::2][:1], base[1:2]]).tolist() == base[:2].tolist()
    )  # the stride of a single row says nothing
    assert joined([base[2:], base[:2]]).tolist() == [*base[2:].tolist(), *base[:2].tolist()]


def test_much_data_is_copied_into_aligned_memory_of_its_own() -> None:
    """Where a matrix begins must not depend on how much data there is: a product would add up in another order."""
    parts = [
        torch.randn(n, 3, 7, generator=torch.Generator().manual_seed(n))
        for n in (30_000, 1, 40_000)
    ]
    assert sum(part.nbytes for part in parts) > LARGE
    together = joined(parts)
    assert torch.equal(together, torch.cat(parts))
    assert together.data_ptr() % 64 == 0
    assert joined(together.split([30_001, 40_000])).data_ptr() == together.data_ptr()
    labels = [part[:, 0, 0].long() for part in parts for _ in range(8)]
    assert torch.equal(joined(labels), torch.cat(labels))
    with pytest.raises(RuntimeError, match="Sizes of tensors must match"):
        joined([parts[0], torch.zeros(400_000, 2, 7)])


def test_images_whose_channels_come_first_stay_so_where_a_network_needs_it() -> None:
    """A `view` of what a convolution made only works in the usual layout."""

    class Viewed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Conv2d(1, 4, 3, padding=1), nn.Linear(4 * 64, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(self.first(x).relu().view(len(x), -1))

    assert SerialEngine(Viewed(), _clients([4, 4], (1, 8, 8)))._layout is torch.preserve_format
    assert (
        SerialEngine(cnn((1, 8, 8), 3), _clients([4, 4], (1, 8, 8)))._layout is torch.channels_last
    )
    _trained(SerialEngine, Viewed(), 1, [0, 1])


def test_spread_keeps_the_order_and_passes_errors_on() -> None:
    assert spread([lambda i=i: i * i for i in range(20)], 3) == [i * i for i in range(20)]

    def fail() -> int:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        spread([lambda: 1, fail, lambda: 2], 2)
    assert cores() >= 1


def test_spread_has_the_workers_that_are_allowed() -> None:
    def who() -> set[int]:
        return set(spread([lambda: time.sleep(0.01) or threading.get_ident() for _ in range(8)]))

    assert who() == {threading.get_ident()}
    with sharing(2):
        assert threading.get_ident() not in who()
    assert who() == {threading.get_ident()}
