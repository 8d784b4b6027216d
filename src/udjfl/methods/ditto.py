"""Ditto: beside the common model each client trains one of its own, drawn to the common one.

Li, Hu, Beirami, Smith. Ditto: Fair and Robust Federated Learning Through Personalization.
ICML 2021, arXiv:2012.04221.

    client i   trains the received model w as in FedAvg, and its own v_i on the same batches:
               v <- v - lr (gradient at v + lam (v - w))
    step       sum_i p_i (w - theta_i)        p_i = n_i / sum_j n_j, or 1/N with weights="uniform"
    served     v_i to client i

With lam = 0 each v_i is trained alone, from the initial model; as lam grows it becomes w: at lr lam
= 1, without momentum, a step leads from anywhere to w minus lr times the gradient. lr lam above 2
diverges, with momentum m above 2 (1 + m). The paper's search has lam of 0.1, 1 and 2. The server's
model is FedAvg's, to the last bit. Both models train with the same settings.

The server keeps the v_i [N, D] between rounds, so that a resumed run is exact and clients keep
nothing. It thereby sees every client's personal model, which Ditto's clients keep to themselves:
that tells it more about a client's data than the update does. An absent client's v_i stays.
"""

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from udjfl.methods.base import (
    BySize,
    Diagnostics,
    Method,
    Plan,
    Reports,
    ServedModels,
    Setup,
    State,
    parameters,
    size_shares,
    weighted_sum,
)


@parameters
class Ditto(Method):
    name = "ditto"
    title = "Ditto"
    theories = ("egalitarian",)
    baseline = True
    paper = "Li et al., ICML 2021, arXiv:2012.04221"
    grade = "verified"
    idea = "FedAvg, and for each client a personal model that is drawn to the common one."
    cost = (
        "local training twice, a second vector to and from each client; "
        "server: N D of memory, rewritten each round"
    )

    lam: Annotated[
        float,
        Field(ge=0, description="how strongly personal models are drawn to the common one"),
    ] = 0.1
    weights: BySize = "size"

    @property
    def needs(self) -> frozenset[str]:
        sizes = {"sizes"} if self.weights == "size" else set()
        return frozenset({"personal_deltas"} | sizes)

    def init(self, setup: Setup) -> State:
        return {"models": setup.model.repeat(len(setup), 1)}

    def notes(self, setup: Setup) -> list[str]:
        return [
            "Ditto: each client is served a model of its own; global accuracy is that of the "
            "common model, which is FedAvg's."
        ]

    def plan(self, state: State, probe: Reports | None) -> tuple[State, Plan]:
        return state, Plan(personal=state["models"], personal_mu=self.lam)

    def aggregate(self, state: State, reports: Reports) -> tuple[State, Tensor, Diagnostics]:
        models = state["models"].clone()
        models[reports.client_indices] -= reports.extras["personal_deltas"].to(models.dtype)
        share = size_shares(reports.sizes, self.weights)
        return {"models": models}, weighted_sum(share, reports.deltas), {"weight": share}

    def served(self, state: State, model: Tensor) -> ServedModels:
        return ServedModels(state["models"], torch.eye(len(state["models"]), dtype=torch.float64))
