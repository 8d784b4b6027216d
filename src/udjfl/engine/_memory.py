"""Memory that is freed stays with the process, to be used again."""

from __future__ import annotations

import ctypes
import functools
import sys

# Of glibc's malloc.h.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
# Older versions refuse more than the second.
KEPT_BYTES = (1 << 30, 32 << 20)


@functools.cache
def keep_freed_memory() -> None:
    """Ask the C library not to hand freed memory back to the system, but for very large pieces.

    Each step of training frees what the next one allocates. By default large pieces go back to the system in between, and come
    back as pages to be cleared one by one at their first touch, for which all threads of a process wait for one another: that
    was a third of the time of a CNN, and most of it for the updates of 500 clients (benchmarks/). The peak does not change.
    For the process as a whole, and only where the C library is glibc; elsewhere nothing happens.
    """
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None and any(mallopt(M_MMAP_THRESHOLD, size) for size in KEPT_BYTES):
        mallopt(M_TRIM_THRESHOLD, KEPT_BYTES[0])
