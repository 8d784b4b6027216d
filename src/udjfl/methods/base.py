"""The interface of a method: what it is told, what it returns, and the slots it may fill."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, Protocol, TypeVar, cast, dataclass_transform

import numpy as np
import pydantic.dataclasses
import torch
from torch import Tensor, nn

from udjfl.errors import SettingsError, did_you_mean
from udjfl.methods._linalg import weighted_sum
from udjfl.methods.reports import EXTRAS, Reports
from udjfl.settings import sentences

State = dict[str, Tensor]
Diagnostics = dict[str, Tensor]
Grade = Literal["verified", "partial", "recalled"]
THEORIES = ("rawls", "egalitarian", "utilitarian", "desert")


@dataclass(frozen=True)
class Setup:
    """What a method is told before round 1. Columns have one entry per client of the federation, in client order.

    ids, sizes     the clients, and how many training examples each has
    model          [D] the initial model; M of them end to end if the method trains M side by side
    layers         how many of a model's D numbers belong to each of its tensors, in order
    participation  share of the clients asked each round; `drop_out` is the chance that an asked one does not answer
    has_groups     whether the federation has a sensitive attribute; `has_validation`, whether the server has data of its own
    """

    ids: Sequence[str]
    sizes: Tensor
    model: Tensor
    layers: Sequence[int] = ()
    participation: float = 1.0
    drop_out: float = 0.0
    has_groups: bool = False
    has_validation: bool = True

    @staticmethod
    def of(reports: Reports) -> Setup:
        """A setup in which the clients of these reports are all there are, for trying a method by hand."""
        n_parameters = reports.deltas.shape[1]
        model = (
            torch.zeros(n_parameters, dtype=reports.deltas.dtype)
            if reports.model is None
            else reports.model
        )
        return Setup(reports.ids, reports.sizes, model, (n_parameters,))

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def everyone_answers(self) -> bool:
        """Whether each round has a report of each client."""
        return self.participation == 1 and self.drop_out == 0


@dataclass(frozen=True)
class Plan:
    """What clients do differently in a round; as it is made without arguments, nothing.

    multipliers    [N] a number for each client of the federation, handed to `Method.objective`
    pull           [D] a direction mixed into every gradient of local training: (1 - pull_share) gradient + pull_share pull
    one_full_step  one plain step on the gradient of the client's whole data, in place of epochs of batches
    """

    multipliers: Tensor | None = None
    pull: Tensor | None = None
    pull_share: float = 0.0
    one_full_step: bool = False


@dataclass(frozen=True)
class ServedModels:
    """Which models clients use when training is over: client i predicts with the mixture sum_m shares[i, m] models[m].

    models [M, D], shares [N, M] with rows that sum to 1. What is mixed are probabilities.
    """

    models: Tensor
    shares: Tensor


class Additive(Protocol):
    """A method's step made of sums over clients: with secure aggregation a server that learns those learns no client's terms.

    common          numbers that every client has to be told beforehand, the same for all; each is a sum or a largest value
    client_terms    what one client (a `Reports` of one) adds to the sums
    step_from_sums  the step [D], which is that of `aggregate` to rounding
    """

    def common(self, reports: Reports) -> dict[str, float]: ...

    def client_terms(self, report: Reports, common: Mapping[str, float]) -> dict[str, Tensor]: ...

    def step_from_sums(self, sums: Mapping[str, Tensor], lr: float, momentum: float) -> Tensor: ...


MethodType = TypeVar("MethodType")


@dataclass_transform(frozen_default=True)
def parameters(kind: type[MethodType]) -> type[MethodType]:
    """Decorate a method with this: its annotated fields become its parameters, frozen.

    Unknown or ill-typed parameters are refused, and text from a command line is converted.
    """
    _check_declarations(kind)
    config = pydantic.ConfigDict(extra="forbid", allow_inf_nan=False)
    made: Any = pydantic.dataclasses.dataclass(kind, frozen=True, config=config)
    plain_init = made.__init__

    @functools.wraps(plain_init)
    def checked_init(self: Any, *args: Any, **params: Any) -> None:
        try:
            plain_init(self, *args, **params)
        except pydantic.ValidationError as error:
            known = [field.name for field in fields(made)]
            raise SettingsError(
                [f"{made.name}: {line}" for line in sentences(error, known, "parameter")]
            ) from None

    made.__init__ = checked_init
    return cast(type[MethodType], made)


def _check_declarations(kind: type) -> None:
    """A name that does not exist would be a request that nobody hears."""
    name = getattr(kind, "name", kind.__name__)
    known = {*EXTRAS, "losses", "sizes", "steps", "uncertainties"}
    for attribute in ("needs", "needs_groups", "probes"):
        for asked in sorted(getattr(kind, attribute, ())):
            if asked not in known:
                raise SettingsError(
                    f"{name}: {attribute} has {asked!r}, which clients do not know.{did_you_mean(asked, known)}"
                )
    for asked in sorted(set(getattr(kind, "needs_if", ())) - set(getattr(kind, "needs", ()))):
        raise SettingsError(
            f"{name}: needs_if has {asked!r}, which is not in needs; name it there too"
        )
    theories = getattr(kind, "theories", ())
    if "theories" in vars(kind).get("__annotations__", {}):
        raise SettingsError(
            f"{name}: write theories = (...) without a type, or it becomes a parameter"
        )
    for theory in theories if isinstance(theories, tuple) else ():
        if theory not in THEORIES:
            raise SettingsError(f"{name}: theories has {theory!r}.{did_you_mean(theory, THEORIES)}")


class Method(ABC):
    """A method. Subclasses are decorated with `parameters`; their fields are the method's parameters.

    name, title    how it is asked for, and how tables print it
    theories       the theories of justice it serves: some of 'rawls', 'egalitarian', 'utilitarian', 'desert'
    paper          citation
    grade          'verified', 'partial' or 'recalled': how sure we are that this is the authors' method
    idea           what it does, in one sentence
    cost           what it takes beyond FedAvg, for K clients that report of N, and D numbers in the model
    needs          what it reads of `Reports` beside deltas: all that its clients have to send. The simulator fills in sizes,
                   steps, uncertainties and a loss for every method; the loss of the received model, and what is in `EXTRAS`,
                   are computed only if they are declared here. Across machines nothing else leaves a client
    needs_if       what of `needs` is read only where a parameter has a certain value: {"sizes": ("weights", "size")}
    needs_groups   the same, but only where the federation has a sensitive attribute
    probes         what of `EXTRAS`, and losses, it must know before clients train, for `plan`
    global_model   whether there is one model for everybody, so that "global accuracy" means something

    Most methods write `aggregate` and nothing else. The other slots, in the order of a round: `select`, `initial_models`, `plan`,
    `objective`, `models_to_score`, `aggregate`, `served`; and once, before round 1, `adapt`, `init` and `notes`.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    theories: tuple[str, ...] = ()
    paper: ClassVar[str]
    grade: ClassVar[Grade]
    idea: ClassVar[str] = ""
    cost: ClassVar[str] = ""
    needs: ClassVar[frozenset[str]] = frozenset()
    needs_if: ClassVar[Mapping[str, tuple[str, str]]] = {}
    needs_groups: ClassVar[frozenset[str]] = frozenset()
    probes: ClassVar[frozenset[str]] = frozenset()
    global_model: ClassVar[bool] = True

    @property
    def asked(self) -> frozenset[str]:
        """What of `needs` clients have to send with these parameters."""
        idle = {
            name
            for name, (parameter, value) in self.needs_if.items()
            if getattr(self, parameter) != value
        }
        return self.needs - idle

    @property
    def additive(self) -> Additive | None:
        """The same step from sums over clients, where the method has that form."""
        return None

    @property
    def n_models(self) -> int:
        """How many models the server trains side by side; every client trains each of them."""
        return 1

    def adapt(self, module: nn.Module, generator: torch.Generator) -> nn.Module:
        """The network that is trained in place of the given one. Whatever it draws comes from the generator."""
        return module

    def init(self, setup: Setup) -> State:
        """The state before round 1: a plain dictionary of tensors, so that it can be saved as it is.

        Also the place to refuse, with a `SettingsError`, a federation the method is not defined for.
        """
        return {}

    def notes(self, setup: Setup) -> list[str]:
        """What a reader of the results has to know about the method on this federation: a sentence each."""
        return []

    def select(
        self, state: State, n_clients: int, count: int, generator: np.random.Generator
    ) -> Sequence[int]:
        """The places of the clients to ask, in a round that does not ask everybody. At random unless the method chooses."""
        return [int(place) for place in generator.choice(n_clients, size=count, replace=False)]

    def initial_models(self, state: State, client_indices: Tensor) -> Tensor | None:
        """[K, D] the model each of these clients starts from, by their places; None: all start from the server's."""
        return None

    def plan(self, state: State, probe: Reports | None) -> tuple[State, Plan]:
        """What clients do differently in this round. `probe` has what `probes` names, of reports whose deltas are zero."""
        return state, Plan()

    def objective(
        self, losses: Tensor, weights: Tensor, groups: Tensor | None, multipliers: Tensor | None
    ) -> Tensor:
        """[K] what each client minimises on a batch: by default the mean loss. Row i is a client; differentiable.

        losses [K, B] of each example; weights [K, B] 1/batch size, 0 for padding; groups [K, B] the sensitive attribute,
        if there is one; multipliers [K] of the plan, if it has some.
        """
        return (losses * weights).sum(dim=1)

    def models_to_score(self, state: State, reports: Reports) -> Tensor:
        """[K, D] the models whose accuracy on the server's validation data `aggregate` needs."""
        raise NotImplementedError(
            f"{self.name} needs validation_accuracies; it has to say of which models"
        )

    @abstractmethod
    def aggregate(self, state: State, reports: Reports) -> tuple[State, Tensor, Diagnostics]:
        """One round: the next state, the step [D] which the server subtracts, and what to record.

        Diagnostics are tensors: one value per reporting client, or a single one for the round.
        """

    def served(self, state: State, model: Tensor) -> ServedModels | None:
        """Which models clients use in the end, given the server's model; None: everybody the server's."""
        return None

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
        shown = {
            name: f"{value:g}" if isinstance(value, float) else str(value)
            for name, value in self.changed.items()
        }
        return ", ".join(f"{name}={value}" for name, value in shown.items())

    @property
    def short(self) -> str:
        """What to call it where there is little room: the title, or the name of a point of a family."""
        return self.title

    @property
    def label(self) -> str:
        """A short name for tables: the title and the parameters that differ from their defaults."""
        return f"{self.title} ({self.changed_text})" if self.changed_text else self.title


__all__ = [
    "EXTRAS",
    "THEORIES",
    "Additive",
    "Diagnostics",
    "Grade",
    "Method",
    "Plan",
    "Reports",
    "ServedModels",
    "Setup",
    "State",
    "parameters",
    "weighted_sum",
]
