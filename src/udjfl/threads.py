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
_under_way: Future[Any] | None = None


def aside(work: Callable[[], Piece]) -> Callable[[], Piece]:
    """Do something while the caller goes on, on one core. What is returned waits for it, and gives its result or its error."""
    global _under_way

    def alone() -> Piece:
        _here.is_aside = True
        return work()

    found = _one_more().submit(alone)
    _under_way = found
    return found.result


def rest() -> None:
    """Wait until nothing is done aside: a process forked meanwhile would find the locks of that thread locked for ever."""
    if _under_way is not None:
        wait([_under_way])


def forget() -> None:
    """In a forked process: the threads of its parent are not here."""
    global _allowed, _under_way
    _allowed, _under_way = 1, None
    _pool.cache_clear()
    _one_more.cache_clear()


@functools.cache
def _pool(workers: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(workers, thread_name_prefix="udjfl")


@functools.cache
def _one_more() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, thread_name_prefix="udjfl aside")
