"""AdaFedAdam: Adam on the server, with clients' certainty about each round's direction.

Ju, Zhang, Toor, Hellander. Accelerating Fair Federated Learning: Adaptive Federated Adam. IEEE
Transactions on Machine Learning in Communications and Networking 2024, arXiv:2301.09357. Read in
the authors' code.

Client i, with gradient gr_i at the received model, update D_i = theta - theta_i, learning rate eta:

    eta'_i = |D_i| / |gr_i|
    U_i    = D_i / eta'_i             the update at the length of the gradient
    C_i    = ln(eta'_i / eta) + 1     the client's certainty

Server, with P1 = P2 = 1 and m = v = 0 before round 1:

    omega_i ~ n_i I_i^alpha, sum 1    I_i = F_i / F_i(first) with weights="paper", F_i with "code"
    g = sum omega_i U_i               C = sum omega_i C_i
    b1 = beta1^C, b2 = beta2^C        P1 <- b1 P1, P2 <- b2 P2
    m <- b1 m + (1-b1) g              v <- b2 v + (1-b2) g^2
    step = C server_lr m/(1-P1) / (sqrt(v/(1-P2)) + 1e-8)

After one plain gradient step of each client U_i = gr_i and C = 1: Adam on the weighted gradient.

Paper and code differ in I_i (above); the paper's is the default. The code also leaves the factor C
out of the first six steps: warm_up=6. Deviations of ours:
- gr_i is the gradient of all training data, in evaluation mode (no dropout); the authors take one
  batch of about 512 examples in training mode.
- F_i(first) is the client's loss when it first takes part. If all clients report in every round,
  that is the loss at the initial model. A client that joins late counts as if it had not improved,
  I_i = 1, which is by far the most beside others that have.
- F_i(first) counts as at least a thousandth of the largest of them: near 0, it would later make the
  client's weight nearly 1.
- C is kept at or above 0.1: below 0 the averages would run backwards (the code does not guard it).
- A client without update or gradient has no eta'_i: it counts with U_i = 0, C_i = 1. If all are
  such, nothing changes.
Partial participation: weights over the clients that report; first losses of the others stay.
The UDJ-FL paper did not run it, so there is no searched range.
"""

import math
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from udjfl.methods import _linalg
from udjfl.methods.base import Diagnostics, Method, Reports, Setup, State, parameters

SMALLEST_LOSS = 1e-10
SMALLEST_FIRST_LOSS = 1e-3  # of the largest first loss
SMALLEST_CERTAINTY = 0.1
EPSILON = 1e-8


@parameters
class AdaFedAdam(Method):
    name = "adafedadam"
    title = "AdaFedAdam"
    theories = ("egalitarian",)
    paper = "Ju et al., IEEE TMLCN 2024, arXiv:2301.09357"
    grade = "verified"
    idea = (
        "Run Adam on the server, and give more weight to clients whose loss has fallen little "
        "since their first round."
    )
    cost = "a forward and a backward pass over the client's data; server: 2 D of memory"
    needs = frozenset({"losses", "sizes", "gradient_norms"})

    alpha: Annotated[
        float, Field(ge=0, description="power of the loss in a client's weight; 0: by size alone")
    ] = 1.0
    weights: Annotated[
        Literal["paper", "code"],
        Field(description="paper: loss relative to the client's first; code: the loss itself"),
    ] = "paper"
    server_lr: Annotated[
        float, Field(gt=0, le=1e6, description="learning rate of the server's Adam")
    ] = 1e-3
    beta1: Annotated[
        float, Field(ge=0, lt=1, description="decay of the mean gradient (Adam's beta1)")
    ] = 0.9
    beta2: Annotated[
        float, Field(ge=0, lt=1, description="decay of the mean squared gradient (Adam's beta2)")
    ] = 0.999
    warm_up: Annotated[
        int,
        Field(
            ge=0,
            description="server steps before the certainty also scales the learning rate "
            "(authors' code: 6)",
        ),
    ] = 0

    def init(self, setup: Setup) -> State:
        return {
            "mean": torch.zeros(len(setup.model), dtype=torch.float64),
            "mean_square": torch.zeros(len(setup.model), dtype=torch.float64),
            "decays": torch.ones(2, dtype=torch.float64),  # P1, P2
            "server_steps": torch.zeros((), dtype=torch.int64),
            # 0: has not taken part yet
            "first_losses": torch.zeros(len(setup), dtype=torch.float64),
        }

    def aggregate(self, state: State, reports: Reports) -> tuple[State, Tensor, Diagnostics]:
        slopes = reports.extras["gradient_norms"].to(torch.float64)
        lengths = _linalg.lengths(reports.deltas)
        usable = (lengths > 0) & (slopes > 0)
        C_i = torch.where(usable, lengths.log() - slopes.log() - math.log(reports.lr) + 1, 1.0)

        losses, clients = reports.losses.clamp_min(SMALLEST_LOSS), reports.client_indices
        first = state["first_losses"].clone()
        first[clients] = torch.where(first[clients] > 0, first[clients], losses)
        floored = first.clamp_min(SMALLEST_FIRST_LOSS * float(first.max()))
        relative = losses / floored[clients]
        I = relative if self.weights == "paper" else losses  # noqa: E741 - the paper's symbol
        omega = (reports.sizes.log() + self.alpha * I.log()).softmax(dim=0)

        C = (omega @ C_i).clamp_min(SMALLEST_CERTAINTY)
        state, step = {**state, "first_losses": first}, torch.zeros_like(state["mean"])
        if usable.any():
            factors = omega * torch.where(usable, slopes / lengths, 0.0)
            state, step = self._adam(state, _linalg.combination(factors, reports.deltas), C)
        diagnostics = {
            "weight": omega,
            "relative_loss": relative,
            "certainty": C_i,
            "certainty_used": C,
        }
        return state, step.to(reports.deltas.dtype), diagnostics

    def _adam(self, state: State, g: Tensor, C: Tensor) -> tuple[State, Tensor]:
        """Return the next state and the step for this round's gradient and certainty."""
        b1, b2 = torch.tensor([self.beta1, self.beta2], dtype=torch.float64) ** C
        v = g.square().lerp_(state["mean_square"], b2)
        m = torch.lerp(g, state["mean"], b1)  # b1 mean + (1 - b1) g
        P = state["decays"] * torch.stack([b1, b2])
        factor = C if state["server_steps"] >= self.warm_up else torch.ones_like(C)
        scale = (v / (1 - P[1])).sqrt_().add_(EPSILON)
        step = torch.div(m, scale, out=scale).mul_(factor * self.server_lr / (1 - P[0]))
        count = state["server_steps"] + 1
        return {**state, "mean": m, "mean_square": v, "decays": P, "server_steps": count}, step
