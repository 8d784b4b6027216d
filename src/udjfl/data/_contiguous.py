"""Tensors that are adjacent in memory, joined to one tensor without a copy."""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

HUGE_PAGE_BYTES = 4 << 20  # tensors of at least this size are copied into huge pages


def concatenate(parts: Sequence[Tensor]) -> Tensor:
    """Join tensors along their first axis: a view if they are adjacent in memory, else a copy."""
    first = parts[0]
    if any(part.shape[1:] != first.shape[1:] for part in parts) or not _are_adjacent(parts):
        return _copy(parts)
    shape = (sum(len(part) for part in parts), *first.shape[1:])
    strides = (first.shape[1:].numel(), *first.stride()[1:])
    return first.as_strided(shape, strides, first.storage_offset())


def concatenate_known(columns: Sequence[Tensor | None]) -> Tensor | None:
    """Join a column of all parts; None unless every part has it."""
    known = [column for column in columns if column is not None]
    return concatenate(known) if len(known) == len(columns) else None


def split_known(joined: Tensor | None, columns: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    """Cut a joined column into parts of the same sizes; `columns` as they are without it."""
    if joined is None:
        return columns
    import torch

    return torch.split(joined, [len(column) for column in columns if column is not None])


def _copy(parts: Sequence[Tensor]) -> Tensor:
    """Join tensors in new memory, which consists of huge pages if it is large.

    Batches are gathered from all over a client's data: with pages of 4 kB nearly every example
    costs a walk through the page tables (`python -m benchmarks tricks` measures it).
    """
    import torch

    first, size = parts[0], sum(part.nbytes for part in parts)
    formats = {(part.device.type, part.dtype, part.shape[1:]) for part in parts}
    uniform = formats == {("cpu", first.dtype, first.shape[1:])}
    if not uniform or size < HUGE_PAGE_BYTES or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.cat(list(parts))
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel without huge pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    rows = torch.frombuffer(memory, dtype=first.dtype).view(-1, *first.shape[1:])
    return torch.cat(list(parts), out=rows)


def _are_adjacent(parts: Sequence[Tensor]) -> bool:
    """Return whether each part begins in memory where the one before it ends."""
    first = parts[0]
    memory, offset = first.untyped_storage().data_ptr(), first.storage_offset()
    for part in parts:
        if (
            part.storage_offset() != offset
            or not part.is_contiguous()
            or part.dtype != first.dtype
            or part.untyped_storage().data_ptr() != memory
        ):
            return False
        offset += part.numel()
    return offset > first.storage_offset()
