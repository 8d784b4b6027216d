"""mFairFL: a penalty on gaps between groups within each client, and conflicting updates turned.

Su, Yu, Wang, Li, Li, Yu. Multi-dimensional Fair Federated Learning. AAAI 2024, arXiv:2312.05551.

    client k   min over theta, max over lam_k >= 0:  H_k(theta) + lam_k gap_k(theta)
               gap_k    difference between the mean losses of the worst and the best served group of
                        the sensitive attribute
               lam_k <- max(0, lam_k + lam_rate gap_k)
    server     g_k = theta - theta_k, s_ij their cosines, s*_ij the target similarity. Each g_i
               meets every other g_j, lowest loss first, and where cos(g_i, g_j) < s*_ij it is
               turned, and stretched, until they are equal:
               g_i <- g_i + g_j |g_i| (s* sqrt(1-s^2) - s sqrt(1-s*^2)) / (|g_j| sqrt(1-s*^2))
               step     1/m sum_i g_i
               s*_ij <- (1 - similarity_rate) s*_ij + similarity_rate s_ij, from 0 on, after the
               step

Recalled, not read: the whole server step - that conflicts are measured against a moving average of
past similarities, the order, and the plain average after it. (The formula for turning is that of
Gradient Vaccine, Wang et al., ICLR 2021, arXiv:2010.05874.) The client's objective was read in a
third-party re-implementation that has no conflict step; lam_start and lam_rate are its values. The
default of similarity_rate is ours. The UDJ-FL paper did not run the method.

With similarity_rate = 0 the target stays 0, which makes the server step FedFV's projection with
alpha = 0, not rescaled. A pair that has long been in conflict gets a target below 0: only what is
worse than usual is then corrected.

Ours: lam_k moves once per round, by the gap over all the client's data at the received model, where
the third-party code moves it at every batch; so clients keep no state and a checkpoint has all. A
gap is never negative, so lam_k grows as long as there is one. More than two groups are allowed. A
batch in which fewer than two groups occur has no gap. Targets stay within 0.99 of 0, since 1
divides by zero, and a turned update is never stretched beyond ten times its length. Absent clients
keep their lam_k, and pairs that did not meet their target. Without a sensitive attribute only the
server step remains.
"""

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from udjfl.methods._conflicts import alignments, cosines, turn
from udjfl.methods._linalg import combination, gram
from udjfl.methods.base import Diagnostics, Method, Plan, Reports, Setup, State, parameters


@parameters
class MFairFL(Method):
    name = "mfairfl"
    title = "mFairFL"
    theories = ("egalitarian",)
    paper = "Su et al., AAAI 2024, arXiv:2312.05551"
    grade = "recalled"
    idea = (
        "Penalise the gap between groups' losses in local training, "
        "and turn clients' updates where they conflict."
    )
    cost = "a forward pass over the client's data; server: K² D + K³, and N² of memory"
    needs = frozenset({"losses"})
    needs_groups = frozenset({"group_gaps"})

    lam_start: Annotated[
        float, Field(ge=0, description="penalty on the gap between groups, in round 1")
    ] = 1.0
    lam_rate: Annotated[
        float, Field(ge=0, description="how fast a client's penalty grows with its gap; 0: fixed")
    ] = 0.1
    similarity_rate: Annotated[
        float,
        Field(
            ge=0,
            le=1,
            description="weight of the last round in the target similarity of updates; "
            "0: the target stays 0",
        ),
    ] = 0.01

    def init(self, setup: Setup) -> State:
        state = {"lam": torch.full((len(setup),), self.lam_start, dtype=torch.float64)}
        if self.similarity_rate > 0:
            state["targets"] = torch.zeros(len(setup), len(setup), dtype=torch.float64)
        return state

    def notes(self, setup: Setup) -> list[str]:
        no_groups = (
            "Without a sensitive attribute only the client-level part of mFairFL runs: "
            "conflicts between updates."
        )
        return [] if setup.has_groups else [no_groups]

    def plan(self, state: State, probe: Reports | None) -> tuple[State, Plan]:
        return state, Plan(multipliers=state["lam"])

    def objective(
        self, losses: Tensor, weights: Tensor, groups: Tensor | None, multipliers: Tensor | None
    ) -> Tensor:
        mean = super().objective(losses, weights, groups, multipliers)
        if groups is None or multipliers is None:
            return mean
        return mean + multipliers.to(mean.dtype) * group_gap(losses, weights, groups)

    def aggregate(self, state: State, reports: Reports) -> tuple[State, Tensor, Diagnostics]:
        clients = reports.client_indices
        inner = gram(reports.deltas)
        similarities, pair = cosines(inner), (clients[:, None], clients)
        targets = state["targets"][pair] if self.similarity_rate > 0 else torch.zeros_like(inner)
        factors = turn(inner, reports.losses.argsort(stable=True), targets).mean(dim=0)
        step = combination(factors, reports.deltas)

        gaps = reports.extras.get("group_gaps", torch.zeros(len(reports))).to(torch.float64)
        after = {name: value.clone() for name, value in state.items()}
        after["lam"][clients] = (state["lam"][clients] + self.lam_rate * gaps).clamp_min(0)
        moving = inner.diagonal() > 0
        pairs = moving[:, None] & moving  # an update of length zero has no angle with any other
        if self.similarity_rate > 0:
            moved = targets + self.similarity_rate * (similarities - targets)
            after["targets"][pair] = torch.where(pairs, moved, targets)
        conflicts = pairs & (similarities < targets) & ~torch.eye(len(reports), dtype=torch.bool)
        diagnostics = {
            "weight": factors / factors.sum(),
            "conflicts": conflicts.sum(dim=1).to(torch.float64),
            "alignment": alignments(inner, inner @ factors, step.norm()),
            "lam": state["lam"][clients],
            "group_gap": gaps,
            "step_scale": factors.sum(),
        }
        return after, step.to(reports.deltas.dtype), diagnostics


def group_gap(losses: Tensor, weights: Tensor, groups: Tensor) -> Tensor:
    """Return the gap [K] between the highest and lowest mean loss of groups in each client's batch.

    It is 0 where fewer than two groups occur. Examples with weight 0 (padding) or a group below 0
    (none) belong to no group.
    """
    highest = torch.full_like(losses[:, 0], -torch.inf)
    lowest = torch.full_like(highest, torch.inf)
    for group in torch.unique(groups).tolist():
        members = weights * (groups == group) * (group >= 0)
        total = members.sum(dim=1)
        # Never 0/0, not even where the result is unused: its gradient would still be NaN.
        mean = (losses * members).sum(dim=1) / torch.where(total > 0, total, 1.0)
        highest = torch.where(total > 0, torch.maximum(highest, mean), highest)
        lowest = torch.where(total > 0, torch.minimum(lowest, mean), lowest)
    some = highest > -torch.inf
    return torch.where(some, highest, 0.0) - torch.where(some, lowest, 0.0)
