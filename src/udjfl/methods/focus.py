"""FOCUS: several models, each learnt from the clients it suits; clients predict with mixtures.

Chu, Xie, Wang, Li, Yin, Nourian, Zhao, Li. FOCUS: Fairness via Agent-Awareness for Federated
Learning on Heterogeneous Data. 2022. The design (soft clustering by expectation-maximisation, an
ensemble per client) is the paper's. The formulas below are recalled, not read: no code was
published and the full text could not be checked. Recalled are the use of the mean loss in the
exponent, the uniform start of pi, and the temperature, which is 1 unless set.

    for client e and model m, with l_em the client's mean training loss at the received model w_m:

    E-step       pi_em  <-  pi_em exp(-l_em / temperature) / sum_m' pi_em' exp(-l_em' / temperature)
    M-step       w_m    <-  sum_e pi_em theta_em / sum_e pi_em      theta_em: w_m trained by client
                 e
    step         for each model m: sum_e pi_em (w_m - theta_em) / sum_e pi_em
    prediction   client e: sum_m pi_em p(y | x, w_m)

The server's vector is the M models end to end, and every client trains each of them: M times the
computing and sending. There is no global model. The logarithm of pi is kept, so no share is ever
lost to underflow. A model whose shares sum to less than 1e-10 does not move. Models that start
alike, with uniform pi, stay alike for ever; the M initial models therefore have to be drawn
independently. With one model this is FedAvg with uniform weights. As the temperature falls, each
client goes to the model of its least loss (IFCA, HypCluster). Clients that do not report keep their
pi; the M-step is over those that do. The paper's measure, the largest difference of two clients'
excess losses, needs each client's best possible loss; it is not computed here.
"""

import math
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from udjfl.errors import SettingsError
from udjfl.methods.base import (
    Diagnostics,
    Method,
    Reports,
    ServedModels,
    Setup,
    State,
    parameters,
    weighted_sum,
)

# A model whose shares sum to less than this does not move.
EMPTY = 1e-10


@parameters
class Focus(Method):
    name = "focus"
    title = "FOCUS"
    theories = ("desert",)
    paper = "Chu et al., 2022, arXiv:2207.10265"
    grade = "recalled"
    idea = (
        "Train several models; each client learns which of them suit its data "
        "and predicts with that mixture."
    )
    cost = "training, sending and evaluating M models instead of one"
    needs = frozenset({"losses_of_each"})
    global_model = False

    models: Annotated[
        int,
        Field(
            ge=1,
            description="number of models trained side by side; usually 2 to 4 "
            "(not run in the UDJ-FL paper)",
        ),
    ] = 2
    temperature: Annotated[
        float,
        Field(
            ge=1e-6,
            description="softness of the assignment; near 0, a client takes its best model alone",
        ),
    ] = 1.0

    @property
    def n_models(self) -> int:
        return self.models

    def init(self, setup: Setup) -> State:
        if len(setup.model) % self.models:
            raise SettingsError(
                f"focus: models is {self.models}; "
                "the initial model has to be as many models end to end"
            )
        shape, log_pi = (len(setup), self.models), -math.log(self.models)
        return {"log_pi": torch.full(shape, log_pi, dtype=torch.float64)}

    def notes(self, setup: Setup) -> list[str]:
        return [
            f"FOCUS trains {self.models} models side by side, "
            f"and clients do and send {self.models} times as much.",
            "FOCUS has no global model: each client predicts with its own mixture of the models.",
        ]

    def aggregate(self, state: State, reports: Reports) -> tuple[State, Tensor, Diagnostics]:
        losses = reports.extras["losses_of_each"].to(torch.float64)
        if losses.shape != (len(reports), self.models) or reports.deltas.shape[1] % self.models:
            raise SettingsError(
                f"focus: models is {self.models}; losses_of_each needs that many columns and "
                "deltas that many models, got "
                f"{list(losses.shape)} and {list(reports.deltas.shape)}"
            )
        scores = state["log_pi"][reports.client_indices] - losses / self.temperature
        log_pi = scores - scores.logsumexp(dim=1, keepdim=True)
        pi = log_pi.exp()

        deltas = reports.deltas.reshape(len(reports), self.models, -1)
        held = pi.sum(dim=0)
        weights = torch.where(held > EMPTY, pi / held.clamp_min(EMPTY), torch.zeros_like(pi))
        step = torch.cat([weighted_sum(weights[:, m], deltas[:, m]) for m in range(self.models)])

        all_log_pi = state["log_pi"].clone()
        all_log_pi[reports.client_indices] = log_pi
        diagnostics = {
            "weight": weights.sum(dim=1) / weights.sum(),
            "expected_loss": (pi * losses).sum(dim=1),
            **{f"share_of_model_{m + 1}": pi[:, m].contiguous() for m in range(self.models)},
        }
        return {"log_pi": all_log_pi}, step, diagnostics

    def served(self, state: State, model: Tensor) -> ServedModels:
        return ServedModels(model.reshape(self.models, -1), state["log_pi"].exp())
