"""FedProx: clients are drawn to the model they received while they train.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith. Federated Optimization in Heterogeneous Networks.
MLSys 2020, arXiv:1812.06127.

    client i   minimises  H_i(theta) + mu/2 |theta - w|^2,  w the received model:
               theta <- theta - lr (gradient + mu (theta - w))
    step       sum_i p_i (w - theta_i)        p_i = n_i / sum_j n_j, or 1/N with weights="uniform"

With mu = 0 it is FedAvg. The paper also lets clients do different amounts of work; here all train
for the same number of epochs. It searches mu among 0.001, 0.01, 0.1 and 1. The term is in the
explicit step, so lr mu above 2 diverges, with momentum m above 2 (1 + m).
"""

from typing import Annotated

from pydantic import Field
from torch import Tensor

from udjfl.methods.base import (
    BySize,
    Diagnostics,
    Method,
    Plan,
    Reports,
    State,
    parameters,
    size_shares,
    weighted_sum,
)


@parameters
class FedProx(Method):
    name = "fedprox"
    title = "FedProx"
    theories = ("utilitarian",)
    baseline = True
    paper = "Li et al., MLSys 2020, arXiv:1812.06127"
    grade = "verified"
    idea = "FedAvg with clients that are drawn to the received model while they train."
    cost = "one addition to each local step"

    mu: Annotated[
        float, Field(ge=0, description="how strongly clients are drawn to the received model")
    ] = 0.1
    weights: BySize = "size"

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"sizes"} if self.weights == "size" else ())

    def plan(self, state: State, probe: Reports | None) -> tuple[State, Plan]:
        return state, Plan(mu=self.mu)

    def aggregate(self, state: State, reports: Reports) -> tuple[State, Tensor, Diagnostics]:
        share = size_shares(reports.sizes, self.weights)
        return state, weighted_sum(share, reports.deltas), {"weight": share}
