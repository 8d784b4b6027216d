"""What the server knows after a round, checked when it is put together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from udjfl._ids import id_sort_key
from udjfl.errors import ReportError, SettingsError
from udjfl.methods._linalg import finite_rows

# What a client can be asked for beyond its delta, loss, size, steps and uncertainty: computed only for a method that
# declares it. N clients, D numbers in the model, M models side by side. "Received": before any local training.
EXTRAS = {
    "accuracies": "[N] training accuracy, 0 to 1, of the received model",
    "squared_losses": "[N] mean over the training examples of the squared loss of the received model",
    "gradients": "[N, D] gradient of the whole training loss at the received model",
    "gradient_norms": "[N] length of that gradient",
    "first_deltas": "[N, D] the received model minus the client's own after its first optimiser step",
    "group_gaps": "[N] difference of the mean losses of the best and the worst served group of the sensitive attribute",
    "group_gap_gradients": "[N, D] gradient of that difference",
    "losses_of_each": "[N, M] training loss of each of the models side by side, as received (unless `loss_at` says otherwise)",
    "validation_accuracies": "[N] accuracy, 0 to 1, on the server's validation data of the models that `models_to_score` names",
}

PER_CLIENT_FIELDS = ("losses", "sizes", "uncertainties", "steps", "client_indices")
NOT_FINITE = (
    "deltas",
    "has values that are NaN or infinite; its local training diverged (try a smaller lr)",
)


@dataclass(frozen=True)
class Reports:
    """What the server knows after one round. Row i is client `ids[i]`; rows are sorted by id when this is built.

    ids            names of the clients that reported
    deltas         [N, D] the received model minus the client's own after training; the server subtracts its step
    losses         [N]    the client's mean training loss, at the model it received
    sizes          [N]    number of training examples
    uncertainties  [N]    aleatoric uncertainty of the client's data, above zero
    lr, momentum   how the clients trained (SGD); the defaults describe one plain step at the paper's learning rate
    steps          [N]    optimiser steps each client took
    client_indices      [N]    the client's place among all clients of the federation, for state kept per client
    model          [D]    the server's model before the step, where the method asks for it (it is what the deltas are from,
                          unless the method sends clients models of their own)
    round          counted from 1
    extras         only what the method declares beyond the above, by the names in `EXTRAS`
    deltas_are_finite  True if they were looked through already: not done again

    Anything may be given as a tensor, an array or a list. A field that is left out holds NaN; `require` refuses that in words.
    Unusable values raise `ReportError`, naming client and field. Deltas and extras given as tensors whose rows are in order
    already are kept as they are, not copied: do not change them afterwards.
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
    deltas_are_finite: InitVar[bool] = False

    def __post_init__(self, deltas_are_finite: bool) -> None:
        ids = [str(name) for name in self.ids]
        if not ids or len(set(ids)) != len(ids):
            raise SettingsError(
                "Reports.ids: give each reporting client once, and at least one client"
            )
        if not 0 < self.lr < float("inf"):
            raise SettingsError(f"Reports.lr: is {self.lr}; it must be a finite number above zero")
        if not 0 <= self.momentum < 1:
            raise SettingsError(
                f"Reports.momentum: is {self.momentum}; it must be at least 0 and below 1"
            )
        order = sorted(range(len(ids)), key=lambda row: id_sort_key(ids[row]))
        store = object.__setattr__  # the fields are frozen for everyone else
        store(self, "deltas", _rows(self.deltas, "deltas", len(ids), order))
        if not self.deltas.is_floating_point():
            store(self, "deltas", self.deltas.to(torch.float32))
        if self.deltas.ndim != 2:
            raise SettingsError(
                f"Reports.deltas: needs shape [clients, parameters], got {list(self.deltas.shape)}"
            )
        given = {name for name in PER_CLIENT_FIELDS if getattr(self, name) is not None}
        defaults = {"steps": torch.ones(len(ids)), "client_indices": torch.arange(len(ids))}
        for name in PER_CLIENT_FIELDS:
            if name not in given:
                default = defaults.get(name, torch.full((len(ids),), torch.nan))
                store(
                    self,
                    name,
                    default.to(torch.float64 if name != "client_indices" else torch.int64),
                )
                continue
            column = _rows(getattr(self, name), name, len(ids), order).reshape(-1)
            if len(column) != len(ids):
                raise SettingsError(
                    f"Reports.{name}: needs one number per client, got {len(column)} for {len(ids)}"
                )
            store(
                self,
                name,
                column.to(torch.int64 if name == "client_indices" else torch.float64, copy=True),
            )
        store(self, "extras", {k: _rows(v, k, len(ids), order) for k, v in self.extras.items()})
        store(self, "ids", tuple(ids[row] for row in order))
        self._check_values(given, {} if deltas_are_finite else {"deltas": self.deltas})

    def _check_values(self, given: set[str], deltas: Mapping[str, Tensor]) -> None:
        for name, value in {**deltas, **self.extras}.items():
            broken = (~finite_rows(value)).nonzero()
            if len(broken):
                what = (
                    NOT_FINITE
                    if name == "deltas"
                    else (name, "has values that are NaN or infinite")
                )
                raise ReportError(self.ids[int(broken[0])], *what, self.round)
        columns = {
            name: getattr(self, name).tolist() for name in PER_CLIENT_FIELDS if name in given
        }
        for row, client in enumerate(self.ids):
            problem = number_problem({name: values[row] for name, values in columns.items()})
            if problem:
                raise ReportError(client, *problem, self.round)

    def require(self, *names: str) -> None:
        """For a method to call first: the named fields and extras must have been given."""
        for name in names:
            value = self.extras.get(name) if name in EXTRAS else getattr(self, name)
            if value is None and name == "model":
                raise SettingsError(
                    "Reports.model: was left out; this method needs the server's model"
                )
            if value is None or (name in PER_CLIENT_FIELDS and torch.isnan(value).any()):
                raise ReportError(
                    self.ids[0],
                    name,
                    "was left out; this method needs it of every client",
                    self.round,
                )

    def __len__(self) -> int:
        return len(self.ids)


def _rows(values: Any, name: str, n_clients: int, order: list[int]) -> Tensor:
    try:
        if isinstance(values, Sequence) and any(isinstance(row, Tensor) for row in values):
            tensor = torch.stack([torch.as_tensor(row) for row in values])
        else:
            # By way of a numpy copy: plain numbers keep their digits, and read-only arrays are welcome.
            tensor = values if isinstance(values, Tensor) else torch.from_numpy(np.array(values))
    except (TypeError, ValueError, RuntimeError) as error:
        raise SettingsError(
            f"Reports.{name}: is not a table of numbers with one row per client ({error})"
        ) from None
    if tensor.ndim == 0 or tensor.shape[0] != n_clients:
        raise SettingsError(
            f"Reports.{name}: needs one row per client ({n_clients} ids), got shape {list(tensor.shape)}"
        )
    return (
        tensor if order == sorted(order) else tensor[order]
    )  # a table may be large: copied only to be put in order


def number_problem(values: Mapping[str, float]) -> tuple[str, str] | None:
    """The first field that is out of range, and what is wrong with it, or None."""
    for name, value in values.items():
        if value != value or value in (float("inf"), float("-inf")):
            return name, f"is {value}; it must be a finite number"
        if name == "losses" and value < 0:
            return name, f"is {value:g}; a loss cannot be negative"
        if name == "uncertainties" and value <= 0:
            return (
                name,
                f"is {value:g}; it must be above zero (the mean softmax entropy of a model is)",
            )
        if name in ("sizes", "steps") and value <= 0:
            return name, f"is {value:g}; it must be above zero"
        if name == "client_indices" and value < 0:
            return name, f"is {value:g}; places count from 0"
    return None
