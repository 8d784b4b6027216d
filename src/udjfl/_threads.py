"""Independent calls in threads of this process: for few large operations, which release the GIL."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from typing import TypeVar

Result = TypeVar("Result")

# A new thread begins with the default: calls that are made within `run_in_threads` are serial.
_limit: ContextVar[int] = ContextVar("udjfl_thread_limit", default=1)


def available_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextlib.contextmanager
def thread_limit(workers: int) -> Iterator[None]:
    """Let `run_in_threads` use this many threads within the block."""
    token = _limit.set(workers)
    try:
        yield
    finally:
        _limit.reset(token)


def run_in_threads(calls: Sequence[Callable[[], Result]]) -> list[Result]:
    """Return the results of all calls, in their order; an exception in one of them is raised here.

    The calls run one after the other unless `thread_limit` allows more.
    """
    workers = _limit.get()
    if workers <= 1 or len(calls) <= 1:
        return [call() for call in calls]
    return list(_thread_pool(workers).map(lambda call: call(), calls))


@functools.cache
def _thread_pool(workers: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(workers, thread_name_prefix="udjfl")


if hasattr(os, "register_at_fork"):  # a forked process has none of its parent's threads
    os.register_at_fork(after_in_child=_thread_pool.cache_clear)
