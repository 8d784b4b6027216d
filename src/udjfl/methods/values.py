"""Values that a method receives and returns, beside `Reports`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from udjfl.methods.reports import Reports

State = dict[str, Tensor]
Diagnostics = dict[str, Tensor]


@dataclass(frozen=True)
class Setup:
    """The federation as a method sees it before round 1. One entry per client, in client order.

    ids, sizes      the clients, and their numbers of training examples
    model           [D] the initial model; M of them end to end if the method trains M side by side
    layers          how many of a model's D numbers belong to each of its tensors, in order
    rounds          how many rounds the run has
    participation   share of the clients asked each round
    drop_out        probability that a client that was asked does not report
    has_groups      True if the federation has a sensitive attribute
    has_validation  True if the server has validation data of its own
    reference       [rounds, N] FedAvg's scores of the same clients by round; NaN where unknown
    alone           [N] the score of each client's own model, trained alone, on its held-out data
    """

    ids: Sequence[str]
    sizes: Tensor
    model: Tensor
    layers: Sequence[int] = ()
    rounds: int = 100
    participation: float = 1.0
    drop_out: float = 0.0
    has_groups: bool = False
    has_validation: bool = True
    reference: Tensor | None = None
    alone: Tensor | None = None

    @staticmethod
    def of(reports: Reports) -> Setup:
        """Return the setup of a federation that has just these clients, to try a method by hand."""
        n_parameters = reports.deltas.shape[1]
        model = reports.model
        if model is None:
            model = torch.zeros(n_parameters, dtype=reports.deltas.dtype)
        return Setup(reports.ids, reports.sizes, model, (n_parameters,))

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def everyone_answers(self) -> bool:
        """True if every client reports in every round."""
        return self.participation == 1 and self.drop_out == 0


@dataclass(frozen=True)
class Plan:
    """Changes to local training for one round. The default changes nothing.

    multipliers    [N] one number per client of the federation, passed to `Method.objective`
    one_full_step  one plain step on the gradient of all the client's data, instead of epochs

    Every local gradient g, at the model theta that a client has reached, can be corrected:
        gradient_share g + mu (theta - anchor) + shift
    anchor, shift  [D] for all clients, or [N, D] one for each client of the federation; without an
                   anchor it is the model that the client received

    personal       [N, D] a model of its own for each client of the federation. Clients train it in
                   the same round, on the same batches, and report its change as `personal_deltas`;
                   their gradients at it are g + personal_mu (theta - the received model)
    """

    multipliers: Tensor | None = None
    one_full_step: bool = False
    gradient_share: float = 1.0
    mu: float = 0.0
    anchor: Tensor | None = None
    shift: Tensor | None = None
    personal: Tensor | None = None
    personal_mu: float = 0.0

    @property
    def corrects_gradients(self) -> bool:
        """True if local gradients are corrected."""
        return self.gradient_share != 1 or self.mu != 0 or self.shift is not None


@dataclass(frozen=True)
class ServedModels:
    """The models that clients use after training, and each client's share of each.

    Client i predicts with the mixture sum_m shares[i, m] models[m] of probabilities;
    models [M, D], shares [N, M] with rows that sum to 1. A service may add `offsets` [N, C] to the
    mixture's logits.
    """

    models: Tensor
    shares: Tensor
    offsets: Tensor | None = None

    def offset(self, client_index: int) -> Tensor | None:
        """Return what is added to one client's logits [C]."""
        return None if self.offsets is None else self.offsets[client_index]


class Additive(Protocol):
    """A method's step computed from sums over clients, as secure aggregation provides them.

    The server then learns the sums, but no client's own terms.

    common          numbers that every client needs beforehand, the same for all; each is a sum or
                    a maximum over clients
    client_terms    the terms that one client (a `Reports` of one) adds to the sums
    step_from_sums  the step [D]: that of `aggregate`, up to rounding
    """

    def common(self, reports: Reports) -> dict[str, float]: ...

    def client_terms(self, report: Reports, common: Mapping[str, float]) -> dict[str, Tensor]: ...

    def step_from_sums(self, sums: Mapping[str, Tensor], lr: float, momentum: float) -> Tensor: ...


@dataclass(frozen=True)
class HeldToCap:
    """A warning that clients were held to the largest share of a step that one of them may have."""

    label: str  # of the method
    clients: tuple[str, ...]
    share: float

    def __str__(self) -> str:
        return (
            f"{self.label}: {', '.join(self.clients)} would have more than {self.share:.0%} of the "
            "step and is held to that."
        )
