"""The interface of a method: its declarations, its parameters, and the slots it may fill."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Annotated, Any, ClassVar, Literal, TypeVar, cast, dataclass_transform

import numpy as np
import pydantic.dataclasses
import torch
from pydantic import Field
from torch import Tensor, nn

from udjfl._html import html_table
from udjfl._spec import Registry
from udjfl.errors import SettingsError
from udjfl.methods._checks import (
    SERVER_SIDE,
    THEORIES,
    check_declarations,
    check_theories,
    require_reports,
)
from udjfl.methods._linalg import weighted_sum
from udjfl.methods.reports import EXTRAS, Reports
from udjfl.methods.values import Additive, Diagnostics, Plan, ServedModels, Setup, State
from udjfl.settings.validation import describe_mistakes

Grade = Literal["verified", "partial", "recalled", "own"]
MethodType = TypeVar("MethodType")


class Method(ABC):
    """A method. Decorate subclasses with `parameters`: their fields are the method's parameters.

    name, title    the name in specifications, and the name in tables
    theories       the theories of justice it serves, some of `THEORIES`
    paper          citation
    grade          'verified': the formula; 'partial' or 'recalled' if we could check it only in
                   part, or not at all, against the authors' code or paper; 'own' if it is of no
                   paper
    idea           one sentence on what it does
    cost           its cost beyond FedAvg, for K reporting clients of N, and D numbers in the model
    needs          the fields of `Reports` beyond deltas that it reads, `EXTRAS` included; they may
                   depend on the parameters. On Flower, clients send these and nothing else. Reports
                   that lack one are refused before `aggregate` runs
    needs_groups   the same, but only for a federation with a sensitive attribute
    probes         the losses and `EXTRAS` that `plan` reads: measured before clients train
    loss_at        the loss that `aggregate` reads: of the received model, or of the client's own
                   after training
    global_model   False if there is no one model for all clients
    baseline       True for a method to compare with, beside FedAvg, that is no fair method of the
                   paper's table; listed apart, and not one of `--methods all`

    Most methods write `aggregate` and nothing else. The other slots, in the order of a round:
    `select`, `initial_models`, `plan`, `objective`, `models_to_score`, `aggregate`, `served`;
    and once, before round 1, `adapt`, `init` and `notes`.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    theories: tuple[str, ...] = ()
    paper: ClassVar[str]
    grade: ClassVar[Grade]
    idea: ClassVar[str] = ""
    cost: ClassVar[str] = ""
    needs_groups: ClassVar[frozenset[str]] = frozenset()
    probes: ClassVar[frozenset[str]] = frozenset()
    loss_at: ClassVar[Literal["received", "final"]] = "received"
    global_model: ClassVar[bool] = True
    baseline: ClassVar[bool] = False

    @property
    def needs_reference(self) -> bool:
        """True if `init` reads FedAvg's scores by round: the simulator runs FedAvg first."""
        return False

    @property
    def needs_alone(self) -> bool:
        """True if `init` reads the score of each client's own model, trained alone."""
        return False

    def __init_subclass__(cls) -> None:
        """Let `plan`, `models_to_score` and `aggregate` refuse incomplete reports."""
        super().__init_subclass__()
        for slot in ("plan", "models_to_score", "aggregate"):
            if slot in vars(cls):
                setattr(cls, slot, require_reports(slot, vars(cls)[slot]))

    @property
    def needs(self) -> frozenset[str]:
        """Fields of `Reports` that the method reads with these parameters; a class may set it."""
        return frozenset()

    @property
    def additive(self) -> Additive | None:
        """The step computed from sums over clients, where the method has that form."""
        return None

    @property
    def n_models(self) -> int:
        """Number of models that the server trains side by side; every client trains each."""
        return 1

    def adapt(self, module: nn.Module, generator: torch.Generator) -> nn.Module:
        """Return the network to train instead of the given one, drawing from the generator only."""
        return module

    def init(self, setup: Setup) -> State:
        """Return the state before round 1: a plain dictionary of tensors, saved as it is.

        Raise `SettingsError` here if the method is not defined for the federation.
        """
        return {}

    def notes(self, setup: Setup) -> list[str]:
        """Return sentences on the method and this federation that belong under its results."""
        return []

    def final_notes(self, state: State) -> list[str]:
        """Return sentences on the finished training, from the last state; under the results too."""
        return []

    def select(
        self, state: State, n_clients: int, count: int, generator: np.random.Generator
    ) -> Sequence[int]:
        """Choose `count` clients to ask, by index: by default at random."""
        return [int(index) for index in generator.choice(n_clients, size=count, replace=False)]

    def initial_models(self, state: State, client_indices: Tensor) -> Tensor | None:
        """Return the models [K, D] that these clients start from; None for the server's model."""
        return None

    def plan(self, state: State, probe: Reports | None) -> tuple[State, Plan]:
        """Change local training for this round.

        `probe` has what `probes` names, and deltas of zero; None if `probes` is empty.
        """
        return state, Plan()

    def objective(
        self, losses: Tensor, weights: Tensor, groups: Tensor | None, multipliers: Tensor | None
    ) -> Tensor:
        """Return what each client minimises on a batch [K], differentiable: the mean loss.

        losses       [K, B] of each example; row i is a client
        weights      [K, B] 1 / batch size, and 0 for padding
        groups       [K, B] the sensitive attribute, if there is one
        multipliers  [K] those of the plan, if it has some
        """
        return (losses * weights).sum(dim=1)

    def models_to_score(self, state: State, reports: Reports) -> Tensor:
        """Return the models [K, D] to score on the server's validation data for `aggregate`."""
        raise NotImplementedError(
            f"{self.name} needs validation_accuracies; it has to say of which models: "
            "write models_to_score"
        )

    @abstractmethod
    def aggregate(self, state: State, reports: Reports) -> tuple[State, Tensor, Diagnostics]:
        """Return the next state, the step [D] that the server subtracts, and diagnostics.

        Diagnostics are tensors: one value per reporting client, or one for the round.
        """

    def warning(
        self, ids: Sequence[str], diagnostics: Mapping[str, Tensor]
    ) -> str | Sequence[object] | None:
        """Return a sentence for the log about a round's diagnostics, a list of several, or None.

        `ids` are the clients of the diagnostics, in their order. An object in the list is logged as
        its text, and handed to the handlers of the log (`record.warning`).
        """
        return None

    def scores_alone(self, state: State) -> Tensor | None:
        """Return the clients' scores alone [N] that the method is held to, or chooses by; or None.

        They are those that `init` was given.
        """
        return None

    def served(self, state: State, model: Tensor) -> ServedModels | None:
        """Return the models that clients use after training; None for the server's `model`."""
        return None

    @classmethod
    def parameters_beside(cls, given: Mapping[str, Any]) -> set[str]:
        """Return the names of the parameters that have a meaning beside those given: all.

        Parameters that several methods share are given to those where they have one.
        """
        return set(parameter_defaults(cls))

    @property
    def spec_name(self) -> str:
        """The text that `udjfl.method` builds this class from: a name or `package.module:Class`."""
        cls = type(self)
        return (
            self.name if METHODS.get(self.name) is cls else f"{cls.__module__}:{cls.__qualname__}"
        )

    @property
    def params(self) -> dict[str, Any]:
        """The parameters by name, as plain values."""
        return {name: getattr(self, name) for name in parameter_defaults(type(self))}

    @property
    def changed(self) -> dict[str, Any]:
        """The parameters that differ from their defaults."""
        defaults = parameter_defaults(type(self))
        return {name: value for name, value in self.params.items() if value != defaults[name]}

    @property
    def changed_text(self) -> str:
        """`changed` as text: `beta=2, gamma=1`."""
        return format_parameters(self.changed)

    @property
    def short(self) -> str:
        """A name for narrow columns: the title, or the name of a point of a family."""
        return self.title

    @property
    def label(self) -> str:
        """A short name for tables: the title and the parameters that differ from their defaults."""
        return f"{self.title} ({self.changed_text})" if self.changed_text else self.title

    def __repr__(self) -> str:
        defaults = parameter_defaults(type(self))
        changed = [f"{k}={v!r}" for k, v in self.params.items() if v != defaults[k]]
        return f"{type(self).__name__}({', '.join(changed)})"

    def _repr_html_(self) -> str:
        rows = [[name, str(value)] for name, value in self.params.items()]
        return html_table(f"{self.label} ({self.paper})", ["Parameter", "Value"], rows)

    def __hash__(self) -> int:
        """Hash the parameters' values, of which one may be a dictionary."""
        values = (
            v if not isinstance(v, dict) else frozenset(v.items()) for v in self.params.values()
        )
        return hash((type(self), *values))


BySize = Annotated[
    Literal["size", "uniform"], Field(description="by number of examples, or all alike")
]


def format_parameters(values: Mapping[str, Any]) -> str:
    """Return parameters as text: `beta=2, gamma=1`."""
    return ", ".join(
        f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}"
        for name, value in values.items()
    )


def size_shares(sizes: Tensor, weights: BySize) -> Tensor:
    """Return the clients' shares, by number of examples or all alike; they sum to 1."""
    shares = sizes if weights == "size" else torch.ones_like(sizes)
    return shares / shares.sum()


METHODS: Registry[type[Method]] = Registry("method", "udjfl.methods")


def parameter_defaults(cls: type[Method]) -> dict[str, Any]:
    """Return the default of each parameter of a method's class."""
    # A class without the decorator `parameters` has none.
    return {f.name: f.default for f in fields(cls)} if is_dataclass(cls) else {}


@dataclass_transform(frozen_default=True)
def parameters(cls: type[MethodType]) -> type[MethodType]:
    """Make the annotated fields of a method its parameters: frozen, checked, read from text too.

    Unknown or ill-typed parameters raise `SettingsError`, as do unknown names in `needs`,
    `needs_groups` and `probes` when an instance is made.
    """
    check_theories(cls)
    config = pydantic.ConfigDict(extra="forbid", allow_inf_nan=False)
    method_class: Any = pydantic.dataclasses.dataclass(cls, frozen=True, repr=False, config=config)
    validate = method_class.__init__

    @functools.wraps(validate)
    def init(self: Any, *args: Any, **params: Any) -> None:
        try:
            validate(self, *args, **params)
        except pydantic.ValidationError as error:
            lines = describe_mistakes(error, list(parameter_defaults(method_class)), "parameter")
            raise SettingsError([f"{self.name}: {line}" for line in lines]) from None
        check_declarations(self)

    method_class.__init__ = init
    method_class.__hash__ = Method.__hash__
    return cast(type[MethodType], method_class)


__all__ = [
    "EXTRAS",
    "METHODS",
    "SERVER_SIDE",
    "THEORIES",
    "Additive",
    "BySize",
    "Diagnostics",
    "Grade",
    "Method",
    "Plan",
    "Reports",
    "ServedModels",
    "Setup",
    "State",
    "parameters",
    "size_shares",
    "weighted_sum",
]
