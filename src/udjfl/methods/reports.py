"""`Reports`: everything a server knows after one round."""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from udjfl._ids import id_sort_key
from udjfl.errors import ReportError, SettingsError
from udjfl.methods._linalg import rows_not_finite
from udjfl.methods._report_values import (
    LARGEST_WHOLE,
    check_ids,
    check_model,
    check_real,
    check_scalars,
)

# Values a client can be asked for beyond its delta, loss, size, steps and uncertainty. They are
# computed only for a method that declares them. N clients, D numbers in the model, M models side
# by side. "Received" means before any local training.
EXTRAS = {
    "accuracies": "[N] training accuracy, 0 to 1, of the received model",
    "squared_losses": "[N] mean squared loss of the training examples at the received model",
    "gradients": "[N, D] gradient of the whole training loss at the received model",
    "gradient_norms": "[N] length of that gradient",
    "first_deltas": "[N, D] the received model minus the client's after its first optimiser step",
    "personal_deltas": "[N, D] the client's personal model of the plan minus the same after "
    "training",
    "group_gaps": "[N] difference of the mean losses of the best and the worst served group of "
    "the sensitive attribute",
    "group_gap_gradients": "[N, D] gradient of that difference",
    "losses_of_each": "[N, M] training loss of each of the models side by side, as received "
    "(unless `loss_at` says otherwise)",
    "scores": "[N] accuracy, 0 to 1, of the received model on the client's held-out data, or on "
    "its training data if nothing is held out; in a regression R^2, at most 1",
    "score_sizes": "[N] number of examples that the scores come from",
    "validation_accuracies": "[N] accuracy, 0 to 1, on the server's validation data of the models "
    "that `models_to_score` returns",
}

NUMBER_FIELDS = ("losses", "sizes", "uncertainties", "steps")
PER_CLIENT_FIELDS = (*NUMBER_FIELDS, "client_indices")
ABOVE_ZERO = "it must be above zero"
# (smallest allowed value, whether it is itself allowed, message) of fields with a bounded range.
LOWER_BOUNDS = {
    "losses": (0, True, "a loss cannot be negative"),
    "uncertainties": (0, False, f"{ABOVE_ZERO} (the mean softmax entropy of a model is)"),
    "sizes": (0, False, ABOVE_ZERO),
    "steps": (0, False, ABOVE_ZERO),
    "client_indices": (0, True, "indices count from 0"),
}
UPPER_BOUNDS = {"sizes": LARGEST_WHOLE, "steps": LARGEST_WHOLE}
NON_NEGATIVE_EXTRAS = ("squared_losses", "gradient_norms", "group_gaps", "losses_of_each")
SHARES = ("accuracies", "scores", "validation_accuracies")
NOT_FINITE = "has values that are NaN or infinite"


@dataclass(frozen=True)
class Reports:
    """Everything a server knows after one round. Row i is client `ids[i]`; rows are sorted by id.

    ids            names of the clients that reported
    deltas         [N, D] the received model minus the client's own after training; the server
                   subtracts its step
    losses         [N]    the client's mean training loss, at the model it received
    sizes          [N]    number of training examples
    uncertainties  [N]    aleatoric uncertainty of the client's data, above zero
    lr, momentum   how the clients trained (SGD); the defaults describe one plain step at the
                   paper's learning rate
    steps          [N]    optimiser steps each client took
    client_indices [N]    the client's index among all clients of the federation, for state kept
                   per client; default: 0, 1, ...
    model          [D]    the server's model before the step, where the method asks for it (the
                   deltas start from it, unless the method sends clients models of their own)
    round          counted from 1
    is_regression  labels are numbers: scores are R^2, which can be below 0
    extras         only what the method declares beyond the above, by the names in `EXTRAS`

    Values may be tensors, arrays or lists. A field that is left out holds NaN; `require` rejects
    it. Unusable values raise `ReportError`, which names the client and the field. Deltas and
    extras given as tensors whose rows are already in order are not copied: do not change them.
    """

    ids: Sequence[str]
    deltas: Tensor
    losses: Tensor = field(default=None)  # type: ignore[assignment]
    sizes: Tensor = field(default=None)  # type: ignore[assignment]
    uncertainties: Tensor = field(default=None)  # type: ignore[assignment]
    lr: float = 0.1
    momentum: float = 0.0
    steps: Tensor = field(default=None)  # type: ignore[assignment]
    client_indices: Tensor = field(default=None)  # type: ignore[assignment]
    model: Tensor | None = None
    round: int = 1
    extras: Mapping[str, Tensor] = field(default_factory=dict)
    is_regression: bool = False
    _given: Collection[str] = field(default=(), init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        ids = [str(name) for name in check_ids(self.ids)]
        if not ids or len(set(ids)) != len(ids):
            raise SettingsError(
                "Reports.ids: give each reporting client once, and at least one client"
            )
        check_scalars(self.lr, self.momentum, self.round)
        order = _sorted_order(tuple(ids))
        # In this order, so that of several mistakes it is always the same one that is told.
        given = tuple(name for name in PER_CLIENT_FIELDS if getattr(self, name) is not None)
        store = object.__setattr__  # the dataclass is frozen
        store(self, "_given", given)
        store(self, "ids", tuple(ids[row] for row in order))
        store(self, "deltas", _deltas(self.deltas, order))
        for name in PER_CLIENT_FIELDS:
            store(self, name, _column(name, getattr(self, name), order))
        if len(set(self.client_indices.tolist())) != len(ids):
            raise SettingsError("Reports.client_indices: give each client an index of its own")
        store(self, "extras", {k: _sort_rows(v, k, order) for k, v in self.extras.items()})
        if self.model is not None:
            check_model(self.model, self.deltas)
        check_shapes(self.extras, self.deltas)
        columns = {**{name: getattr(self, name) for name in given}, **self.extras}
        errors = find_errors(self.ids, self.deltas, columns, self.round, self.is_regression)
        if errors:
            raise errors[min(errors)]

    def has(self, name: str) -> bool:
        """Tell whether this field or extra was given."""
        if name in PER_CLIENT_FIELDS:
            return name in self._given
        return name in self.extras if name in EXTRAS else getattr(self, name) is not None

    def require(self, *names: str) -> None:
        """Raise an error unless these fields and extras were given."""
        for name in names:
            if self.has(name):
                continue
            if name == "model":
                raise SettingsError(
                    "Reports.model: was left out; this method needs the server's model"
                )
            problem = "was left out; this method needs it of every client"
            raise ReportError(self.ids[0], name, problem, self.round)

    def with_extra(self, name: str, values: Tensor) -> Reports:
        """Return the same reports with one more extra."""
        errors = find_errors(self.ids, None, {name: values}, self.round, self.is_regression)
        if errors:
            raise errors[min(errors)]
        reports = copy.copy(self)
        object.__setattr__(reports, "extras", {**self.extras, name: values})
        return reports

    def __len__(self) -> int:
        return len(self.ids)


def find_errors(
    ids: Sequence[str],
    deltas: Tensor | None,
    columns: Mapping[str, Tensor],
    round: int | None,
    is_regression: bool = False,
) -> dict[int, ReportError]:
    """Return the first unusable value of each row, by row; empty if all rows are usable.

    `deltas` are None where there are none, or they were checked before.
    """
    errors: dict[int, ReportError] = {}

    def reject(row: int, name: str, problem: str) -> None:
        errors.setdefault(row, ReportError(ids[row], name, problem, round))

    for row in [] if deltas is None else rows_not_finite(deltas):
        reject(row, "deltas", f"{NOT_FINITE}; its local training diverged (try a smaller lr)")
    for name, column in columns.items():
        if name in PER_CLIENT_FIELDS:
            bound, allowed, problem = LOWER_BOUNDS[name]
            for row, value in enumerate(column.tolist()):
                if not math.isfinite(value):
                    reject(row, name, f"is {value:g}; it must be a finite number")
                elif value < bound or (value == bound and not allowed):
                    reject(row, name, f"is {value:g}; {problem}")
                elif value > UPPER_BOUNDS.get(name, math.inf):
                    reject(row, name, f"is {value:g}; it must be at most 2^53")
            continue
        table = column.reshape(len(column), -1)
        if table.is_floating_point():
            for row in rows_not_finite(table):
                reject(row, name, NOT_FINITE)
        if name == "scores" and is_regression:
            for row in _rows_where(table > 1):
                reject(row, name, "must be at most 1")
        elif name in SHARES:
            for row in _rows_where((table < 0) | (table > 1)):
                reject(row, name, "must be from 0 to 1")
        if name in NON_NEGATIVE_EXTRAS:
            for row in _rows_where(table < 0):
                reject(row, name, "cannot be negative")
        if name == "score_sizes":
            for row in _rows_where(table <= 0):
                reject(row, name, "must be above zero")
    return errors


def check_shapes(extras: Mapping[str, Tensor], deltas: Tensor) -> None:
    """Refuse extras of other shapes than `EXTRAS` says."""
    for name, meaning in EXTRAS.items():
        if name not in extras:
            continue
        values, axes = extras[name], meaning.partition("]")[0]
        expected = {"[N": (len(deltas),), "[N, D": tuple(deltas.shape)}.get(axes)
        is_wrong = values.ndim != 2 if axes == "[N, M" else expected not in (None, values.shape)
        if is_wrong:
            raise SettingsError(
                f"Reports.{name}: has shape {list(values.shape)}, and is {axes}] with N, D = "
                f"{list(deltas.shape)}"
            )


def _rows_where(is_bad: Tensor) -> list[int]:
    rows: list[int] = is_bad.any(dim=1).nonzero().flatten().tolist()
    return rows


def check_numbers(client: str, numbers: Mapping[str, float]) -> None:
    """Raise a `ReportError` for the first of these numbers that cannot be used."""
    columns = {name: torch.tensor([value], dtype=torch.float64) for name, value in numbers.items()}
    for error in find_errors([client], None, columns, None).values():
        raise error


@functools.lru_cache(maxsize=64)  # mostly the same clients in every round
def _sorted_order(ids: tuple[str, ...]) -> range | list[int]:
    """Return the order of the rows by id; a range if they have it already."""
    order = sorted(range(len(ids)), key=lambda row: id_sort_key(ids[row]))
    return range(len(ids)) if order == list(range(len(ids))) else order


def _deltas(values: Any, order: range | list[int]) -> Tensor:
    deltas = _sort_rows(values, "deltas", order)
    if deltas.ndim != 2:
        shape = list(deltas.shape)
        raise SettingsError(f"Reports.deltas: needs shape [clients, parameters], got {shape}")
    return deltas if deltas.is_floating_point() else deltas.to(torch.float32)


def _column(name: str, values: Any, order: range | list[int]) -> Tensor:
    """Return one number per client; NaN, or for indices 0, 1, ..., if there are no values."""
    n_clients = len(order)
    if values is None:
        if name == "client_indices":
            return torch.arange(n_clients)
        return torch.full((n_clients,), torch.nan, dtype=torch.float64)
    column = _sort_rows(values, name, order).reshape(-1)
    if len(column) != n_clients:
        raise SettingsError(
            f"Reports.{name}: needs one number per client, got {len(column)} for {n_clients}"
        )
    return column.to(torch.int64 if name == "client_indices" else torch.float64, copy=True)


def _sort_rows(values: Any, name: str, order: range | list[int]) -> Tensor:
    try:
        if isinstance(values, Tensor):
            tensor = values
        elif isinstance(values, Sequence) and any(isinstance(row, Tensor) for row in values):
            tensor = torch.stack([torch.as_tensor(row) for row in values])
        else:
            # Through a numpy copy: plain numbers keep their digits, read-only arrays are accepted.
            tensor = torch.from_numpy(np.array(values))
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise SettingsError(
            f"Reports.{name}: is not a table of numbers with one row per client ({error})"
        ) from None
    check_real(name, values, tensor)
    if tensor.ndim == 0 or tensor.shape[0] != len(order):
        raise SettingsError(
            f"Reports.{name}: needs one row per client ({len(order)} ids), "
            f"got shape {list(tensor.shape)}"
        )
    return tensor if isinstance(order, range) else tensor[order]  # a table may be large
