"""Tensors in messages: what a reply may contain is checked before anything is unpacked."""

from __future__ import annotations

import contextlib
import json
import tracemalloc
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("flwr")

from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from udjfl.flower import tensors
from udjfl.flower.tensors import (
    TensorLimit,
    allowed_tensors,
    describe_tensors,
    find_forbidden,
    make_records,
    pack,
    tensors_of,
    unpack,
    values_of,
)

CLAIM = {"dtype": "F32", "shape": [3], "data_offsets": [0, 12]}


def make_packed(values: bytes, **claims: Any) -> bytes:
    """Return packed tensors whose header may claim anything."""
    header = json.dumps(claims).encode()
    return len(header).to_bytes(8, "little") + header + values


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
    read = unpack(pack({"a": tensor, "again": tensor}))["a"]  # which share their memory
    assert (read.dtype, read.shape) == (tensor.dtype, tensor.shape)
    torch.testing.assert_close(read, tensor, rtol=0, atol=0, equal_nan=True)
    read.add_(1) if read.dtype != torch.bool else read.logical_not_()  # it can be written to


def test_no_tensors_are_no_bytes() -> None:
    assert pack({}) == b""
    assert unpack(b"") == {}
    assert set(make_records({"round": 1}, b"")["config"]) == {"round"}


LIES = {
    "a shape beyond its bytes": make_packed(bytes(12), a={**CLAIM, "shape": [10**13]}),
    "bytes beyond its shape": make_packed(bytes(16), a=CLAIM),
    "bytes that are not there": make_packed(bytes(8), a=CLAIM),
    "a negative shape": make_packed(bytes(12), a={**CLAIM, "shape": [-1, -3]}),
    "an unknown dtype": make_packed(bytes(12), a={**CLAIM, "dtype": "O"}),
    "overlapping tensors": make_packed(bytes(12), a=CLAIM, b=CLAIM),
    "a header that is no table": make_packed(bytes(12), a=3),
    "a header beyond the bytes": b"\xff" * 20,
    "half a length": b"\x01\x00",
}


@pytest.mark.parametrize("packed", LIES.values(), ids=list(LIES))
def test_bytes_that_are_not_what_they_claim_are_refused(packed: bytes) -> None:
    with pytest.raises(Exception, match=r"."):
        unpack(packed)


@given(st.binary(max_size=60), st.integers(0, 200))
def test_changed_bytes_are_refused_or_read_within_their_size(noise: bytes, start: int) -> None:
    """Whatever a client sends, no more memory is taken than a few times what arrived."""
    whole = pack({"delta": torch.arange(9.0)})
    content = RecordDict(
        {**make_records({"client-id": "a"}, whole[:start] + noise + whole[start + len(noise) :])}
    )
    read: dict[str, torch.Tensor] = {}
    tracemalloc.start()
    with contextlib.suppress(Exception):  # any error is reported as an unreadable reply
        if find_forbidden(content, {"delta": TensorLimit(torch.float32, 9)}) is None:
            read = tensors_of(content)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert all(name == "delta" and tensor.numel() <= 9 for name, tensor in read.items())
    assert peak < 10**6


def test_large_messages_are_cut_into_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensors, "PIECE_BYTES", 50)
    shared, own = {"model": torch.arange(40.0)}, {"personal": torch.arange(30.0)}
    content = RecordDict({**make_records({"round": 1}, pack(shared), pack(own))})
    assert all(len(record["tensors"]) <= 50 for record in content.config_records.values())
    assert len(content) > 6
    read = tensors_of(content)
    assert {name: tensor.tolist() for name, tensor in read.items()} == {
        name: tensor.tolist() for name, tensor in {**shared, **own}.items()
    }
    assert values_of(content) == {"round": 1}
    reply = RecordDict({**make_records({}, pack(shared))})
    assert find_forbidden(reply, {"model": TensorLimit(torch.float32, 40)}) is None
    assert describe_tensors(reply) == {"model": "[40] float32"}
    del reply["config-1"]  # the others are not read
    assert find_forbidden(reply, {"model": TensorLimit(torch.float32, 40)}) == (
        "config-2",
        tensors.NOT_ASKED_FOR,
    )


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
        return find_forbidden(RecordDict({**make_records({}, pack({**good, **changes}))}), allowed)

    assert find() is None
    assert find(delta=torch.zeros(4, dtype=torch.float64)) == (
        "delta",
        "has dtype float64; it must have float32",
    )
    assert find(delta=torch.zeros(1000)) == ("delta", "has 1000 numbers; it may have 4")
    assert find(**{"x" * 1000: torch.zeros(1)})[0] == "x" * 40
    records = make_records({}, pack(good))
    for more in (ArrayRecord({}), ConfigRecord({"tensors": pack(good)})):
        assert find_forbidden(RecordDict({**records, "more": more}), allowed)[0] == "more"
    own = RecordDict({**make_records({}, pack(good), pack(good))})
    assert find_forbidden(own, allowed) == ("own", tensors.NOT_ASKED_FOR)


def test_replies_without_update_or_buffers_have_none() -> None:
    assert allowed_tensors(4, torch.float32, None, {}) == {}
    assert set(allowed_tensors(4, torch.float32, 0, {})) == {"delta"}
