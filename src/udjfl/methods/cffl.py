"""CFFL: every client has its own model and downloads as much of the common update as it has earned.

Lyu, Xu, Wang, Yu. Collaborative Fairness in Federated Learning. In: Federated Learning, LNCS 12500,
2020. The rule is that of the authors' published code; the paper's own constants of the running mean
were not checked against it.

    client j    trains its model w_j; D_j = its change, each coordinate clipped to [-clip, clip];
                w_j <- before + D_j;  uploads U_j: the theta P largest coordinates of D_j, of P
    reputation  v_j: accuracy on the server's validation data, of w_j if theta = 1, else of the
                server's model + U_j
                c_j <- memory c_j + (1-memory) v_j / sum_R v;  c <- sinh(alpha c) / sum sinh(alpha
                c) c = 0 at first. R, the reputable clients, loses for good those with c_j < coef /
                |R|; then c is normalised again
    server      A = sum_R a_j U_j      a_j = 1 (sum), n_j / sum n (mean) or c_j (reputation)
                model <- model + A
    download    client j of R: q_j = floor(c_j / max c * n_j / max n * P) coordinates of A, those
                that are largest (topk) or come first in a random order that all share (random)
                w_j <- w_j + those of A - b_j U_j       b_j = n_j / max n for mean, else 1: its own
                upload is taken back, also where nothing was downloaded

sinh is applied to the running value, so differences reinforce themselves once memory x coth(x) > 1
at x = alpha / |R|: with five clients and memory 0.8, from alpha = 4.45 on, all but the best lose
their reputation in the end, however close they are. The default alpha is therefore 2, the value
chosen in the UDJ-FL paper; the authors' code has 5 (over 30 rounds).

A client without reputation keeps training its own model alone; its update is ignored. The server's
own model is one that no client receives. `memory` is 0.8 in the authors' code, 0.5 with its fading
switched off. The paper's class-imbalance variant (classes counted instead of examples), the
pre-training of the authors' code, its decay of the learning rate and its optional growth of alpha
over the rounds are left out.

Deviations. Where the authors' code downloads everything at q_j = 0 (an empty index), here nothing
is downloaded. It also lets all coordinates that tie with the last one through, and clipping makes
many ties; here the counts are exact: uploads that tie are told apart by the change before clipping,
downloads by their position. At least one coordinate is uploaded. If every v_j is 0 the shares are
equal. sinh is taken in logarithms, so no alpha overflows. The random order depends on the round
alone. Where the server has no validation data, all clients' training data together replace it.
Our extension to partial participation: of R, those K that report share K/|R| of the reputation
among themselves; others keep theirs, and their share of what is left when a client is dropped. A
client that reports for the first time after others have starts from the mean, c_j = 1/|R|. No
absent client is dropped, and its model does not change. If all report, that is the rule above.
"""

import math
from collections.abc import Iterator
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from udjfl.methods._linalg import spans
from udjfl.methods.base import (
    Diagnostics,
    Method,
    Reports,
    ServedModels,
    Setup,
    State,
    parameters,
)
from udjfl.seeds import torch_stream

# A whole number that a product of shares misses by rounding is still that number; thresholds too.
ROUNDING = 1e-9
TINY = torch.finfo(torch.float64).tiny


@parameters
class CFFL(Method):
    name = "cffl"
    title = "CFFL"
    theories = ("desert",)
    paper = "Lyu et al., 2020, arXiv:2008.12161"
    grade = "verified"
    idea = (
        "Give each client as much of the common update as the quality of its own contributions "
        "has earned."
    )
    cost = (
        "server: the accuracy of K models on its own data, and N D of memory, rewritten each round"
    )

    alpha: Annotated[
        float,
        Field(
            ge=1e-6,
            description="how steeply accuracy turns into reputation "
            "(searched in the UDJ-FL paper: 1, 2, 3, 4, 5; chosen: 2)",
        ),
    ] = 2.0
    clip: Annotated[
        float, Field(gt=0, description="largest change of a parameter in one round")
    ] = 0.01
    theta: Annotated[
        float, Field(gt=0, le=1, description="share of its update that a client uploads")
    ] = 1.0
    coef: Annotated[
        float,
        Field(
            ge=0, le=1, description="clients below this share of the mean reputation are dropped"
        ),
    ] = 1 / 3
    memory: Annotated[
        float, Field(ge=0, lt=1, description="share of the old reputation in the new one")
    ] = 0.8
    aggregation: Annotated[
        Literal["sum", "mean", "reputation"],
        Field(description="add updates up, or weigh them by number of examples or reputation"),
    ] = "sum"
    download: Annotated[
        Literal["topk", "random"],
        Field(description="part of the update that clients get: the largest, or a random one"),
    ] = "random"

    @property
    def needs(self) -> frozenset[str]:
        needed = {"sizes", "validation_accuracies"}
        return frozenset(needed | {"model"} if self.theta < 1 else needed)

    def init(self, setup: Setup) -> State:
        return {
            "models": setup.model.repeat(len(setup), 1),
            "reputation": torch.zeros(len(setup), dtype=torch.float64),
            "reputable": torch.ones(len(setup), dtype=torch.int64),
            "reported": torch.zeros(len(setup), dtype=torch.int64),
            "sizes": setup.sizes.to(torch.float64).clone(),
        }

    def notes(self, setup: Setup) -> list[str]:
        own_models = (
            "CFFL: each client has a model of its own; global accuracy is that of the server's "
            "model, which none receives."
        )
        no_data = (
            "CFFL: the server has no data of its own, so reputations are measured on all "
            "clients' training data taken together; a federation with validation=(x, y) would "
            "measure them better."
        )
        return [own_models] if setup.has_validation else [own_models, no_data]

    def initial_models(self, state: State, client_indices: Tensor) -> Tensor:
        return state["models"][client_indices]

    def models_to_score(self, state: State, reports: Reports) -> Tensor:
        models = torch.empty_like(reports.deltas)
        for span, update, upload in self._updates(reports):
            if reports.model is None or self.theta == 1:
                base, change = state["models"][:, span][reports.client_indices], update
            else:
                base, change = reports.model[span], upload
            models[:, span] = (base.to(torch.float64) + change).to(models.dtype)
        return models

    def aggregate(self, state: State, reports: Reports) -> tuple[State, Tensor, Diagnostics]:
        clients = reports.client_indices
        standing = self._reputations(state, reports)
        c, reputable = standing["reputation"], standing["reputable"]
        inside = reputable[clients].to(torch.float64)
        largest = float(state["sizes"].max())

        weights = inside.clone()
        if self.aggregation == "mean":
            weights *= reports.sizes / reports.sizes.sum()
        elif self.aggregation == "reputation":
            weights *= c[clients] / c[clients].sum().clamp_min(TINY)
        P = reports.deltas.shape[1]
        A = torch.empty(P, dtype=torch.float64)
        for span, _, upload in self._updates(reports):
            A[span] = weights @ upload

        earned = c[clients] / c.max().clamp_min(TINY) * reports.sizes / largest
        q = (earned * P + ROUNDING).floor()
        rank = self._download_rank(A, reports.round)
        own = inside if self.aggregation != "mean" else inside * reports.sizes / largest

        models = state["models"].clone()
        for span, update, upload in self._updates(reports):
            change = torch.addcmul(update, own[:, None], upload, value=-1)
            change.addcmul_((rank[span] < q[:, None]).to(torch.float64), A[span])
            change += models[:, span].index_select(0, clients)
            models[:, span].index_copy_(0, clients, change.to(models.dtype))
        diagnostics = {
            "weight": weights / weights.sum().clamp_min(TINY),
            "reputation": c[clients],
            "reputable": inside,
            "downloaded": q / P,
            "threshold": self.coef / reputable.sum().to(torch.float64),
        }
        return {**state, "models": models, **standing}, (-A).to(reports.deltas.dtype), diagnostics

    def _updates(self, reports: Reports) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Yield spans of columns, with the clipped changes of models and the uploaded part."""
        chosen = None if self.theta == 1 else self._uploaded(reports.deltas)
        # Narrow spans, because up to four blocks are in use at once.
        for span in spans(reports.deltas.shape[1], 4 * len(reports)):
            block = reports.deltas[:, span].to(torch.float64, copy=True)
            update = block.clamp_(-self.clip, self.clip).neg_()
            upload = update if chosen is None else torch.where(chosen[:, span], update, 0.0)
            yield span, update, upload

    def _uploaded(self, deltas: Tensor) -> Tensor:
        """Return a mask [K, P] of the coordinates that are uploaded: each client's largest."""
        count = max(1, math.floor(self.theta * deltas.shape[1] + ROUNDING))
        chosen = torch.zeros(deltas.shape, dtype=torch.bool)
        for row, delta in zip(chosen, deltas, strict=True):
            row[delta.abs().sort(descending=True, stable=True).indices[:count]] = True
        return chosen

    def _reputations(self, state: State, reports: Reports) -> State:
        """Return reputations [N], and who is reputable and has reported, after this round."""
        standing = {name: state[name].clone() for name in ("reputation", "reputable", "reported")}
        c, reputable, reported = standing.values()
        here = reputable[reports.client_indices] == 1
        clients = reports.client_indices[here]
        if not len(clients):
            return standing
        n_reputable = int(reputable.sum())
        if reported.any():  # late clients start at the mean
            c[clients] = torch.where(reported[clients] == 1, c[clients], 1 / n_reputable)
        v = reports.extras["validation_accuracies"].to(torch.float64).reshape(-1)[here]
        share = v / v.sum() if v.any() else torch.full_like(v, 1 / len(v))
        present = len(clients) / n_reputable
        x = self.alpha * (self.memory * c[clients] + (1 - self.memory) * present * share)
        log_sinh = x + torch.log(-torch.expm1(-2 * x))  # up to a constant
        new = present * torch.softmax(log_sinh, dim=0)
        stays = new >= self.coef / n_reputable * (1 - ROUNDING)
        left = n_reputable - int((~stays).sum())
        if not stays.all():
            c *= n_reputable / left  # the dropped clients' reputation goes to all the others
            new = torch.where(stays, new / new[stays].sum() * (int(stays.sum()) / left), 0.0)
        c[clients], reputable[clients], reported[clients] = new, stays.to(reputable.dtype), 1
        return standing

    def _download_rank(self, A: Tensor, round: int) -> Tensor:
        """Return each coordinate's position [P] in the order of downloading."""
        if self.download == "random":
            order = torch.randperm(len(A), generator=torch_stream(0, "cffl download", round))
        else:
            order = A.abs().sort(descending=True, stable=True).indices
        return torch.empty_like(order).scatter_(0, order, torch.arange(len(A)))

    def served(self, state: State, model: Tensor) -> ServedModels:
        return ServedModels(state["models"], torch.eye(len(state["models"]), dtype=torch.float64))
