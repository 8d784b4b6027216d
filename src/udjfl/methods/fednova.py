"""FedNova: the average of clients' mean gradients, so that more local steps do not count more.

Wang, Liu, Liang, Joshi, Poor. Tackling the Objective Inconsistency Problem in Heterogeneous
Federated Optimization. NeurIPS 2020, arXiv:2007.07481.

    a_i    the number of gradients in client i's change: its steps s_i, with momentum m
           [s_i - m (1-m^s_i) / (1-m)] / (1-m)
    step   (sum_i p_i a_i) sum_i p_i (theta - theta_i) / a_i
           p_i = n_i / sum_j n_j, or 1/N with weights="uniform"

With equally many steps everywhere it is FedAvg. Clients that train for as many epochs take more
steps the more examples they have; FedAvg by size therefore counts them by n_i s_i, FedNova by n_i.
Left out: the paper's variants with a proximal term, with an overall tau of choice, and with
momentum on the server (`--server-optimizer momentum` has that).
"""

from torch import Tensor

from udjfl.methods._local_steps import count_gradients
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
class FedNova(Method):
    name = "fednova"
    title = "FedNova"
    theories = ("utilitarian",)
    baseline = True
    paper = "Wang et al., NeurIPS 2020, arXiv:2007.07481"
    grade = "verified"
    idea = "Average the clients' mean gradients, so that more local steps do not count more."
    cost = "none"

    weights: BySize = "size"

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"sizes", "steps"} if self.weights == "size" else {"steps"})

    def aggregate(self, state: State, reports: Reports) -> tuple[State, Tensor, Diagnostics]:
        share = size_shares(reports.sizes, self.weights)
        gradients = count_gradients(reports.steps, reports.momentum)
        weight = (share * gradients).sum() * share / gradients
        diagnostics = {"weight": weight / weight.sum(), "step_scale": weight.sum()}
        return state, weighted_sum(weight, reports.deltas), diagnostics
