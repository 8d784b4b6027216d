"""Tensors that lie one after another in memory, as one tensor, without a copy."""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

LARGE = 4 << 20  # bytes


def joined(parts: Sequence[Tensor]) -> Tensor:
    """All parts one after the other, along their first axis: the memory they share, if they lie in it like that, or a copy."""
    first = parts[0]
    if any(part.shape[1:] != first.shape[1:] for part in parts) or not _in_a_row(parts):
        return _copied(parts)
    shape = (sum(len(part) for part in parts), *first.shape[1:])
    return first.as_strided(
        shape, (first.shape[1:].numel(), *first.stride()[1:]), first.storage_offset()
    )


def _copied(parts: Sequence[Tensor]) -> Tensor:
    """All parts in new memory, which is made of large pages if there is much of it and the system has them.

    Batches are gathered from all over a client's data: with pages of 4 kB nearly every example costs a walk through the page
    tables, and gathering takes a third longer.
    """
    import torch

    first, size = parts[0], sum(part.nbytes for part in parts)
    kinds = {(part.device.type, part.dtype, part.shape[1:]) for part in parts}
    alike = kinds == {("cpu", first.dtype, first.shape[1:])}
    if not alike or size < LARGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.cat(list(parts))
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel without them
        memory.madvise(mmap.MADV_HUGEPAGE)
    rows = torch.frombuffer(memory, dtype=first.dtype).view(-1, *first.shape[1:])
    return torch.cat(list(parts), out=rows)


def table_of(rows: Sequence[Tensor]) -> Tensor | None:
    """Rows of one shape as one table, if they lie in memory like that, one after another; else None."""
    if not rows or any(row.shape != rows[0].shape for row in rows) or not _in_a_row(rows):
        return None
    return rows[0].as_strided(
        (len(rows), *rows[0].shape), (rows[0].numel(), *rows[0].stride()), rows[0].storage_offset()
    )


def _in_a_row(parts: Sequence[Tensor]) -> bool:
    """Whether each part begins in memory where the one before it ends."""
    first = parts[0]
    memory, place = first.untyped_storage().data_ptr(), first.storage_offset()
    for part in parts:
        if (
            part.storage_offset() != place
            or not part.is_contiguous()
            or part.dtype != first.dtype
            or part.untyped_storage().data_ptr() != memory
        ):
            return False
        place += part.numel()
    return place > first.storage_offset()
