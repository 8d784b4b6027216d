"""Tensors that are adjacent in memory as one tensor."""

from __future__ import annotations

import pytest
import torch

from udjfl.data._contiguous import (
    HUGE_PAGE_BYTES,
    concatenate,
    concatenate_known,
    split_known,
)


def test_adjacent_rows_are_not_copied_and_others_are() -> None:
    base = torch.arange(12.0).view(4, 3)
    assert concatenate([base[:2], base[2:]]).data_ptr() == base.data_ptr()
    # The stride of a single row says nothing.
    assert concatenate([base[::2][:1], base[1:2]]).tolist() == base[:2].tolist()
    assert concatenate([base[2:], base[:2]]).tolist() == [*base[2:].tolist(), *base[:2].tolist()]


def test_a_column_is_joined_only_if_every_part_has_it() -> None:
    one, two = torch.tensor([1.0]), torch.tensor([2.0, 3.0])
    joined = concatenate_known([one, two])
    assert joined is not None
    assert joined.tolist() == [1, 2, 3]
    assert [part.tolist() for part in split_known(joined, [one, two]) if part is not None] == [
        [1],
        [2, 3],
    ]
    assert concatenate_known([one, None]) is None
    assert split_known(None, [one, None]) == [one, None]


def test_large_data_is_copied_into_aligned_memory() -> None:
    """Where a matrix begins must not depend on the amount of data, or a sum may have other bits."""
    parts = [
        torch.randn(n, 3, 7, generator=torch.Generator().manual_seed(n))
        for n in (30_000, 1, 40_000)
    ]
    assert sum(part.nbytes for part in parts) > HUGE_PAGE_BYTES
    whole = concatenate(parts)
    assert torch.equal(whole, torch.cat(parts))
    assert whole.data_ptr() % 64 == 0
    assert concatenate(whole.split([30_001, 40_000])).data_ptr() == whole.data_ptr()
    labels = [part[:, 0, 0].long() for part in parts for _ in range(8)]
    assert torch.equal(concatenate(labels), torch.cat(labels))
    with pytest.raises(RuntimeError, match="Sizes of tensors must match"):
        concatenate([parts[0], torch.zeros(400_000, 2, 7)])
