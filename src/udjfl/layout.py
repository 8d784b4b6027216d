"""Tensors that lie one after another in memory, as one tensor, without a copy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def joined(parts: Sequence[Tensor]) -> Tensor:
    """All parts one after the other, along their first axis: the memory they share, if they lie in it like that, or a copy."""
    import torch

    first = parts[0]
    if not lie_in_a_row(parts):
        return torch.cat(list(parts))
    shape = (sum(len(part) for part in parts), *first.shape[1:])
    return first.as_strided(shape, first.stride(), first.storage_offset())


def lie_in_a_row(parts: Sequence[Tensor]) -> bool:
    """Whether each part begins in memory where the one before it ends, and all are alike but for their first axis."""
    first = parts[0]
    memory, place = first.untyped_storage().data_ptr(), first.storage_offset()
    for part in parts:
        if (
            not part.is_contiguous()
            or part.dtype != first.dtype
            or part.shape[1:] != first.shape[1:]
            or part.untyped_storage().data_ptr() != memory
            or part.storage_offset() != place
        ):
            return False
        place += part.numel()
    return place > first.storage_offset()
