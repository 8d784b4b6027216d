"""FedDyn: each client's loss is tilted, so that all local minima move to the common one.

Acar, Zhao, Matas, Mattina, Whatmough, Saligrama. Federated Learning Based on Dynamic
Regularization. ICLR 2021, arXiv:2111.04263.

    client i   minimises  H_i(theta) - <h_i, theta> + alpha/2 |theta - w|^2,  w the received model:
               theta <- theta - lr (gradient + alpha (theta - w) - h_i)
    after it   h_i <- h_i + alpha (w - theta_i)        of the clients that report; zero at first
    step       mean_i (w - theta_i) + h / alpha        h = sum_j h_j / N over all clients

If clients train to the end, h_i is their gradient at theta_i. Here D_i = h_i / alpha is kept, the
sum of all the changes that client i has reported: the step is mean_i (w - theta_i) + mean_j D_j.
So the first step is twice FedAvg's, uniform; as alpha -> 0 clients train as in FedAvg, but the
server goes on adding up all that they ever reported: alpha is no switch. The paper has alpha from
0.001 to 0.1, long local training and weight decay; with a few local steps, the D_i outgrow what
alpha D_i can correct, and the run diverges: then take a larger alpha, a smaller lr or more epochs.

The server keeps the D_i [N, D], which are sums of the updates it saw: clients keep nothing, and a
resumed run is exact. Each client receives alpha D_i, as large as the model. Clients are weighed
alike, as in the paper.
"""

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from udjfl.methods._linalg import combination, squared_norms
from udjfl.methods.base import Diagnostics, Method, Plan, Reports, Setup, State, parameters


@parameters
class FedDyn(Method):
    name = "feddyn"
    title = "FedDyn"
    theories = ("utilitarian",)
    baseline = True
    paper = "Acar et al., ICLR 2021, arXiv:2111.04263"
    grade = "verified"
    idea = "Tilt each client's loss by its past changes, so that local minima meet in one."
    cost = "a second vector to each client; server: N D of memory, rewritten each round"

    alpha: Annotated[
        float,
        Field(gt=0, description="how strongly clients are drawn to the received model, and tilted"),
    ] = 0.1

    def init(self, setup: Setup) -> State:
        return {"changes": torch.zeros(len(setup), len(setup.model), dtype=setup.model.dtype)}

    def plan(self, state: State, probe: Reports | None) -> tuple[State, Plan]:
        return state, Plan(mu=self.alpha, shift=-self.alpha * state["changes"])

    def aggregate(self, state: State, reports: Reports) -> tuple[State, Tensor, Diagnostics]:
        changes = state["changes"].clone()
        changes[reports.client_indices] += reports.deltas.to(changes.dtype)
        step = combination(_equal_shares(len(reports)), reports.deltas)
        history = combination(_equal_shares(len(changes)), changes)
        diagnostics = {"history_norm": squared_norms(history[None])[0].sqrt()}
        return {"changes": changes}, (step + history).to(reports.deltas.dtype), diagnostics


def _equal_shares(count: int) -> Tensor:
    return torch.full((count,), 1 / count, dtype=torch.float64)
