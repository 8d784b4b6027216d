"""FedFV: turn conflicting updates until they no longer point against each other, then average.

Wang, Fan, Qi, Wen, Wang, Yu. Federated Learning with Fair Averaging. IJCAI 2021, arXiv:2104.14937.

With m clients in round t, g_k = theta - theta_k and H_k the loss at the received model:

    order      the clients by loss, lowest first; the share alpha with the highest losses,
               order[ceil((m-1)(1-alpha)):], keep their update as it is (none if alpha = 0)
    internal   for every other k, h = g_k meets each g_j, j != k, in that order:
                   if <h, g_j> < 0:  h -= <h, g_j> / |g_j|^2 g_j
               G = 1/m sum_k h_k                               (h_k = g_k for those that keep it)
    external   if t >= tau, for r = tau-1, ..., 0:
                   c = sum of the last updates g_i of the clients that were last asked in round t-r
                   and have <G, g_i> < 0
                   if <G, c> < 0:  G -= <G, c> / |c|^2 c
    step       G |1/m sum_k g_k| / |G|

As in the authors' code, from which this was read: r = 0 is the clients of the current round, so
tau = 1 already removes what conflict is left with them, and clients count alike, whatever their
size. The defaults are that code's; the UDJ-FL paper did not run the method. Ties in the loss go by
client id.

The rescaling keeps steps long where updates nearly cancel, so with constant learning rates the
method does not come to rest but swings about the points where no client can gain without another
losing.

Ours: if nothing is left of G (clients with exactly opposite updates), there is no direction to
rescale and the step is 0, where the formula has 0/0. Updates of length 0 are skipped. 1e-9 is
subtracted from (m-1)(1-alpha), so that rounding cannot change which clients keep their update.
Absent clients take part through `external` alone, and only for tau >= 2 does the server have to
remember their last updates (N x D numbers): with tau <= 1 there is no state.
"""

import math
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from udjfl.methods import _linalg
from udjfl.methods._conflicts import NEGLIGIBLE, alignments, turn
from udjfl.methods.base import Diagnostics, Method, Reports, Setup, State, parameters


@parameters
class FedFV(Method):
    name = "fedfv"
    title = "FedFV"
    theories = ("egalitarian",)
    paper = "Wang et al., IJCAI 2021, arXiv:2104.14937"
    grade = "verified"
    idea = (
        "Average the clients' updates after removing from each "
        "what points against another client's."
    )
    cost = (
        "a forward pass over the client's data; "
        "server: K² D + K³, and N D of memory from tau = 2 on"
    )
    needs = frozenset({"losses"})

    alpha: Annotated[
        float,
        Field(
            ge=0,
            le=1,
            description="share of clients, those with the highest losses, "
            "whose updates are kept as they are",
        ),
    ] = 0.1
    tau: Annotated[
        int,
        Field(
            ge=0,
            description="rounds whose clients the step must not harm; 1: this round's, "
            "from 2 on absent ones too",
        ),
    ] = 1

    def init(self, setup: Setup) -> State:
        if self.tau < 2:
            return {}
        return {
            "last_updates": torch.zeros(len(setup), len(setup.model), dtype=setup.model.dtype),
            "last_rounds": torch.zeros(len(setup), dtype=torch.int64),  # 0: never asked
        }

    def aggregate(self, state: State, reports: Reports) -> tuple[State, Tensor, Diagnostics]:
        g, m = reports.deltas, len(reports)
        gram = _linalg.gram(g)
        order = reports.losses.argsort(stable=True)
        kept = self._kept(order)
        weights = turn(gram, order, kept=kept).mean(dim=0)
        state = self._remember(state, reports)
        G, mean = _linalg.combination(torch.stack([weights, torch.full_like(weights, 1 / m)]), g)
        if reports.round >= self.tau > 1:
            G = self._remove_past_conflicts(G, state, reports.round)
            dots = _linalg.dots(g, G)
        else:
            dots = gram @ weights  # G is made of this round's updates alone
        if reports.round >= self.tau > 0 and (dots < 0).any():
            against = (dots < 0).to(torch.float64)
            c = _linalg.combination(against, g)
            amount = conflict(G, c)
            G, weights = G - amount * c, weights - amount * against
            dots = dots - amount * (gram @ against)

        nothing_left = G.norm() <= NEGLIGIBLE * gram.diagonal().sqrt().mean()
        rescale = torch.zeros((), dtype=torch.float64) if nothing_left else mean.norm() / G.norm()
        diagnostics = {
            "weight": weights / weights.sum(),
            "kept": kept.to(torch.float64),
            "conflicts": (gram < 0).sum(dim=1).to(torch.float64),
            "alignment": alignments(gram, dots * rescale, G.norm() * rescale),
            "rescale": rescale,
        }
        return state, (G * rescale).to(reports.deltas.dtype), diagnostics

    def _kept(self, order: Tensor) -> Tensor:
        """Return a mask of the clients that keep their update."""
        first = math.ceil((len(order) - 1) * (1 - self.alpha) - 1e-9)
        return torch.isin(torch.arange(len(order)), order[first:]) & (self.alpha > 0)

    def _remember(self, state: State, reports: Reports) -> State:
        """Return the state with this round's updates in it."""
        if self.tau < 2:
            return state
        updates, rounds = state["last_updates"].clone(), state["last_rounds"].clone()
        updates[reports.client_indices] = reports.deltas.to(updates.dtype)
        rounds[reports.client_indices] = reports.round
        return {"last_updates": updates, "last_rounds": rounds}

    def _remove_past_conflicts(self, G: Tensor, state: State, t: int) -> Tensor:
        """Turn G across the conflicting clients of each earlier round, the earliest first."""
        updates = state["last_updates"]
        for r in range(self.tau - 1, 0, -1):
            asked = state["last_rounds"] == t - r
            against = asked.clone()
            against[asked] = _linalg.dots(_linalg.columns(updates, asked), G) < 0
            c = _linalg.total(_linalg.columns(updates, against))
            G = G - conflict(G, c) * c
        return G


def conflict(G: Tensor, c: Tensor) -> Tensor:
    """Return the multiple of c to subtract from G so that it does not point against c; or 0."""
    dot, square = G @ c, c @ c
    return dot / square if dot < 0 < square else torch.zeros_like(dot)
