"""The two nouns every method is written in: `Reports`, what the server knows, and `Method`, what it does with it."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal, TypeVar, cast, dataclass_transform

import numpy as np
import pydantic.dataclasses
import torch
from torch import Tensor

from udjfl.config import sentences
from udjfl.errors import ReportError, SettingsError
from udjfl.ordering import client_order

State = dict[str, Tensor]
Diagnostics = dict[str, Tensor]
Grade = Literal["verified", "partial", "recalled"]

PER_CLIENT_FIELDS = ("losses", "sizes", "uncertainties", "steps", "positions")
NOT_FINITE = ("deltas", "has values that are NaN or infinite; its local training diverged (try a smaller lr)")


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
    positions      [N]    the client's place among all clients of the federation, for state kept per client
    round          counted from 1
    extras         only what the method declares in `needs` beyond the above: name -> tensor whose first axis is the client

    Anything may be given as a tensor, an array or a list. A field that is left out holds NaN; `require` refuses that in words.
    Unusable values raise `ReportError`, naming client and field.
    """

    ids: Sequence[str]
    deltas: Tensor
    losses: Tensor = field(default=None)  # type: ignore[assignment]
    sizes: Tensor = field(default=None)  # type: ignore[assignment]
    uncertainties: Tensor = field(default=None)  # type: ignore[assignment]
    lr: float = 0.1
    momentum: float = 0.0
    steps: Tensor = field(default=None)  # type: ignore[assignment]
    positions: Tensor = field(default=None)  # type: ignore[assignment]
    round: int = 1
    extras: Mapping[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        ids = [str(name) for name in self.ids]
        if not ids or len(set(ids)) != len(ids):
            raise SettingsError("Reports.ids: give each reporting client once, and at least one client")
        if not 0 < self.lr < float("inf"):
            raise SettingsError(f"Reports.lr: is {self.lr}; it must be a finite number above zero")
        if not 0 <= self.momentum < 1:
            raise SettingsError(f"Reports.momentum: is {self.momentum}; it must be at least 0 and below 1")
        order = sorted(range(len(ids)), key=lambda row: client_order(ids[row]))
        store = object.__setattr__  # the fields are frozen for everyone else
        store(self, "deltas", _rows(self.deltas, "deltas", len(ids), order))
        if not self.deltas.is_floating_point():
            store(self, "deltas", self.deltas.to(torch.float32))
        if self.deltas.ndim != 2:
            raise SettingsError(f"Reports.deltas: needs shape [clients, parameters], got {list(self.deltas.shape)}")
        given = {name for name in PER_CLIENT_FIELDS if getattr(self, name) is not None}
        defaults = {"steps": torch.ones(len(ids)), "positions": torch.arange(len(ids))}
        for name in PER_CLIENT_FIELDS:
            if name not in given:
                default = defaults.get(name, torch.full((len(ids),), torch.nan))
                store(self, name, default.to(torch.float64 if name != "positions" else torch.int64))
                continue
            column = _rows(getattr(self, name), name, len(ids), order).reshape(-1)
            if len(column) != len(ids):
                raise SettingsError(f"Reports.{name}: needs one number per client, got {len(column)} for {len(ids)}")
            store(self, name, column.to(torch.int64 if name == "positions" else torch.float64))
        store(self, "extras", {k: _rows(v, k, len(ids), order) for k, v in self.extras.items()})
        store(self, "ids", tuple(ids[row] for row in order))
        self._check_values(given)

    def _check_values(self, given: set[str]) -> None:
        if not torch.isfinite(self.deltas).all():
            row = int((~torch.isfinite(self.deltas)).any(dim=1).nonzero()[0])
            raise ReportError(self.ids[row], *NOT_FINITE, self.round)
        columns = {name: getattr(self, name).tolist() for name in PER_CLIENT_FIELDS if name in given}
        for row, client in enumerate(self.ids):
            problem = number_problem({name: values[row] for name, values in columns.items()})
            if problem:
                raise ReportError(client, *problem, self.round)

    def require(self, *names: str) -> None:
        """For a method to call first: the named fields must have been given."""
        for name in names:
            if torch.isnan(getattr(self, name)).any():
                raise ReportError(self.ids[0], name, "was left out; this method needs it of every client", self.round)

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
        raise SettingsError(f"Reports.{name}: is not a table of numbers with one row per client ({error})") from None
    if tensor.ndim == 0 or tensor.shape[0] != n_clients:
        raise SettingsError(f"Reports.{name}: needs one row per client ({n_clients} ids), got shape {list(tensor.shape)}")
    return tensor[order]


def number_problem(values: Mapping[str, float]) -> tuple[str, str] | None:
    """The first field that is out of range, and what is wrong with it, or None."""
    for name, value in values.items():
        if value != value or value in (float("inf"), float("-inf")):
            return name, f"is {value}; it must be a finite number"
        if name == "losses" and value < 0:
            return name, f"is {value:g}; a loss cannot be negative"
        if name == "uncertainties" and value <= 0:
            return name, f"is {value:g}; it must be above zero (the mean softmax entropy of a model is)"
        if name in ("sizes", "steps") and value <= 0:
            return name, f"is {value:g}; it must be above zero"
        if name == "positions" and value < 0:
            return name, f"is {value:g}; places count from 0"
    return None


MethodType = TypeVar("MethodType")


@dataclass_transform(frozen_default=True)
def parameters(kind: type[MethodType]) -> type[MethodType]:
    """Decorate a method with this: its annotated fields become its parameters, frozen.

    Unknown or ill-typed parameters are refused, and text from a command line is converted.
    """
    config = pydantic.ConfigDict(extra="forbid", allow_inf_nan=False)
    made: Any = pydantic.dataclasses.dataclass(kind, frozen=True, config=config)
    plain_init = made.__init__

    @functools.wraps(plain_init)
    def checked_init(self: Any, *args: Any, **params: Any) -> None:
        try:
            plain_init(self, *args, **params)
        except pydantic.ValidationError as error:
            known = [field.name for field in fields(made)]
            raise SettingsError([f"{made.name}: {line}" for line in sentences(error, known, "parameter")]) from None

    made.__init__ = checked_init
    return cast(type[MethodType], made)


class Method(ABC):
    """A server rule. Subclasses are decorated with `parameters`; their fields are the method's parameters.

    name, title    how it is asked for, and how tables print it
    theory         the theory of justice it serves: 'rawls', 'egalitarian', 'utilitarian', 'desert', or None
    paper          citation
    grade          'verified', 'partial' or 'recalled': how sure we are that this is the authors' method
    needs          what it reads of `Reports` beside deltas and sizes: all that its clients have to send (the simulator, which
                   has everything at hand, fills in losses, steps and uncertainties for every method)
    """

    name: ClassVar[str]
    title: ClassVar[str]
    theory: str | None
    paper: ClassVar[str]
    grade: ClassVar[Grade]
    needs: ClassVar[frozenset[str]] = frozenset()

    def init(self, n_clients: int, n_parameters: int) -> State:  # noqa: ARG002 - most methods keep no state
        """The state before round 1: a plain dictionary of tensors, so that it can be saved as it is."""
        return {}

    @abstractmethod
    def aggregate(self, state: State, reports: Reports) -> tuple[State, Tensor, Diagnostics]:
        """One round: the next state, the step [D] which the server subtracts, and what to record.

        Diagnostics are tensors: one value per reporting client, or a single one for the round.
        """

    @property
    def params(self) -> dict[str, Any]:
        """The parameters by name, as plain values."""
        return {f.name: getattr(self, f.name) for f in fields(self)}  # type: ignore[arg-type]  # subclasses are dataclasses

    @property
    def changed(self) -> dict[str, Any]:
        """The parameters that differ from their defaults."""
        defaults = {f.name: f.default for f in fields(self)}  # type: ignore[arg-type]  # subclasses are dataclasses
        return {name: value for name, value in self.params.items() if value != defaults[name]}

    @property
    def changed_text(self) -> str:
        """`changed` as text: `beta=2, gamma=1`."""
        shown = {name: f"{value:g}" if isinstance(value, float) else str(value) for name, value in self.changed.items()}
        return ", ".join(f"{name}={value}" for name, value in shown.items())

    @property
    def label(self) -> str:
        """A short name for tables: the title and the parameters that differ from their defaults."""
        return f"{self.title} ({self.changed_text})" if self.changed_text else self.title


def weighted_sum(weights: Tensor, rows: Tensor) -> Tensor:
    """sum_i weights_i rows_i, accumulated in float64, in the dtype of the rows."""
    return (weights.to(torch.float64) @ rows.to(torch.float64)).to(rows.dtype)
