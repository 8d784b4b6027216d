"""Tensors in messages: what a reply may contain is checked before anything is unpacked."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, RecordDict

from udjfl.flower.tensors import (
    TensorLimit,
    allowed_tensors,
    find_forbidden,
    to_array,
    to_arrays,
    unpack,
)


def make_array(header: dict[str, Any], values: bytes) -> Array:
    """Make an array whose header may claim anything."""
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, header)
    return Array("float32", (3,), "numpy.ndarray", stream.getvalue() + values)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor(1.5),
        torch.zeros(0),
        torch.arange(6.0).view(2, 3),
        torch.arange(6.0).view(2, 3).T,
        torch.tensor([1, 2]),
        torch.tensor([True, False]),
        torch.tensor([0.1, float("nan")], dtype=torch.float64),
    ],
    ids=["number", "empty", "table", "transposed", "whole", "flags", "nan"],
)
def test_a_tensor_is_unpacked_as_it_was(tensor: torch.Tensor) -> None:
    read = unpack(to_array(tensor))
    assert (read.dtype, read.shape) == (tensor.dtype, tensor.shape)
    torch.testing.assert_close(read, tensor, rtol=0, atol=0, equal_nan=True)
    read.add_(1) if read.dtype != torch.bool else read.logical_not_()  # it can be written to


def test_columns_may_come_first() -> None:
    table = np.asfortranarray(np.arange(6.0).reshape(2, 3))
    assert unpack(Array(table)).tolist() == table.tolist()


HEADER = {"descr": "<f4", "fortran_order": False, "shape": (3,)}
LIES = {
    "a shape beyond its bytes": make_array({**HEADER, "shape": (10**13,)}, bytes(12)),
    "bytes beyond its shape": make_array(HEADER, bytes(16)),
    "a negative shape": make_array({**HEADER, "shape": (-1, -3)}, bytes(12)),
    "objects": make_array({**HEADER, "descr": "|O"}, bytes(24)),
    "another format": Array("float32", (3,), "torch", to_array(torch.zeros(3)).data),
    "a later version": Array("f", (3,), "numpy.ndarray", b"\x93NUMPY\x03\x00" + bytes(80)),
    "nothing": Array("float32", (3,), "numpy.ndarray", b""),
}


@pytest.mark.parametrize("array", LIES.values(), ids=list(LIES))
def test_bytes_that_are_not_what_they_claim_are_refused(array: Array) -> None:
    with pytest.raises((ValueError, TypeError)):
        unpack(array)


def test_only_what_is_allowed_passes() -> None:
    allowed = allowed_tensors(4, torch.float32, 2, {"scores": 1, "first_deltas": 4})
    assert allowed == {
        "delta": TensorLimit(torch.float32, 4),
        "buffers": TensorLimit(torch.float64, 2),
        "extra.scores": TensorLimit(torch.float64, 1),
        "extra.first_deltas": TensorLimit(torch.float32, 4),
    }
    good = {"delta": torch.zeros(4), "buffers": torch.zeros(2, dtype=torch.float64)}

    def find(**changes: torch.Tensor) -> tuple[str, str] | None:
        return find_forbidden(RecordDict({"arrays": to_arrays({**good, **changes})}), allowed)

    assert find() is None
    assert find(delta=torch.zeros(4, dtype=torch.float64)) == (
        "delta",
        "has dtype float64; it must have float32",
    )
    assert find(delta=torch.zeros(4, dtype=torch.complex64))[1].startswith("has dtype complex64")
    assert "bytes; it may have" in find(delta=torch.zeros(1000))[1]
    assert find(**{"x" * 1000: torch.zeros(1)})[0] == "x" * 40
    two = RecordDict({"arrays": to_arrays(good), "more": ArrayRecord({})})
    assert find_forbidden(two, allowed)[0] == "more"


def test_replies_without_update_or_buffers_have_none() -> None:
    assert allowed_tensors(4, torch.float32, None, {}) == {}
    assert set(allowed_tensors(4, torch.float32, 0, {})) == {"delta"}
