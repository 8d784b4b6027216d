"""The fingerprint of a federation: one text for equal data, another for every other data."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import torch

from udjfl.data.examples import Client
from udjfl.data.partition import IndexArray
from udjfl.data.validation import Part

FEATURE_BYTES = {
    torch.float32: "<f4",
    torch.uint8: "<u1",
    torch.int16: "<i2",
    torch.int32: "<i4",
    torch.int64: "<i8",
}


def compute_fingerprint(
    class_names: Sequence[str],
    parts: Sequence[Part],
    clients: Sequence[Client],
    *,
    with_all: bool = True,
) -> str:
    """Return SHA-256 over everything that training and measuring read.

    What only some data have is added where it is there, so that the fingerprint of all others does
    not depend on it. Unless `with_all`, it is that of earlier versions: without the sensitive
    attribute of test parts, and without the groups that stay together.
    """
    digest = hashlib.sha256(repr(tuple(class_names)).encode())
    for part in parts:
        digest.update(repr((part.client, part.side, part.example_shape, len(part.y))).encode())
        if not part.x.is_floating_point():
            digest.update(str(part.x.dtype).encode())
        digest.update(_as_bytes(part.x, FEATURE_BYTES[part.x.dtype]))
        digest.update(_as_bytes(part.y, "<f4" if part.y.is_floating_point() else "<i8"))
    for client in clients:
        if client.train.group is not None:
            digest.update(b"groups")
            digest.update(_as_bytes(client.train.group, "<i8"))
    if with_all:
        for column in _find_optional(clients):
            digest.update(column)
    return digest.hexdigest()


def _find_optional(clients: Sequence[Client]) -> list[bytes | memoryview]:
    """Return the columns that only some data have, each after its name and client."""
    columns: list[bytes | memoryview] = []
    for client in clients:
        if client.test.group is not None:
            columns.append(repr(("test groups", client.id)).encode())
            columns.append(_as_bytes(client.test.group, "<i8"))
    grouped = [
        (client.id, side, together.cpu().numpy())
        for client in clients
        for side, together in (("train", client.train.together), ("test", client.test.together))
        if together is not None
    ]
    if grouped:
        # The numbers of groups are arbitrary: count them by where they occur first.
        numbers = _number_by_occurrence(np.concatenate([own for _, _, own in grouped]))
        ends = np.cumsum([len(own) for _, _, own in grouped])
        for (client_id, side, _), own in zip(grouped, np.split(numbers, ends[:-1]), strict=True):
            columns.append(repr(("together", client_id, side)).encode())
            columns.append(own.astype("<i8").data)
    return columns


def _number_by_occurrence(values: IndexArray) -> IndexArray:
    """Return 0 for the first value and all that equal it, 1 for the next other one, ..."""
    _, first, inverse = np.unique(values, return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[inverse]


def _as_bytes(values: torch.Tensor, dtype: str) -> memoryview:
    return np.ascontiguousarray(values.detach().cpu().numpy(), dtype=dtype).reshape(-1).data
