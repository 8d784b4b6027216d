"""Tensors in messages: how they are packed, and what a reply may contain.

All tensors of a message are one text of bytes, in the format of safetensors. Flower transfers each
part of a message with requests of its own, so that few parts are quick; only what is large is cut
into pieces. The header in front claims names, dtypes and shapes. It is compared with what is
allowed, and with the bytes that follow, before anything is unpacked: reading a message never needs
more than a small multiple of the message's own memory.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import safetensors.numpy
import torch
from flwr.app import ConfigRecord, RecordDict
from torch import Tensor

CONFIG, OWN, FIELD = "config", "own", "tensors"
DELTA, BUFFERS, EXTRA = "delta", "buffers", "extra."
# Extras that are changes of models, and have the model's dtype.
CHANGES = frozenset({"first_deltas", "personal_deltas"})
PIECE_BYTES = 4 * 2**20
LENGTH_BYTES = 8  # in front of the header
HEADER_BYTES = 1024  # more than the header has for each tensor
LONGEST_NAME = 40  # characters of a name that a client made up, in an error
NOT_ASKED_FOR = "was not asked for; does the client run the same udjfl?"
# The names of safetensors.
DTYPES = {
    "F16": torch.float16,
    "F32": torch.float32,
    "F64": torch.float64,
    "I32": torch.int32,
    "I64": torch.int64,
    "BOOL": torch.bool,
}


@dataclass(frozen=True)
class TensorLimit:
    """A tensor that a reply may contain: its dtype, and how many numbers it has at most."""

    dtype: torch.dtype
    numbers: int

    @property
    def bytes(self) -> int:
        """The most bytes that the tensor's numbers have."""
        return self.numbers * self.dtype.itemsize


def pack(tensors: Mapping[str, Tensor]) -> bytes:
    """Return tensors as bytes; none for no tensors."""
    arrays = {name: tensor.detach().cpu().contiguous().numpy() for name, tensor in tensors.items()}
    return safetensors.numpy.save(arrays) if arrays else b""


def unpack(packed: bytes) -> dict[str, Tensor]:
    """Return tensors; raises an error for bytes that are not what they claim."""
    if not packed:
        return {}
    arrays = safetensors.numpy.load(packed)
    return {name: torch.from_numpy(array.copy()) for name, array in arrays.items()}


def make_records(
    values: Mapping[str, Any], packed: bytes, own: bytes = b""
) -> dict[str, ConfigRecord]:
    """Make the records of a message: texts and numbers, and packed tensors.

    `packed` is the same in the messages to all clients, which can share its record; `own` is not.
    """
    config = {name: value for name, value in values.items() if name != FIELD}
    records = _cut(CONFIG, packed)
    records[CONFIG] = {**config, **records.get(CONFIG, {})}
    return {name: ConfigRecord(fields) for name, fields in {**records, **_cut(OWN, own)}.items()}


def values_of(content: RecordDict) -> dict[str, Any]:
    """Return the texts and numbers in a message."""
    fields = content.config_records[CONFIG]
    return {name: value for name, value in fields.items() if name != FIELD}


def tensors_of(content: RecordDict) -> dict[str, Tensor]:
    """Return the tensors in a message."""
    return unpack(_join(content, CONFIG)) | unpack(_join(content, OWN))


def allowed_tensors(
    n_parameters: int, dtype: torch.dtype, n_buffers: int | None, extras: Mapping[str, int]
) -> dict[str, TensorLimit]:
    """Return the tensors that a reply to a request may contain.

    `n_buffers` is None for a reply without update; `extras` has the size of each one.
    """
    limits = {
        EXTRA + name: TensorLimit(dtype if name in CHANGES else torch.float64, size)
        for name, size in extras.items()
    }
    if n_buffers is not None:
        limits[DELTA] = TensorLimit(dtype, n_parameters)
    if n_buffers:
        limits[BUFFERS] = TensorLimit(torch.float64, n_buffers)
    return limits


def find_forbidden(
    content: RecordDict, allowed: Mapping[str, TensorLimit]
) -> tuple[str, str] | None:
    """Return the first tensor that is not allowed and what is wrong with it, before unpacking."""
    pieces = _pieces(content, CONFIG)
    expected = {CONFIG, "metrics", *(_piece_name(CONFIG, i) for i in range(len(pieces)))}
    for record in sorted(set(content) - expected):
        return record[:LONGEST_NAME], NOT_ASKED_FOR
    longest = HEADER_BYTES * (len(allowed) + 1)
    for name, (dtype, shape) in _read_header(_join(content, CONFIG), longest).items():
        limit = allowed.get(name)
        if limit is None:
            return name[:LONGEST_NAME], NOT_ASKED_FOR
        if DTYPES.get(dtype) != limit.dtype:
            return name, f"has dtype {_dtype_name(dtype)}; it must have {_name(limit.dtype)}"
        if math.prod(shape) > limit.numbers:
            return name, f"has {math.prod(shape)} numbers; it may have {limit.numbers}"
    return None


def describe_tensors(content: RecordDict) -> dict[str, str]:
    """Return shape and dtype of each tensor in a message, in words."""
    header = _read_header(_join(content, CONFIG))
    return {name: f"{shape} {_dtype_name(dtype)}" for name, (dtype, shape) in header.items()}


def _cut(name: str, packed: bytes) -> dict[str, dict[str, Any]]:
    """Cut bytes into the fields of as many records as are needed; none for no bytes."""
    starts = range(0, len(packed), PIECE_BYTES)
    pieces = [packed[start : start + PIECE_BYTES] for start in starts]
    return {_piece_name(name, i): {FIELD: piece} for i, piece in enumerate(pieces)}


def _piece_name(name: str, index: int) -> str:
    return name if index == 0 else f"{name}-{index}"


def _pieces(content: RecordDict, name: str) -> list[bytes]:
    """Return the pieces of a message's bytes, in their order."""
    pieces: list[bytes] = []
    while (record := content.config_records.get(_piece_name(name, len(pieces)))) is not None:
        piece = record.get(FIELD, b"")
        if not isinstance(piece, bytes):
            raise TypeError(f"{FIELD} are no bytes")
        pieces.append(piece)
    return pieces


def _join(content: RecordDict, name: str) -> bytes:
    pieces = _pieces(content, name)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _read_header(packed: bytes, longest: int | None = None) -> dict[str, tuple[str, list[int]]]:
    """Return dtype and shape of each tensor, as the header claims; raises ValueError.

    A header of more than `longest` bytes is not read.
    """
    if not packed:
        return {}
    length = int.from_bytes(packed[:LENGTH_BYTES], "little")
    if length > len(packed) - LENGTH_BYTES:
        raise ValueError("the tensors end before their header does")
    if longest is not None and length > longest:
        raise ValueError(f"the header of the tensors has {length} bytes; it may have {longest}")
    claims = json.loads(packed[LENGTH_BYTES : LENGTH_BYTES + length])
    claims.pop("__metadata__", None)
    return {name: (str(claim["dtype"]), list(claim["shape"])) for name, claim in claims.items()}


def _dtype_name(dtype: str) -> str:
    return _name(DTYPES[dtype]) if dtype in DTYPES else str(dtype)[:LONGEST_NAME]


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
