"""CoreFed: the server weighs each client by the inverse of its utility M - loss, towards a core-stable model.

Ray Chaudhury, Li, Kang, Li, Mehta. Fairness in Federated Learning via Core-Stability. NeurIPS 2022. arXiv:2211.02091.

    objective   max over w of sum_k p_k log u_k(w)          u_k = M - F_k(w)

    paper       step = sum_k p_k (w - w_k) / u_k            one full-batch gradient step each: ascent on the objective
    normalised  the same, divided by sum_k p_k / u_k: a weighted average

Read in notes on the paper, with its pseudo-code; the authors' code was not found. Deviations, all ours:
`normalised` is the default. It keeps the direction, and so the fixed points, and leaves out only the length. As published that
is a server's learning rate of about 1/(M - loss): 0.37 for M = 3 and a loss of 0.3, and above 1 where M < loss + 1. Beside
methods that average, a comparison would measure it rather than the weights.
M: the paper has one per client, above any loss it can have; its values are unknown to us. We take one for all, 3 by default as
in our PropFair, which has the same objective.
u_k is clamped to at least epsilon, PropFair's 0.2: a loss above M would turn the client's update round.
p_k = 1/K as published; weights="size" gives n_k / sum_j n_j, the weighted objective.

The weight is the higher, the larger the loss, by at most M / epsilon: that lifts clients with noisy data, and is close to
uniform where losses are well below M. The UDJ-FL paper files CoreFed under desert nevertheless.
Partial participation: the sums are over the clients that report, K of them. There is no state.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from udjfl.methods.base import Diagnostics, Grade, Method, Reports, State, parameters, weighted_sum


@parameters
class CoreFed(Method):
    name: ClassVar[str] = "corefed"
    title: ClassVar[str] = "CoreFed"
    theories = ("desert",)
    paper: ClassVar[str] = "Ray Chaudhury et al., NeurIPS 2022, arXiv:2211.02091"
    grade: ClassVar[Grade] = "verified"
    idea: ClassVar[str] = (
        "Divide each client's update by its utility M - loss, so that no group would rather leave."
    )
    cost: ClassVar[str] = "a forward pass over the client's data"
    needs: ClassVar[frozenset[str]] = frozenset({"losses", "sizes"})
    needs_if: ClassVar[Mapping[str, tuple[str, str]]] = {"sizes": ("weights", "size")}

    M: Annotated[
        float,
        Field(
            gt=0,
            le=1e6,
            description="utility is M minus the loss (the value is ours; not run in the UDJ-FL paper)",
        ),
    ] = 3.0
    epsilon: Annotated[
        float, Field(ge=1e-6, description="smallest utility a client can have; below M")
    ] = 0.2
    step: Annotated[
        Literal["normalised", "paper"],
        Field(description="a weighted average (ours), or as published: M sets its length too"),
    ] = "normalised"
    weights: Annotated[
        Literal["uniform", "size"], Field(description="all alike, or by number of examples")
    ] = "uniform"

    @model_validator(mode="after")
    def _leaves_room(self) -> CoreFed:
        if self.epsilon >= self.M:
            raise ValueError(
                f"epsilon is {self.epsilon:g}; it must be below M, which is {self.M:g}: no loss has that utility"
            )
        return self

    def aggregate(self, state: State, reports: Reports) -> tuple[State, Tensor, Diagnostics]:
        reports.require("losses", *(["sizes"] if self.weights == "size" else []))
        p = reports.sizes if self.weights == "size" else torch.ones_like(reports.losses)
        utility = self.M - reports.losses
        factors = p / p.sum() / utility.clamp_min(self.epsilon)
        weight = factors / factors.sum()
        if self.step == "normalised":
            factors = weight
        clamped = (utility < self.epsilon).to(torch.float64)
        notes = {
            "weight": weight,
            "utility": utility,
            "clamped": clamped,
            "step_scale": factors.sum(),
        }
        return state, weighted_sum(factors, reports.deltas), notes
