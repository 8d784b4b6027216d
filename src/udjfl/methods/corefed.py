"""CoreFed: weigh each client by the inverse of its utility M - loss, towards a core-stable model.

Ray Chaudhury, Li, Kang, Li, Mehta. Fairness in Federated Learning via Core-Stability. NeurIPS 2022.
arXiv:2211.02091.

    objective   max over w of sum_k p_k log u_k(w)          u_k = M - F_k(w)

    paper       step = sum_k p_k (w - w_k) / u_k            one full-batch gradient step each:
                                                            ascent on the objective
    normalised  the same, divided by sum_k p_k / u_k: a weighted average

Read in notes on the paper, with its pseudo-code; the authors' code was not found. Deviations, all
ours:
`normalised` is the default. It keeps the direction, and so the fixed points, and leaves out only
the length. As published that is a server learning rate of about 1/(M - loss): 0.37 for M = 3 and a
loss of 0.3, and above 1 where M < loss + 1. Beside methods that average, a comparison would measure
it rather than the weights.
M: the paper has one per client, above any loss it can have; its values are unknown to us. We take
one for all, 3 by default as in our PropFair, which has the same objective.
u_k is clamped to at least epsilon, PropFair's 0.2: a loss above M would reverse the client's
update. p_k = 1/K as published; weights="size" gives n_k / sum_j n_j, the weighted objective.

The weight is the higher, the larger the loss, by at most M / epsilon: that lifts clients with noisy
data, and is close to uniform where losses are well below M. The UDJ-FL paper files CoreFed under
desert nevertheless.
Partial participation: the sums are over the clients that report, K of them. There is no state.
"""

from typing import Annotated, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from udjfl.methods._checks import check_epsilon
from udjfl.methods.base import (
    BySize,
    Diagnostics,
    Method,
    Reports,
    State,
    parameters,
    size_shares,
    weighted_sum,
)


@parameters
class CoreFed(Method):
    name = "corefed"
    title = "CoreFed"
    theories = ("desert",)
    paper = "Ray Chaudhury et al., NeurIPS 2022, arXiv:2211.02091"
    grade = "verified"
    idea = (
        "Divide each client's update by its utility M - loss, "
        "so that no group of clients would rather leave."
    )
    cost = "a forward pass over the client's data"

    M: Annotated[
        float,
        Field(
            gt=0,
            le=1e6,
            description="utility is M minus the loss "
            "(the default is ours; the UDJ-FL paper did not run CoreFed)",
        ),
    ] = 3.0
    epsilon: Annotated[
        float, Field(ge=1e-6, description="smallest utility a client can have; below M")
    ] = 0.2
    step: Annotated[
        Literal["normalised", "paper"],
        Field(description="a weighted average (ours), or as published: M sets its length too"),
    ] = "normalised"
    weights: BySize = "uniform"

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"losses", "sizes"} if self.weights == "size" else {"losses"})

    _check_epsilon = model_validator(mode="after")(check_epsilon)

    def aggregate(self, state: State, reports: Reports) -> tuple[State, Tensor, Diagnostics]:
        utility = self.M - reports.losses
        factors = size_shares(reports.sizes, self.weights) / utility.clamp_min(self.epsilon)
        weight = factors / factors.sum()
        factors = weight if self.step == "normalised" else factors
        diagnostics = {
            "weight": weight,
            "utility": utility,
            "clamped": (utility < self.epsilon).to(torch.float64),
            "step_scale": factors.sum(),
        }
        return state, weighted_sum(factors, reports.deltas), diagnostics
