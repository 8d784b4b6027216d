"""Memory: tables that forked processes share, and a setting of the C library's allocator."""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Tables = dict[str, Tensor]
Shapes = Mapping[str, tuple[Sequence[int], torch.dtype]]
ALIGNMENT = 64  # bytes; every table begins at a multiple of it
# Of glibc's malloc.h.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
# The thresholds to try: older versions of glibc refuse more than the second.
THRESHOLDS = (1 << 30, 32 << 20)


@dataclass(eq=False)
class SharedArea:
    """Memory shared with forked processes. It is free again when no tensor refers to it."""

    memory: mmap.mmap
    view: weakref.ref[memoryview] | None = None

    @staticmethod
    def allocate(size: int) -> SharedArea:
        return SharedArea(mmap.mmap(-1, max(size, mmap.PAGESIZE)))

    @property
    def is_free(self) -> bool:
        return self.view is None or self.view() is None

    def place(self, shapes: Shapes) -> Tables:
        """Return tables of these shapes, one after another in this area."""
        view = memoryview(self.memory)  # kept alive by the tensors made from it
        self.view = weakref.ref(view)
        tables, start = {}, 0
        for name, (shape, dtype) in shapes.items():
            count = torch.Size(shape).numel()
            if count:
                flat = torch.frombuffer(view, dtype=dtype, count=count, offset=start)
                tables[name] = flat.view(tuple(shape))
            else:
                tables[name] = torch.empty(tuple(shape), dtype=dtype)
            start += _padded(count * dtype.itemsize)
        return tables


def total_bytes(shapes: Shapes) -> int:
    """Return the size of an area for tables of these shapes."""
    return sum(
        _padded(torch.Size(shape).numel() * dtype.itemsize) for shape, dtype in shapes.values()
    )


def _padded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def tune_allocator() -> None:
    """Make malloc keep freed memory, in this process and in those that it starts from now on.

    Each step of training frees what the next one allocates. By default large blocks go back to the
    system in between and return as pages that are cleared one by one at their first use. This
    changes the whole process, so only the command line calls it. Without glibc nothing happens.
    """
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return
    accepted = next((size for size in THRESHOLDS if mallopt(M_MMAP_THRESHOLD, size)), None)
    if accepted is not None:
        mallopt(M_TRIM_THRESHOLD, THRESHOLDS[0])
        os.environ["MALLOC_MMAP_THRESHOLD_"] = str(accepted)
        os.environ["MALLOC_TRIM_THRESHOLD_"] = str(THRESHOLDS[0])
