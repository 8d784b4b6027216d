"""SCAFFOLD: every local gradient is corrected by how the client's differ from the average one.

Karimireddy, Kale, Mohri, Reddi, Stich, Suresh. SCAFFOLD: Stochastic Controlled Averaging for
Federated Learning. ICML 2020, arXiv:1910.06378.

    client i   theta <- theta - lr (gradient - c_i + c)       c = sum_j p_j c_j over all clients
    after it   c_i <- c_i - c + (w - theta_i) / (lr a_i)      of those that report; w: received
    step       sum_i p_i (w - theta_i)                        over the clients that report
               p_i = n_i / sum_j n_j, or 1/N with weights="uniform"

c_i, zero at first, is the mean gradient on the client's last way (the paper's option II), so the
first round is FedAvg's. a_i is the number of gradients in a client's change, as in `fednova.py`:
without momentum its steps, as in the paper, which has none. The paper weighs all clients alike; by
size the two averages stay those of one objective, FedAvg's.

The server keeps the c_i [N, D]: it can compute them from the updates, so clients keep nothing, send
nothing more than their number of steps, and a resumed run is exact. Each client receives c - c_i,
as large as the model. The server's own learning rate is `--server-optimizer sgd`'s. With few
clients in a round the c_i are old; with an optimiser other than SGD they are no gradients.
"""

import torch
from torch import Tensor

from udjfl.methods._local_steps import count_gradients
from udjfl.methods.base import (
    BySize,
    Diagnostics,
    Method,
    Plan,
    Reports,
    Setup,
    State,
    parameters,
    size_shares,
    weighted_sum,
)


@parameters
class Scaffold(Method):
    name = "scaffold"
    title = "SCAFFOLD"
    theories = ("utilitarian",)
    baseline = True
    paper = "Karimireddy et al., ICML 2020, arXiv:1910.06378"
    grade = "verified"
    idea = "Correct each local gradient by how the client's gradients differ from the average."
    cost = "a second vector to each client; server: N D of memory, rewritten each round"

    weights: BySize = "size"

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"sizes", "steps"} if self.weights == "size" else {"steps"})

    def init(self, setup: Setup) -> State:
        return {
            "variates": torch.zeros(len(setup), len(setup.model), dtype=setup.model.dtype),
            "shares": size_shares(setup.sizes.to(torch.float64), self.weights),
        }

    def plan(self, state: State, probe: Reports | None) -> tuple[State, Plan]:
        return state, Plan(shift=self._mean(state) - state["variates"])

    def aggregate(self, state: State, reports: Reports) -> tuple[State, Tensor, Diagnostics]:
        reach = reports.lr * count_gradients(reports.steps, reports.momentum)
        variates, mean = state["variates"].clone(), self._mean(state)
        for row, client in enumerate(reports.client_indices.tolist()):
            gradient = reports.deltas[row].to(torch.float64) / reach[row]
            variates[client] += (gradient - mean).to(variates.dtype)
        share = size_shares(reports.sizes, self.weights)
        step = weighted_sum(share, reports.deltas)
        return {**state, "variates": variates}, step, {"weight": share}

    def _mean(self, state: State) -> Tensor:
        """Return c [D]."""
        return weighted_sum(state["shares"], state["variates"])
