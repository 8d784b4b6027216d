"""CFFL: every client has a model of its own and downloads as much of the common update as its reputation earns.

Lyu, Xu, Wang, Yu. Collaborative Fairness in Federated Learning. In: Federated Learning, LNCS 12500, 2020. The rule is that of
the authors' published code; the paper's own constants of the running mean were not checked against it.

    client j    trains its model w_j; D_j = each coordinate of the change clipped to [-clip, clip];  w_j <- before + D_j
                uploads U_j: the theta P largest coordinates of D_j, of P
    reputation  v_j: accuracy on the server's validation data, of w_j if theta = 1, else of the server's model + U_j
                c_j <- memory c_j + (1-memory) v_j / sum_R v;     c <- sinh(alpha c) / sum sinh(alpha c)        c = 0 at first
                R, the reputable, loses for good whoever has c_j < coef / |R|; then c is normalised again
    server      A = sum_R a_j U_j            a_j = 1 (sum), n_j / sum n (mean) or c_j (reputation);      model <- model + A
    download    client j of R: the q_j = floor(c_j / max c * n_j / max n * P) coordinates of A that are largest (topk) or come
                first in a random order that all share (random);      w_j <- w_j + those of A - b_j U_j
                b_j = n_j / max n for mean, else 1: the own upload is taken back, also where nothing was downloaded

sinh is applied to the running value, so differences feed on themselves once memory x coth(x) > 1 at x = alpha / |R|: with five
clients and memory 0.8, from alpha = 4.45 on, all but the best lose their reputation in the end, however close they are. The
default alpha is therefore 2, the value chosen in the UDJ-FL paper; the authors' code has 5 (over 30 rounds).

A client without reputation keeps training its own model alone; its update is ignored. The server's own model is one that no
client receives. `memory` is 0.8 in the authors' code, 0.5 with its fading switched off. The paper's class-imbalance variant
(classes counted in place of examples), the pre-training of the authors' code, its decay of the learning rate and its
optional growth of alpha over the rounds are left out.

Deviations. Where the authors' code downloads everything at q_j = 0 (an empty index), here nothing is downloaded. It also
lets all coordinates that tie with the last one through, and clipping makes many ties; here the counts are exact: uploads
that tie are told apart by the change before clipping, downloads by their place. At least one coordinate is uploaded.
If every v_j is 0 the shares are equal. sinh is taken in logarithms, so no alpha overflows.
The random order depends on the round alone. Where the server has no validation data, what all clients train on is used in its
place, taken together. Our extension to partial participation: of R, those K that report share K/|R| of the reputation among
themselves, others keep theirs, and their share of what is left when somebody is dropped. Who reports for the first time after
others have starts from the mean, c_j = 1/|R|. Nobody is dropped, and no model changes, in absence. With everybody present that
is the rule above.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from udjfl.methods._linalg import spans
from udjfl.methods.base import (
    Diagnostics,
    Grade,
    Method,
    Reports,
    ServedModels,
    Setup,
    State,
    parameters,
)
from udjfl.seeds import torch_stream

# A whole number that a product of shares misses by rounding is still that number; so is a threshold.
ROUNDING = 1e-9


@parameters
class CFFL(Method):
    name: ClassVar[str] = "cffl"
    title: ClassVar[str] = "CFFL"
    theories = ("desert",)
    paper: ClassVar[str] = "Lyu et al., 2020, arXiv:2008.12161"
    grade: ClassVar[Grade] = "verified"
    idea: ClassVar[str] = (
        "Give each client as much of the common update as the quality of its own contributions has earned."
    )
    cost: ClassVar[str] = (
        "server: the accuracy of K models on its own data, and N D of memory, rewritten each round"
    )
    needs: ClassVar[frozenset[str]] = frozenset({"sizes", "validation_accuracies"})

    alpha: Annotated[
        float,
        Field(
            ge=1e-6,
            description="how steeply accuracy turns into reputation (searched in the UDJ-FL paper: 1, 2, 3, 4, 5; chosen: 2)",
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
        Field(ge=0, le=1, description="who falls below this share of the mean reputation is out"),
    ] = 1 / 3
    memory: Annotated[
        float, Field(ge=0, lt=1, description="share of the old reputation in the new one")
    ] = 0.8
    aggregation: Annotated[
        Literal["sum", "mean", "reputation"],
        Field(description="add updates up, or weigh them by examples or reputation"),
    ] = "sum"
    download: Annotated[
        Literal["topk", "random"],
        Field(description="which part of the update clients get: the largest, or a random one"),
    ] = "random"

    def init(self, setup: Setup) -> State:
        return {
            "models": setup.model.repeat(len(setup), 1),
            "reputation": torch.zeros(len(setup), dtype=torch.float64),
            "reputable": torch.ones(len(setup), dtype=torch.int64),
            "reported": torch.zeros(len(setup), dtype=torch.int64),
            "sizes": setup.sizes.to(torch.float64).clone(),
        }

    def notes(self, setup: Setup) -> list[str]:
        said = [
            "CFFL: each client has a model of its own; global accuracy is that of the server's model, which none receives."
        ]
        if not setup.has_validation:
            said.append(
                "CFFL: the server has no data of its own, so reputations are measured on all clients' training data taken "
                "together; a federation with validation=(x, y) would measure them better."
            )
        return said

    def initial_models(self, state: State, client_indices: Tensor) -> Tensor:
        return state["models"][client_indices]

    def models_to_score(self, state: State, reports: Reports) -> Tensor:
        if self.theta < 1:
            reports.require("model")
        models = torch.empty_like(reports.deltas)
        for span, update, upload in self._updates(reports):
            if reports.model is None or self.theta == 1:
                base, change = state["models"][:, span][reports.client_indices], update
            else:
                base, change = reports.model[span], upload
            models[:, span] = (base.to(torch.float64) + change).to(models.dtype)
        return models

    def aggregate(self, state: State, reports: Reports) -> tuple[State, Tensor, Diagnostics]:
        reports.require("sizes", "validation_accuracies")
        places = reports.client_indices
        standing = self._reputations(state, reports)
        c, reputable = standing["reputation"], standing["reputable"]
        inside = reputable[places].to(torch.float64)
        largest = float(state["sizes"].max())

        weights = inside.clone()
        if self.aggregation == "mean":
            weights *= reports.sizes / reports.sizes.sum()
        elif self.aggregation == "reputation":
            weights *= c[places] / c[places].sum().clamp_min(torch.finfo(torch.float64).tiny)
        P = reports.deltas.shape[1]
        A = torch.empty(P, dtype=torch.float64)
        for span, _, upload in self._updates(reports):
            A[span] = weights @ upload

        earned = (
            c[places] / c.max().clamp_min(torch.finfo(torch.float64).tiny) * reports.sizes / largest
        )
        q = (earned * P + ROUNDING).floor()
        rank = self._download_rank(A, reports.round)
        own = inside if self.aggregation != "mean" else inside * reports.sizes / largest

        models = state["models"].clone()
        for span, update, upload in self._updates(reports):
            change = torch.addcmul(update, own[:, None], upload, value=-1)
            change.addcmul_((rank[span] < q[:, None]).to(torch.float64), A[span])
            change += models[:, span].index_select(0, places)
            models[:, span].index_copy_(0, places, change.to(models.dtype))
        notes = {
            "weight": weights / weights.sum().clamp_min(torch.finfo(torch.float64).tiny),
            "reputation": c[places],
            "reputable": inside,
            "downloaded": q / P,
            "threshold": self.coef / reputable.sum().to(torch.float64),
        }
        return {**state, "models": models, **standing}, (-A).to(reports.deltas.dtype), notes

    def _updates(self, reports: Reports) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """The clipped changes of the clients' models and the part of them that is uploaded, for a span of columns each."""
        chosen = None if self.theta == 1 else self._uploaded(reports.deltas)
        for span in spans(
            reports.deltas.shape[1], 4 * len(reports)
        ):  # narrow: up to four blocks are in use at once
            update = (
                reports.deltas[:, span]
                .to(torch.float64, copy=True)
                .clamp_(-self.clip, self.clip)
                .neg_()
            )
            yield (
                span,
                update,
                update if chosen is None else torch.where(chosen[:, span], update, 0.0),
            )

    def _uploaded(self, deltas: Tensor) -> Tensor:
        """[K, P] which coordinates are uploaded: each client's largest."""
        count = max(1, math.floor(self.theta * deltas.shape[1] + ROUNDING))
        chosen = torch.zeros(deltas.shape, dtype=torch.bool)
        for row, delta in zip(chosen, deltas, strict=True):
            row[delta.abs().sort(descending=True, stable=True).indices[:count]] = True
        return chosen

    def _reputations(self, state: State, reports: Reports) -> State:
        """[N] reputations, who is reputable and who has ever reported, after this round's accuracies."""
        c, reputable, reported = (
            state[name].clone() for name in ("reputation", "reputable", "reported")
        )
        here = reputable[reports.client_indices] == 1
        places = reports.client_indices[here]
        if not len(places):
            return {"reputation": c, "reputable": reputable, "reported": reported}
        n_reputable = int(reputable.sum())
        if reported.any():  # so as not to be below the mean for having come late
            c[places] = torch.where(reported[places] == 1, c[places], 1 / n_reputable)
        v = reports.extras["validation_accuracies"].to(torch.float64).reshape(-1)[here]
        share = v / v.sum() if v.sum() > 0 else torch.full_like(v, 1 / len(v))
        present = len(places) / n_reputable
        x = self.alpha * (self.memory * c[places] + (1 - self.memory) * present * share)
        new = present * torch.softmax(
            x + torch.log(-torch.expm1(-2 * x)), dim=0
        )  # proportional to sinh(x)
        stays = new >= self.coef / n_reputable * (1 - ROUNDING)
        left = n_reputable - int((~stays).sum())
        if left < n_reputable:
            c *= (
                n_reputable / left
            )  # what those who left had belongs to all the others, the absent among them
            new = torch.where(stays, new / new[stays].sum() * (int(stays.sum()) / left), 0.0)
        c[places], reputable[places], reported[places] = new, stays.to(reputable.dtype), 1
        return {"reputation": c, "reputable": reputable, "reported": reported}

    def _download_rank(self, A: Tensor, round: int) -> Tensor:
        """[P] each coordinate's place in the order in which they are handed out."""
        if self.download == "random":
            order = torch.randperm(len(A), generator=torch_stream(0, "cffl download", round))
        else:
            order = A.abs().sort(descending=True, stable=True).indices
        return torch.empty_like(order).scatter_(0, order, torch.arange(len(A)))

    def served(self, state: State, model: Tensor) -> ServedModels:
        return ServedModels(state["models"], torch.eye(len(state["models"]), dtype=torch.float64))
