"""FedAvg: the plain average, against which every fair method is measured.

McMahan, Moore, Ramage, Hampson, Agüera y Arcas. Communication-Efficient Learning of Deep Networks
from Decentralized Data. AISTATS 2017.

    objective   sum_i p_i H_i(theta)
    step        sum_i p_i (theta - theta_i)     p_i = n_i / sum_j n_j, or 1/N with weights="uniform"
"""

from torch import Tensor

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
class FedAvg(Method):
    name = "fedavg"
    title = "FedAvg"
    theories = ("utilitarian",)
    paper = "McMahan et al., AISTATS 2017, arXiv:1602.05629"
    grade = "verified"
    idea = "Average the clients' models, weighted by their numbers of examples."
    cost = "none: the others are compared with it"

    weights: BySize = "size"

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"sizes"} if self.weights == "size" else ())

    def aggregate(self, state: State, reports: Reports) -> tuple[State, Tensor, Diagnostics]:
        share = size_shares(reports.sizes, self.weights)
        return state, weighted_sum(share, reports.deltas), {"weight": share}
