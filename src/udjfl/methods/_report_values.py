"""Checks of what `Reports` is made from, before any of it is used: types, kinds and shapes."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from udjfl.errors import SettingsError, show_short

# Up to here every whole number is a number of its own in float64.
LARGEST_WHOLE = 2**53


def check_ids(ids: Any) -> Iterable[Any]:
    """Return the ids if they are several values."""
    if isinstance(ids, str) or not isinstance(ids, Iterable):
        raise SettingsError(f"Reports.ids: is {ids!r}; give a list of names")
    return ids


def check_scalars(lr: Any, momentum: Any, round: Any) -> None:
    """Refuse a learning rate, a momentum or a round that is none."""
    if not _is_finite(lr) or lr <= 0:
        raise _refuse("lr", lr, "a finite number above zero")
    if not _is_finite(momentum) or not 0 <= momentum < 1:
        raise _refuse("momentum", momentum, "at least 0 and below 1")
    if isinstance(round, bool) or not isinstance(round, int | np.integer):
        raise _refuse("round", round, "a whole number")
    if not 0 <= round <= LARGEST_WHOLE:
        raise _refuse("round", round, "from 0 to 2^53")


def _refuse(name: str, value: Any, needed: str) -> SettingsError:
    """Return the error for a scalar; numbers too long to read are left out of it."""
    return SettingsError(f"Reports.{name}: is {show_short(value)}; it must be {needed}")


def _is_finite(value: Any) -> bool:
    is_number = isinstance(value, int | float | np.integer | np.floating)
    try:
        return is_number and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # a whole number beyond float64
        return False


def check_real(name: str, values: Any, tensor: Tensor) -> None:
    """Refuse a table of anything but real numbers; `tensor` has the values as they were read."""
    is_masked = isinstance(values, np.ma.MaskedArray)
    is_plain = tensor.layout is torch.strided and not tensor.is_quantized
    is_real = tensor.dtype is not torch.bool and not tensor.is_complex()
    if not is_masked and is_plain and is_real:
        return
    kind = "masked values" if is_masked else tensor.dtype if is_plain else "sparse values"
    raise SettingsError(f"Reports.{name}: is a table of {kind}; give real numbers")


def check_model(model: Any, deltas: Tensor) -> None:
    """Refuse a server's model without one number for each column of the deltas."""
    if not isinstance(model, Tensor) or model.shape != deltas.shape[1:]:
        given = list(model.shape) if isinstance(model, Tensor) else type(model).__name__
        expected = list(deltas.shape[1:])
        raise SettingsError(f"Reports.model: is {given}; give a tensor {expected}, as the deltas")
    check_real("model", model, model)
