"""TERM, at the level of clients: an exponential tilt towards clients with large losses.

Li, Beirami, Sanjabi, Smith. Tilted Empirical Risk Minimization. ICLR 2021. arXiv:2007.01162.

    objective   (1/t) log sum_k p_k exp(t F_k(w))
                t > 0: large losses count more; t < 0: less; t -> 0: the average

    normalised  step = sum_k omega_k (w - w_k)
                omega_k = p_k exp(t F_k) / sum_j p_j exp(t F_j)
    official    X <- X/2 + sum_k p_k a_k / 2, from X = 0        a_k = exp(t (F_k - max_j F_j))
                step = (1/K) sum_k (p_k a_k / X) (w - w_k)

`normalised`, the default, is the objective's gradient with the clients' updates in place of their
gradients, as the authors of PropFair and of UDJ-FL run it. `official` is TERM's own code, which
differs from that in three ways: once X has settled, the factor 1/K makes the step K times shorter
than the tilted average; in round 1 X is half of what it settles to, and the step is twice as long
as later; and X mixes rounds whose losses were shifted by different maxima.

p_k = n_k / sum_j n_j, or 1/K with weights="uniform". TERM's code draws clients by size and sums
without weights: that is `official` with `uniform`, and p_k stands in for the drawing where all
clients are asked.
For t < 0 we subtract t min F rather than t max F, so that no exponential overflows; for t > 0 they
are as published. t F is what matters, so F is the mean loss. The UDJ-FL paper chose 0.01; with
losses that differ by 0.5 this moves weights by half a percent, which is FedAvg in all but name. Our
default is the largest value it searched.
Partial participation: the sums are over the clients that report, K of them.
"""

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from udjfl.methods.base import (
    BySize,
    Diagnostics,
    Method,
    Reports,
    Setup,
    State,
    parameters,
    size_shares,
    weighted_sum,
)


@parameters
class TERM(Method):
    name = "term"
    title = "TERM"
    theories = ("egalitarian",)
    paper = "Li et al., ICLR 2021, arXiv:2007.01162"
    grade = "verified"
    idea = "Weigh each client by the exponential of its loss, so that large losses count more."
    cost = "a forward pass over the client's data"

    t: Annotated[
        float,
        Field(
            description="tilt towards large losses "
            "(alpha, searched in the UDJ-FL paper: 0.01, 0.1, 0.5)"
        ),
    ] = 0.5
    step: Annotated[
        Literal["normalised", "official"],
        Field(description="the tilted average, or TERM's own code with its running estimate"),
    ] = "normalised"
    weights: BySize = "size"

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"losses", "sizes"} if self.weights == "size" else {"losses"})

    def init(self, setup: Setup) -> State:
        return {"X": torch.zeros((), dtype=torch.float64)} if self.step == "official" else {}

    def aggregate(self, state: State, reports: Reports) -> tuple[State, Tensor, Diagnostics]:
        p = size_shares(reports.sizes, self.weights)
        top = reports.losses.max() if self.t > 0 else reports.losses.min()
        tilted = p * (self.t * (reports.losses - top)).exp()
        omega = tilted / tilted.sum()
        if self.step == "normalised":
            return state, weighted_sum(omega, reports.deltas), {"weight": omega}
        X = state["X"] / 2 + tilted.sum() / 2
        factors = tilted / (len(reports) * X)
        diagnostics = {"weight": omega, "step_scale": factors.sum(), "estimate": X}
        return {"X": X}, weighted_sum(factors, reports.deltas), diagnostics
