"""Independent pieces of work on all cores. What a piece computes depends on neither who computes it nor how many there are.

Training goes to a `Crew`: processes forked from this one, each running torch on one thread. A step of training is a few dozen
small operations, between which threads of one process would wait for Python's lock; and threads inside one operation all stand
still when one of them is delayed by a busy neighbour. A forked process has the data and the model without a copy, and needs
neither an importable main module nor time to start. What it found comes back through memory that both share.

Work in few large operations, such as evaluation, is spread over threads, which share all memory.
"""

from __future__ import annotations

import contextlib
import functools
import mmap
import multiprocessing
import os
import pickle
import signal
import sys
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Any, TypeVar

import torch
from torch import Tensor

Piece = TypeVar("Piece")
Found = dict[str, Tensor]
# Gives memory for a result: its name, shape and type.
NewTensor = Callable[[str, Sequence[int], torch.dtype], Tensor]
# From a task and the number of one of its pieces to what was found, in memory that was asked for, or other.
Doer = Callable[[Any, int, NewTensor], Found]
ALIGNMENT = 64
CANNOT_BE_SENT = (pickle.PicklingError, AttributeError, TypeError)


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def spread(pieces: Sequence[Callable[[], Piece]], workers: int) -> list[Piece]:
    """The results of all pieces, in their order, by threads. An exception in one of them is raised here."""
    if workers <= 1 or len(pieces) <= 1:
        return [piece() for piece in pieces]
    return list(_pool(workers).map(lambda piece: piece(), pieces))


@functools.cache
def _pool(workers: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(workers, thread_name_prefix="udjfl")


class Crew:
    """This process and some forked from it, that share out the pieces of one task at a time.

    What does the pieces is a bound method, held weakly, since its owner holds the crew. It runs in copies of this process as it
    was at the first task. Where processes cannot be forked, a task cannot be sent to them, or one of them dies, this process
    does the work itself.
    """

    def __init__(self, do: Doer, workers: int) -> None:
        self.do = weakref.WeakMethod(do)
        self.workers = workers
        self.room = 0
        self.others: list[_Worker] = []
        self.counter: Any = None

    def run(
        self,
        task: object,
        pieces: int,
        memory: Callable[[int], NewTensor],
        take: Callable[[int, Found], None],
        room: int,
    ) -> None:
        """Do all pieces, in any order; `take` is given the number of each and what was found.

        `memory(number)` is where this process puts what it finds. What others find lies in memory that the next task uses
        again: copy it. `room` is an estimate of how many bytes all pieces find. Of several errors that of the first piece is
        raised.
        """
        do = self.do()
        assert do is not None, "its owner is at work"
        others = self._hired(task, pieces, do, room)
        errors: dict[int, BaseException] = {}
        left = set(range(pieces))
        for number in self._numbers(pieces) if others else range(pieces):
            left.discard(number)
            try:
                take(number, do(task, number, memory(number)))
            except Exception as error:
                errors[number] = error
                if not others:
                    break
        for worker in others:
            for number, found in worker.answer().items():
                left.discard(number)
                if isinstance(found, BaseException):
                    errors[number] = found
                else:
                    take(number, found)
        if errors:
            raise errors[min(errors)]
        for number in sorted(left):  # those of a worker that died
            take(number, do(task, number, memory(number)))

    def dismiss(self) -> None:
        """End the other processes. The next task forks new ones."""
        for worker in self.others:
            worker.stop()
        self.others = []

    def _hired(self, task: object, pieces: int, do: Doer, room: int) -> list[_Worker]:
        """The other processes, already at work on the task; none, if there cannot be any."""
        if self.workers <= 1 or pieces <= 1 or not sys.platform.startswith("linux"):
            return []
        try:
            message = pickle.dumps((task, pieces), protocol=pickle.HIGHEST_PROTOCOL)
        except CANNOT_BE_SENT:
            return []
        if self.room < room or not all(worker.process.is_alive() for worker in self.others):
            self.dismiss()
        if not self.others:
            self.room = max(self.room, room)
            context = multiprocessing.get_context("fork")
            self.counter = context.Value("q", 0)
            self.others = [_Worker(context, do, self.counter, self.room) for _ in range(self.workers - 1)]
        self.counter.value = 0
        for worker in self.others:
            worker.ask(message)
        return self.others

    def _numbers(self, pieces: int) -> Iterator[int]:
        """Numbers of pieces that nobody else has begun."""
        while (number := _next(self.counter)) < pieces:
            yield number


class _Worker:
    """One forked process, from outside."""

    def __init__(self, context: Any, do: Doer, counter: Any, room: int) -> None:
        self.memory = mmap.mmap(-1, max(room, mmap.PAGESIZE))  # shared with what is forked
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, self.pipe, do, counter, self.memory), daemon=True)
        with warnings.catch_warnings():
            # Python warns of forking beside threads, whose locks stay locked in the copy. What runs there takes none of them.
            warnings.simplefilter("ignore", DeprecationWarning)
            self.process.start()
        theirs.close()

    def ask(self, message: bytes) -> None:
        with contextlib.suppress(OSError):  # it died: `answer` will tell
            self.pipe.send_bytes(message)

    def answer(self) -> dict[int, Found | BaseException]:
        """What it found, by piece; nothing, if it died."""
        try:
            results: dict[int, Any] = pickle.loads(self.pipe.recv_bytes())
        except (EOFError, OSError):
            return {}
        whole = torch.frombuffer(self.memory, dtype=torch.uint8)
        for number, found in results.items():
            if isinstance(found, dict):
                places = {name: place for name, place in found.items() if isinstance(place, tuple)}
                results[number] = {**found, **{name: _in_memory(whole, *place) for name, place in places.items()}}
        return results

    def stop(self) -> None:
        """It holds nothing that could be lost, so nobody waits for its end; whoever starts a process next sees it off."""
        self.pipe.close()
        self.process.terminate()


def _serve(pipe: Connection, parents: Connection, do: Doer, counter: Any, memory: mmap.mmap) -> None:
    """What a forked process does until its parent is gone."""
    parents.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, who ends us
    torch.set_num_threads(1)
    while True:
        try:
            message = pipe.recv_bytes()
        except (EOFError, OSError):
            return
        shared = _Shared(memory)
        results: dict[int, Any] = {}
        task, pieces = pickle.loads(message)
        while (number := _next(counter)) < pieces:
            try:
                found = do(task, number, shared.new_tensor)
                results[number] = {name: shared.place_of(value) for name, value in found.items()}
            except Exception as error:
                results[number] = error
        pipe.send_bytes(_pickled(results))


def _next(counter: Any) -> int:
    with counter.get_lock():
        number = int(counter.value)
        counter.value = number + 1
        return number


def _pickled(results: dict[int, Any]) -> bytes:
    try:
        return pickle.dumps(results)
    except Exception:  # an error that cannot be sent: its text can
        return pickle.dumps({n: RuntimeError(repr(r)) if isinstance(r, Exception) else r for n, r in results.items()})


class _Shared:
    """Tensors in memory that is shared with the parent, one after another, while there is room."""

    def __init__(self, memory: mmap.mmap) -> None:
        self.whole = torch.frombuffer(memory, dtype=torch.uint8)
        self.begin = self.whole.data_ptr()
        self.used = 0

    def new_tensor(self, name: str, shape: Sequence[int], dtype: torch.dtype) -> Tensor:  # noqa: ARG002 - all in one place
        size = torch.Size(shape).numel() * dtype.itemsize
        if self.used + size > len(self.whole):
            return torch.empty(tuple(shape), dtype=dtype)
        found = _in_memory(self.whole, self.used, tuple(shape), dtype)
        self.used += -(-size // ALIGNMENT) * ALIGNMENT
        return found

    def place_of(self, value: Tensor) -> tuple[int, tuple[int, ...], torch.dtype] | Tensor:
        """Where a tensor lies in the shared memory; itself, to be sent, if it does not."""
        start = value.data_ptr() - self.begin
        inside = value.numel() > 0 and 0 <= start < self.used and value.is_contiguous()
        return (start, tuple(value.shape), value.dtype) if inside else value


def _in_memory(whole: Tensor, start: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    size = torch.Size(shape).numel() * dtype.itemsize
    return whole[start : start + size].view(dtype).view(shape)
