"""Rows of tensors copied into a file that is mapped into memory, for data larger than memory."""

from __future__ import annotations

import errno
import mmap
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import torch
from torch import Tensor

from udjfl.errors import DataError

ROWS_AT_ONCE = 4096


def copy_rows(pairs: Sequence[tuple[Tensor, Tensor]], folder: Path) -> list[Tensor]:
    """Copy rows of tensors, each with the indices of its rows, into a new file; return views.

    They are adjacent, in the order given. The file is in the folder, or where temporary files are
    if nothing can be written there. It has no name: it is gone when nothing uses it any more.
    """
    first = pairs[0][0]
    sizes = [len(indices) for _, indices in pairs]
    shape = (sum(sizes), *first.shape[1:])
    size = torch.Size(shape).numel() * first.element_size()
    with _open_file(folder, size) as file:
        memory = mmap.mmap(file.fileno(), size)
    joined = torch.frombuffer(memory, dtype=first.dtype).view(shape)
    views = list(torch.split(joined, sizes))
    for (rows, indices), view in zip(pairs, views, strict=True):
        for start in range(0, len(indices), ROWS_AT_ONCE):
            chosen = indices[start : start + ROWS_AT_ONCE]
            torch.index_select(rows, 0, chosen, out=view[start : start + len(chosen)])
    return views


def _open_file(folder: Path, size: int) -> IO[bytes]:
    """Open a file without a name, with its space on the disk reserved."""
    for place in (str(folder), tempfile.gettempdir()):
        try:
            file = tempfile.TemporaryFile(dir=place)  # noqa: SIM115 - the caller closes it
        except OSError:  # nothing can be written there
            continue
        try:
            _reserve(file.fileno(), size)
        except OSError as error:
            file.close()
            if error.errno != errno.ENOSPC:
                raise
            continue
        return file
    raise DataError(
        f"{size / 1e9:.1f} GB are needed on the disk of {folder}, or of {tempfile.gettempdir()}, "
        "for parts of data that are read from there; make room, or name another folder in TMPDIR"
    )


def _reserve(descriptor: int, size: int) -> None:
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size)
    else:  # macOS
        os.ftruncate(descriptor, size)
