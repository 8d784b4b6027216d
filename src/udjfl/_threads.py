"""Independent pieces of work on several cores of this process: for few large operations, which let go of Python's lock."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, TypeVar

Piece = TypeVar("Piece")


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def spread(pieces: Sequence[Callable[[], Piece]], workers: int | None = None) -> list[Piece]:
    """The results of all pieces, in their order. An exception in one of them is raised here.

    Without `workers` there are as many as `sharing` allows here, and one elsewhere.
    """
    workers = _allowed if workers is None else workers
    if workers <= 1 or len(pieces) <= 1 or getattr(_here, "is_aside", False):
        return [piece() for piece in pieces]
    return list(_pool(workers).map(lambda piece: piece(), pieces))


_allowed = 1


@contextlib.contextmanager
def sharing(workers: int) -> Iterator[None]:
    """Within it, `spread` has this many workers wherever it is called without a number."""
    global _allowed
    before, _allowed = _allowed, workers
    try:
        yield
    finally:
        _allowed = before


_here = threading.local()


class Aside:
    """Something that can wait: done on one core once one is free, or by whoever asks for its result before that."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self.work = work
        self.under_way: Future[Any] | None = None

    def begin(self, when: Callable[[], object]) -> Future[Any]:
        """Do it in a thread of its own, as soon as `when` returns there."""

        def alone() -> Any:
            _here.is_aside = True
            when()
            return self.work()

        self.under_way = _one_more().submit(alone)
        return self.under_way

    def result(self) -> Any:
        """Its result, or its error, which is raised."""
        global _put_aside
        if _put_aside is self:
            _put_aside = None
        return self.work() if self.under_way is None else self.under_way.result()


# What was put aside last; and what was begun last, without the work itself, which would keep all that it refers to.
_put_aside: Aside | None = None
_begun: Future[Any] | None = None


def aside(work: Callable[[], Piece]) -> Callable[[], Piece]:
    """Put something aside, to be done while the caller goes on. What is returned waits for it: its result, or its error."""
    global _put_aside
    _put_aside = Aside(work)
    return _put_aside.result


def begin_aside(when: Callable[[], object]) -> None:
    """Do what was put aside, if anything was, as soon as `when`, called in another thread, returns.

    The one who knows when a core is free says so: a thread begun at once would take its time from those at work, and the
    slowest of them would be later still.
    """
    global _begun, _put_aside
    if _put_aside is not None:
        _begun = _put_aside.begin(when)
        _put_aside = None


def rest() -> None:
    """Wait until nothing is done aside: a process forked meanwhile would find the locks of that thread locked for ever."""
    if _begun is not None:
        wait([_begun])


def forget() -> None:
    """In a forked process: the threads of its parent are not here."""
    global _allowed, _put_aside, _begun
    _allowed, _put_aside, _begun = 1, None, None
    _pool.cache_clear()
    _one_more.cache_clear()


@functools.cache
def _pool(workers: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(workers, thread_name_prefix="udjfl")


@functools.cache
def _one_more() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, thread_name_prefix="udjfl aside")
