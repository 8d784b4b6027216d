"""Tensors in messages: how they are packed, and what a reply may contain.

Flower hands over an array as bytes in numpy's format. Their header claims a dtype and a shape, and
`numpy.load` allocates what it claims. Here header and bytes are compared first, so that reading a
message never needs more memory than the message itself.
"""

import io
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, RecordDict
from torch import Tensor

NUMPY, RECORD = "numpy.ndarray", "arrays"
DELTA, BUFFERS, EXTRA = "delta", "buffers", "extra."
# Extras that are changes of models, and have the model's dtype.
CHANGES = frozenset({"first_deltas", "personal_deltas"})
HEADER_BYTES = 1024  # more than numpy writes before an array's values
LONGEST_NAME = 40  # characters of a name that a client made up, in an error


@dataclass(frozen=True)
class TensorLimit:
    """A tensor that a reply may contain: its dtype, and how many numbers it has at most."""

    dtype: torch.dtype
    numbers: int

    @property
    def numpy_dtype(self) -> np.dtype:
        """The dtype by numpy's name."""
        return torch.empty(0, dtype=self.dtype).numpy().dtype

    @property
    def bytes(self) -> int:
        """The most bytes that the packed tensor has."""
        return HEADER_BYTES + self.numbers * self.numpy_dtype.itemsize


def to_arrays(tensors: Mapping[str, Tensor | Array]) -> ArrayRecord:
    """Pack tensors into a record; what is an array already is shared, not copied."""
    return ArrayRecord({name: to_array(tensor) for name, tensor in tensors.items()})


def to_array(tensor: Tensor | Array) -> Array:
    """Serialise a tensor once, so that the messages to all clients can share it."""
    if isinstance(tensor, Array):
        return tensor
    return Array(tensor.detach().cpu().contiguous().numpy())


def tensors_of(content: RecordDict) -> dict[str, Tensor]:
    """Return the tensors in a message."""
    return {name: unpack(array) for name, array in content.array_records[RECORD].items()}


def unpack(array: Array) -> Tensor:
    """Return a tensor; raises TypeError or ValueError for bytes that are not what they claim."""
    dtype, shape, is_fortran, start = _read_header(array)
    n_bytes = len(array.data) - start
    if n_bytes != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"{n_bytes} bytes are no {dtype} of shape {list(shape)}")
    values = np.frombuffer(array.data, dtype, offset=start)
    return torch.from_numpy(values.reshape(shape, order="F" if is_fortran else "C").copy())


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
    for record in sorted(set(content.array_records) - {RECORD}):
        return record[:LONGEST_NAME], "was not asked for; does the client run the same udjfl?"
    for name, array in content.array_records[RECORD].items():
        limit = allowed.get(name)
        if limit is None:
            return name[:LONGEST_NAME], "was not asked for; does the client run the same udjfl?"
        if len(array.data) > limit.bytes:
            return name, f"has {len(array.data)} bytes; it may have {limit.bytes}"
        dtype = _read_header(array)[0]
        if dtype != limit.numpy_dtype:
            return name, f"has dtype {dtype}; it must have {limit.numpy_dtype}"
    return None


def _read_header(array: Array) -> tuple[np.dtype, tuple[int, ...], bool, int]:
    """Return dtype, shape, whether columns come first, and where the values begin."""
    if array.stype != NUMPY:
        raise TypeError(f"arrays are sent as {NUMPY}, not as {array.stype[:LONGEST_NAME]!r}")
    stream = io.BytesIO(array.data[:HEADER_BYTES])
    version = np.lib.format.read_magic(stream)
    if version != (1, 0):
        raise ValueError(f"arrays have version 1.0 of numpy's format, not {version}")
    shape, is_fortran, dtype = np.lib.format.read_array_header_1_0(stream)
    if dtype.hasobject:
        raise TypeError("an array has objects in place of numbers")
    return dtype, shape, is_fortran, stream.tell()
