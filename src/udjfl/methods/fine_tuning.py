"""FedAvg, then fine-tuning: in the last rounds every client goes on alone from the common model.

A landmark for methods that serve personal models: what the simplest of them reaches. Yu,
Bagdasaryan, Shmatikov. Salvaging Federated Learning by Local Adaptation. 2020, arXiv:2002.04758,
has fine-tuning among its adaptations.

    rounds 1 to T - t   FedAvg                     t = share T of all T rounds, at least one
    the last t rounds   client i trains its own v_i, which begins as FedAvg's model; the server's
                        model stays
    served              v_i to client i

The rounds are those of the run, so that clients train for as long as with any other method; that
the last of them are the adaptation is ours. A client that is not asked, or does not report, in the
last rounds is tuned less; after a round without any report they begin a round later. A server
optimiser with momentum moves the common model on in the last rounds, but not the v_i.

The server keeps the v_i [N, D] between rounds, so that a resumed run is exact and clients keep
nothing. It thereby sees models that fit single clients' data; clients that tune the common model
themselves, after the last round, would show it nothing more.
"""

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from udjfl.methods.base import (
    BySize,
    Diagnostics,
    Method,
    Reports,
    ServedModels,
    Setup,
    State,
    parameters,
    size_shares,
    weighted_sum,
)


@parameters
class FineTuning(Method):
    name = "fine-tuning"
    title = "FedAvg, fine-tuned"
    baseline = True
    paper = "Yu, Bagdasaryan & Shmatikov, 2020, arXiv:2002.04758"
    grade = "recalled"
    idea = "FedAvg; in the last rounds each client goes on alone, and is served what comes of it."
    cost = "server: N D of memory, rewritten in the last rounds"

    share: Annotated[
        float, Field(gt=0, le=1, description="share of the rounds in which clients train alone")
    ] = 0.1
    weights: BySize = "size"

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"model", "sizes"} if self.weights == "size" else {"model"})

    def init(self, setup: Setup) -> State:
        alone = max(1, round(self.share * setup.rounds))
        return {
            "models": setup.model.repeat(len(setup), 1),
            "round": torch.zeros((), dtype=torch.int64),
            "last_common_round": torch.tensor(setup.rounds - alone),
            "is_tuned": torch.zeros((), dtype=torch.int64),
        }

    def notes(self, setup: Setup) -> list[str]:
        return [
            "FedAvg, fine-tuned: each client is served a model of its own; global accuracy is "
            "that of the common model, before the rounds in which clients train alone."
        ]

    def initial_models(self, state: State, client_indices: Tensor) -> Tensor | None:
        return state["models"][client_indices] if state["is_tuned"] else None

    def aggregate(self, state: State, reports: Reports) -> tuple[State, Tensor, Diagnostics]:
        assert reports.model is not None
        alone = bool(state["round"] >= state["last_common_round"])
        share = size_shares(reports.sizes, self.weights)
        diagnostics = {"weight": share, "alone": torch.tensor(float(alone), dtype=torch.float64)}
        after = {**state, "round": torch.tensor(reports.round)}
        if not alone:
            return after, weighted_sum(share, reports.deltas), diagnostics
        models = state["models"].clone()
        if not state["is_tuned"]:
            models[:] = reports.model
        models[reports.client_indices] -= reports.deltas.to(models.dtype)
        after |= {"models": models, "is_tuned": torch.ones((), dtype=torch.int64)}
        return after, torch.zeros_like(reports.deltas[0]), diagnostics

    def served(self, state: State, model: Tensor) -> ServedModels:
        n = len(state["models"])
        if not state["is_tuned"]:
            return ServedModels(model[None], torch.ones(n, 1, dtype=torch.float64))
        return ServedModels(state["models"], torch.eye(n, dtype=torch.float64))
