"""FedMGDA+: step along the shortest mixture of the clients' directions: it is downhill for each.

Hu, Shaloudegi, Zhang, Yu. Federated Learning Meets Multi-objective Optimization. IEEE Transactions
on Network Science and Engineering 2022, arXiv:2006.11489.

    objective   a Pareto-stationary point of (F_1, ..., F_K): none can fall unless another rises
    directions  u_k = d_k / |d_k|                                         d_k = theta - theta_k
    weights     l = argmin |sum_k l_k u_k|^2     with sum l = 1, l >= 0, |l_k - l0_k| <= epsilon
    step        eta_t d,  d = sum_k l_k u_k

epsilon = 0 keeps the weights at l0; epsilon = 1 leaves them free, and then <u_k, d> >= |d|^2: the
step leads downhill for each client. Lengths of updates do not count, so |d| <= 1: the step is a
distance between models, not a multiple of the updates.

l0       1/K is the default, as in the utility that the original code is known by; other public
         codes take n_k / n ("size").
epsilon  public codes start from 0.1, 0.2 or 1; the default is what the UDJ-FL paper chose for both
         of its data sets. (What that paper's code ran under this name discards these weights and
         averages.)
eta_t    server_lr / (1 + decay (t-1)) in round t. Public codes keep it fixed, which may never
         settle: a step that is long beside the distance to the goal overshoots for ever. That the
         paper tunes a decay is recalled; this form of it is ours.

A client whose update is exactly zero has no direction: it is left out, and l0 is shared among the
others. Under partial participation l0 and the weights are over the clients that report.
"""

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from udjfl.methods import _linalg
from udjfl.methods._conflicts import cosines
from udjfl.methods._solvers import min_norm_weights
from udjfl.methods.base import Diagnostics, Method, Reports, State, parameters, size_shares


@parameters
class FedMGDA(Method):
    name = "fedmgda"
    title = "FedMGDA+"
    theories = ("egalitarian",)
    paper = "Hu et al., IEEE TNSE 2022, arXiv:2006.11489"
    grade = "verified"
    idea = (
        "Give every client's direction the same length, "
        "and step along the mixture that is downhill for all of them."
    )
    cost = "server: K² D, and a quadratic programme over K clients"

    epsilon: Annotated[
        float,
        Field(
            ge=0,
            le=1,
            description="how far weights may move from l0; 1: freely "
            "(searched in the UDJ-FL paper: 0.05, 0.1, 0.5)",
        ),
    ] = 0.5
    l0: Annotated[
        Literal["uniform", "size"],
        Field(description="weights to stay near: all alike, or by number of examples"),
    ] = "uniform"
    server_lr: Annotated[
        float,
        Field(gt=0, le=1e6, description="longest possible step, as a distance between models"),
    ] = 1.0
    decay: Annotated[
        float, Field(ge=0, description="round t steps by server_lr / (1 + decay (t-1))")
    ] = 0.0

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"sizes"} if self.l0 == "size" else ())

    def aggregate(self, state: State, reports: Reports) -> tuple[State, Tensor, Diagnostics]:
        gram = _linalg.gram(reports.deltas)
        lengths = gram.diagonal().sqrt()
        moving = lengths > 0
        weight, inverse = torch.zeros_like(lengths), torch.where(moving, 1 / lengths, 0.0)
        if moving.any():
            l0 = size_shares(reports.sizes[moving], self.l0)
            products = cosines(gram)[moving][:, moving]  # of the directions
            weight[moving] = min_norm_weights(
                products, (l0 - self.epsilon).clamp_min(0), l0 + self.epsilon
            )
        rate = self.server_lr / (1 + self.decay * (reports.round - 1))
        direction = _linalg.combination(weight * inverse, reports.deltas)
        diagnostics = {
            "weight": weight,
            "update_length": lengths,
            "common_length": direction.norm(),
        }
        return state, (rate * direction).to(reports.deltas.dtype), diagnostics
