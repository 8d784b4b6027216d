"""Independent pieces of work on all cores: one thread per core, each running torch on that core alone.

Torch lets go of Python's lock while it computes, so threads of one process can share large products, and share all memory.
They never wait for each other within a piece, unlike the threads inside one torch operation, which all stand still when one of
them is delayed by a busy neighbour. What a piece computes does not depend on who computes it, nor on how many there are.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Piece = TypeVar("Piece")


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def spread(pieces: Sequence[Callable[[], Piece]], workers: int) -> list[Piece]:
    """The results of all pieces, in their order. An exception in one of them is raised here."""
    if workers <= 1 or len(pieces) <= 1:
        return [piece() for piece in pieces]
    return list(_pool(workers).map(lambda piece: piece(), pieces))


@functools.cache
def _pool(workers: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(workers, thread_name_prefix="udjfl")
