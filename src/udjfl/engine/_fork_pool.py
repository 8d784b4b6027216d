"""Training on all cores. What a piece of it computes depends on neither who computes it nor how many there are.

A `ForkPool` is this process and others forked from it, each running torch on one thread. A step of training is a few dozen small
operations, between which threads of one process would wait for Python's lock; and threads inside one operation all stand still
when one of them is delayed by a busy neighbour. A forked process has the data and the model without a copy, and needs neither
an importable main module nor time to start. What it finds it writes into memory that both share.
"""

from __future__ import annotations

import contextlib
import logging
import mmap
import multiprocessing
import pickle
import signal
import sys
import traceback
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor

from udjfl import _threads as threads

Tables = dict[str, Tensor]
# Does the piece of a task with this number, and writes what it finds into the tables.
Doer = Callable[[Any, int, Tables], None]
Shapes = Mapping[str, tuple[Sequence[int], torch.dtype]]
ALIGNMENT = 64
# What became of a piece: an error, if one did.
Outcome = Exception | None
logger = logging.getLogger("udjfl")


def _can_fork() -> bool:
    """Not outside of Linux; nor from a process that must not have children; nor where a forked process could not compute
    gradients: beside a GPU, torch's autograd has threads of its own, which a fork does not copy."""
    return (
        sys.platform.startswith("linux")
        and not multiprocessing.current_process().daemon
        and not torch.accelerator.is_available()
    )


class ForkPool:
    """This process and some forked from it, that share out the pieces of one task at a time.

    What does the pieces is a bound method, held weakly, since its owner holds the crew. It runs in copies of this process as it
    was when they were forked, at the first task. Where processes cannot be forked, a task cannot be sent to them, or one of
    them dies, this process does the work itself.
    """

    def __init__(self, do: Doer, workers: int) -> None:
        self.do = weakref.WeakMethod(do)
        self.workers = workers if _can_fork() else 1
        self.areas: list[_Area] = []
        self.others: list[_Worker] = []
        # Shared with the others: the next piece to be done, and how many of us have found nothing left to do.
        self.counter: Any = None
        self.finished: Any = None

    def run(self, task: object, pieces: int, shapes: Shapes) -> Tables:
        """Do all pieces of a task: the tables they wrote into. Of several errors that of the first piece is raised."""
        do = self.do()
        assert do is not None, "its owner is at work"
        message = _message(task, pieces, shapes) if self.workers > 1 and pieces > 1 else None
        if message is None:
            return do_alone(do, task, pieces, shapes)
        try:
            area = self._hire(do, _bytes(shapes), min(self.workers, pieces) - 1)
        except OSError as error:  # no more processes, or no more memory, to be had
            logger.warning("Training goes on without other processes: %s.", error)
            self.dismiss()
            self.workers = 1
            return do_alone(do, task, pieces, shapes)
        before = torch.get_num_threads()
        torch.set_num_threads(1)  # as the others have
        try:
            return self._share(do, task, message, pieces, shapes, area)
        except (KeyboardInterrupt, SystemExit):
            self.dismiss()  # they are still at it
            raise
        finally:
            torch.set_num_threads(before)

    def _share(
        self, do: Doer, task: object, message: bytes, pieces: int, shapes: Shapes, area: _Area
    ) -> Tables:
        tables = _laid_out(area.lend(), shapes)
        threads.rest()  # what was begun beside an earlier task has been told of its end, and is not to miss it
        while self.finished.acquire(block=False):
            pass
        self.counter.value = 0
        for worker in self.others:
            worker.ask(self.areas.index(area), message)
        try:
            threads.begin_aside(
                self.finished.acquire if len(self.others) + 1 >= self.workers else _at_once
            )
            done = dict(_work(do, task, pieces, tables, self.counter))
        finally:
            self.finished.release()
        for worker in self.others:
            done |= worker.answer()
        if not self._is_whole():
            logger.warning("A process forked for training died; its work is done again.")
            self.dismiss()
        errors = {number: error for number, error in done.items() if isinstance(error, Exception)}
        if errors:
            raise errors[min(errors)]
        for number in range(pieces):
            if number not in done:  # of a worker that died
                do(task, number, tables)
        return tables

    def _is_whole(self) -> bool:
        """Whether all other processes are alive."""
        return all(worker.process.is_alive() for worker in self.others)

    def dismiss(self) -> None:
        """End the other processes. The next task forks new ones."""
        for worker in self.others:
            worker.stop()
        self.others = []

    def _hire(self, do: Doer, room: int, count: int) -> _Area:
        """Have the other processes ready, and shared memory of this size that nobody looks at any more."""
        free = [area for area in self.areas if area.is_free and len(area.memory) >= room]
        if not free or not self._is_whole() or len(self.others) < count:
            self.dismiss()
        if not free:  # they share what there is when they are forked
            self.areas = [area for area in self.areas if not area.is_free]
            free = [
                _Area(mmap.mmap(-1, max(room, mmap.PAGESIZE))),
                _Area(mmap.mmap(-1, max(room, mmap.PAGESIZE))),
            ]
            self.areas += free
        if not self.others:
            threads.rest()
            context = multiprocessing.get_context("fork")
            self.counter, self.finished = context.Value("q", 0), context.Semaphore(0)
            memories = [area.memory for area in self.areas]
            self.others = [
                _Worker(context, do, self.counter, self.finished, memories) for _ in range(count)
            ]
        return free[0]


def do_alone(
    do: Doer, task: object, pieces: int, shapes: Shapes, device: torch.device | None = None
) -> Tables:
    """All pieces of a task, one after the other."""
    tables = {
        name: torch.empty(tuple(shape), dtype=dtype, device=device)
        for name, (shape, dtype) in shapes.items()
    }
    for number in range(pieces):
        do(task, number, tables)
    return tables


@dataclass(eq=False)
class _Area:
    """Memory shared with forked processes, lent for one task's tables until nobody refers to them any more."""

    memory: mmap.mmap
    lent: weakref.ref[memoryview] | None = None

    @property
    def is_free(self) -> bool:
        return self.lent is None or self.lent() is None

    def lend(self) -> memoryview:
        view = memoryview(self.memory)  # which the tensors made from it keep alive
        self.lent = weakref.ref(view)
        return view


class _Worker:
    """One forked process, from outside."""

    def __init__(
        self, context: Any, do: Doer, counter: Any, finished: Any, memories: list[mmap.mmap]
    ) -> None:
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(
            target=_serve, args=(theirs, self.pipe, do, counter, finished, memories), daemon=True
        )
        with warnings.catch_warnings():
            # Python warns of forking beside threads, whose locks stay locked in the copy. What runs there takes none of them.
            warnings.simplefilter("ignore", DeprecationWarning)
            self.process.start()
        theirs.close()

    def ask(self, area: int, message: bytes) -> None:
        with contextlib.suppress(OSError):  # it died: `answer` will tell
            self.pipe.send(area)
            self.pipe.send_bytes(message)

    def answer(self) -> dict[int, Outcome]:
        """The pieces it did, and what became of them; nothing, if it died."""
        try:
            done: dict[int, Outcome] = pickle.loads(self.pipe.recv_bytes())
        except (EOFError, OSError):
            return {}
        return done

    def stop(self) -> None:
        """It holds nothing that could be lost, so nobody waits for its end; whoever starts a process next sees it off."""
        self.pipe.close()
        self.process.terminate()


def _serve(
    pipe: Connection,
    parents: Connection,
    do: Doer,
    counter: Any,
    finished: Any,
    memories: list[mmap.mmap],
) -> None:
    """What a forked process does until its parent is gone."""
    parents.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, who ends us
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # by this
    threads.forget()
    torch.set_num_threads(1)
    while True:
        try:
            area, message = pipe.recv(), pipe.recv_bytes()
        except (EOFError, OSError):
            return
        try:
            task, pieces, shapes = pickle.loads(message)
        except Exception:  # what can be written but not read is left to the parent
            done: dict[int, Outcome] = {}
        else:
            tables = _laid_out(memoryview(memories[area]), shapes)
            done = {
                number: _traced(outcome)
                for number, outcome in _work(do, task, pieces, tables, counter)
            }
        finished.release()
        with contextlib.suppress(OSError):
            pipe.send_bytes(_pickled(done))


def _work(
    do: Doer, task: object, pieces: int, tables: Tables, counter: Any
) -> Iterator[tuple[int, Outcome]]:
    """Do pieces that nobody else has begun, while there are any; their numbers, and what became of them."""
    while (number := _next(counter)) < pieces:
        try:
            do(task, number, tables)
        except Exception as error:
            yield number, error
        else:
            yield number, None


def _at_once() -> None:
    """There is a core that the crew has no use for."""


def _traced(outcome: Outcome) -> Outcome:
    """An error with where it happened, which is not sent along."""
    if isinstance(outcome, Exception):
        outcome.add_note(
            "In a process forked for training:\n"
            + "".join(traceback.format_tb(outcome.__traceback__))
        )
    return outcome


def _next(counter: Any) -> int:
    with counter.get_lock():
        number = int(counter.value)
        counter.value = number + 1
        return number


def _message(task: object, pieces: int, shapes: Shapes) -> bytes | None:
    """A task to be sent; None if it cannot be."""
    try:
        return pickle.dumps((task, pieces, shapes), protocol=pickle.HIGHEST_PROTOCOL)
    except Exception:  # whatever an object's own way of being written comes to
        return None


def _pickled(done: dict[int, Outcome]) -> bytes:
    try:
        message = pickle.dumps(done)
        pickle.loads(message)  # some errors can be written but not read
    except Exception:
        return pickle.dumps(
            {n: RuntimeError(repr(o)) if isinstance(o, Exception) else o for n, o in done.items()}
        )
    return message


def _bytes(shapes: Shapes) -> int:
    return sum(
        _padded(torch.Size(shape).numel() * dtype.itemsize) for shape, dtype in shapes.values()
    )


def _padded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _laid_out(memory: memoryview, shapes: Shapes) -> Tables:
    """Tables one after another in memory."""
    tables, start = {}, 0
    for name, (shape, dtype) in shapes.items():
        count = torch.Size(shape).numel()
        if count:
            tables[name] = torch.frombuffer(memory, dtype=dtype, count=count, offset=start).view(
                tuple(shape)
            )
        else:
            tables[name] = torch.empty(tuple(shape), dtype=dtype)
        start += _padded(count * dtype.itemsize)
    return tables
