"""AFL, agnostic federated learning: shift weight to the clients with the largest losses.

Mohri, Sivek, Suresh. Agnostic Federated Learning. ICML 2019. arXiv:1902.00146.

    objective   min over w of max over lambda of sum_k lambda_k F_k(w)
                lambda >= 0, sum_k lambda_k = 1: the worst mixture of the clients

    lambda  <-  P(lambda + gamma_lambda F)          P: the nearest point of the simplex
    step    =   sum_k lambda_k (w - w_k)

The paper's own algorithm is recalled, not read: one stochastic gradient per round, and the mean of
all iterates as the result. Here clients train as in FedAvg. The two orders are those of published
codes, which disagree:

    order="update_first"   lambda moves before it is used, and starts at n_k / sum_j n_j (the codes
                           of PropFair's and of UDJ-FL's authors): the default
    order="step_first"     the step is taken with the old lambda, which moves afterwards, and with
                           start="uniform" begins at 1/N (the code of q-FFL's authors, who take a
                           single minibatch per round, and flgo)

Under either order the last model is the result; the mean of the iterates is not kept. With constant
steps lambda can settle on one client and jump to another, the sooner the larger gamma_lambda (here
lr_lambda) times the spread of the losses. q-FFL's authors have 0.1 in their example, and advised a
user whose training was stuck to try 0.01.

Partial participation is not in the paper. Our extension: lambda is kept for every client of the
federation; those that report move, all are projected together (so that the others give way), and
the step uses the reporting clients' lambda, divided by its sum. If that sum is zero (all weight is
on absent clients), they count as they do at the start.
"""

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from udjfl.methods._solvers import project_to_simplex
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

NO_WEIGHT = 1e-12


@parameters
class AFL(Method):
    name = "afl"
    title = "AFL"
    theories = ("rawls",)
    paper = "Mohri et al., ICML 2019, arXiv:1902.00146"
    grade = "verified"
    idea = "Shift weight, round after round, to the clients with the largest losses."
    cost = "a forward pass over the client's data"

    lr_lambda: Annotated[
        float,
        Field(
            ge=0,
            le=1e6,
            description="how fast weight moves to large losses (UDJ-FL paper: 0.1, not searched)",
        ),
    ] = 0.1
    order: Annotated[
        Literal["update_first", "step_first"],
        Field(description="whether the weights move before or after a round uses them"),
    ] = "update_first"
    start: BySize = "size"

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"losses", "sizes"} if self.start == "size" else {"losses"})

    def init(self, setup: Setup) -> State:
        return {"lambda": size_shares(setup.sizes.to(torch.float64), self.start)}

    def aggregate(self, state: State, reports: Reports) -> tuple[State, Tensor, Diagnostics]:
        old = state["lambda"]
        moved = old.index_add(0, reports.client_indices, self.lr_lambda * reports.losses)
        new = project_to_simplex(moved)
        used = (new if self.order == "update_first" else old)[reports.client_indices]
        has_weight = used.sum() > NO_WEIGHT
        share = used / used.sum() if has_weight else size_shares(reports.sizes, self.start)
        diagnostics = {"weight": share, "lambda": new[reports.client_indices]}
        return {"lambda": new}, weighted_sum(share, reports.deltas), diagnostics
