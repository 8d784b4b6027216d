"""Independent pieces of work on several cores of this process: for few large operations, which let go of Python's lock."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Piece = TypeVar("Piece")


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def spread(pieces: Sequence[Callable[[], Piece]], workers: int | None = None) -> list[Piece]:
    """The results of all pieces, in their order. An exception in one of them is raised here.

    Without `workers` there are as many as `sharing` allows here, and one elsewhere.
    """
    workers = _allowed if workers is None else workers
    if workers <= 1 or len(pieces) <= 1:
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


def forget() -> None:
    """In a forked process: the threads of its parent are not here."""
    global _allowed
    _allowed = 1
    _pool.cache_clear()


@functools.cache
def _pool(workers: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(workers, thread_name_prefix="udjfl")
