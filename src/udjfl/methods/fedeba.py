"""FedEBA+: weights exponential in the loss, and updates aligned to a fair gradient or first step.

Wang, Wang, Shi, Karimireddy, Tang. Entropy-driven Fair and Effective Federated Learning (first
posted as FedEBA+: Towards Fair and Effective Federated Learning via Entropy-Based Model).
arXiv:2301.12407, 2023. Known to us from secondary descriptions of its equations; no code was found.
The values of tau, alpha and theta are recalled.

    weights   p_i = q_i exp(F_i / tau) / sum_j q_j exp(F_j / tau)
              the maximiser of entropy with prior q; F_i is the loss of the client's own model
              after local training (three readers of the paper agree on that)
    angle     a = arccos( sum_i F_i(theta) / (|F(theta)| sqrt K) )
              between the losses at the received model and equal losses, K clients

    a > theta (unfair), gradients aligned: every client receives gb = sum_i p_i grad F_i(theta),
              p from the losses at the received model, before it trains, and trains with
              (1-alpha) gradient + alpha gb
              step = sum_i p_i (theta - theta_i)
    else      models aligned: theta_i^1 is the client's model after its first local step
              step = (1-alpha) sum_i p_i (theta - theta_i) + alpha mean_i (theta - theta_i^1)

tan a is the standard deviation of the losses over their mean, and a is computed so: with theta = 45
degrees gradients are aligned once the deviation exceeds the mean. For K clients a is at most
arccos(1/sqrt K), 45 degrees for two. With alpha = 0 this is TERM's rule with t = 1/tau, on other
losses; with tau -> infinity also FedAvg weighted by q; with tau -> 0 the worst client. The server's
learning rate is 1. The practical variant, which saves a message by reusing the last round's
gradient, is left out. Partial participation: weights, gb and angle over the clients of the round.
The angle is decided before training; the weights of the step are over those that then report. The
UDJ-FL paper did not run FedEBA+.
"""

import math
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from udjfl.methods._linalg import combination
from udjfl.methods.base import (
    Diagnostics,
    Method,
    Plan,
    Reports,
    Setup,
    State,
    parameters,
    weighted_sum,
)


@parameters
class FedEBA(Method):
    name = "fedeba"
    title = "FedEBA+"
    theories = ("egalitarian", "utilitarian")
    paper = "Wang et al. 2023, arXiv:2301.12407"
    grade = "partial"
    idea = (
        "Weigh clients by the exponential of their loss, "
        "and align local training or the step with all clients."
    )
    cost = (
        "a second exchange in each round (losses and gradients first), "
        "and the model after one step sent as well"
    )
    probes = frozenset({"losses", "gradients"})
    loss_at = "final"

    tau: Annotated[
        float,
        Field(
            gt=0, description="temperature: if small, the worst client alone; if large, the prior"
        ),
    ] = 0.1
    alpha: Annotated[
        float, Field(ge=0, le=1, description="share of the alignment, in training or in the step")
    ] = 0.5
    theta: Annotated[
        float, Field(ge=0, le=90, description="angle in degrees above which gradients are aligned")
    ] = 45.0
    prior: Annotated[Literal["uniform", "size"], Field(description="weights at equal losses")] = (
        "uniform"
    )

    @property
    def needs(self) -> frozenset[str]:
        return frozenset(
            {"first_deltas", "losses", "sizes"}
            if self.prior == "size"
            else {"first_deltas", "losses"}
        )

    def init(self, setup: Setup) -> State:
        return {
            "aligns_gradients": torch.zeros((), dtype=torch.int64),
            "angle": torch.zeros((), dtype=torch.float64),
        }

    def notes(self, setup: Setup) -> list[str]:
        k = max(1, round(setup.participation * len(setup)))  # clients of a round
        widest = math.degrees(math.atan(math.sqrt(k - 1)))  # exactly 45 for two
        if widest > self.theta:
            return []
        return [
            f"The losses of the {k} clients of a round are at most {widest:.0f} degrees from "
            f"equal, so with theta = {self.theta:g} FedEBA+ never aligns gradients here; "
            "a smaller theta lets it."
        ]

    def plan(self, state: State, probe: Reports | None) -> tuple[State, Plan]:
        assert probe is not None
        degrees = angle(probe.losses)
        unfair = degrees > self.theta
        state = {
            "aligns_gradients": torch.tensor(int(unfair)),
            "angle": torch.tensor(degrees, dtype=torch.float64),
        }
        if not unfair:
            return state, Plan()
        gradient = weighted_sum(self._weights(probe), probe.extras["gradients"])
        return state, Plan(gradient_share=1 - self.alpha, shift=self.alpha * gradient)

    def aggregate(self, state: State, reports: Reports) -> tuple[State, Tensor, Diagnostics]:
        p, aligns = self._weights(reports), state["aligns_gradients"]
        if aligns:
            step = weighted_sum(p, reports.deltas)
        else:
            first = torch.full_like(p, self.alpha / len(reports))
            step = combination((1 - self.alpha) * p, reports.deltas)
            step += combination(first, reports.extras["first_deltas"])
            step = step.to(reports.deltas.dtype)
        diagnostics = {
            "weight": p,
            "angle": state["angle"],
            "aligns_gradients": aligns.to(torch.float64),
        }
        return state, step, diagnostics

    def _weights(self, reports: Reports) -> Tensor:
        """Return p. The largest loss is subtracted before dividing: no tau can overflow."""
        q = reports.sizes if self.prior == "size" else torch.ones_like(reports.losses)
        p = q * ((reports.losses - reports.losses.max()) / self.tau).exp()
        return p / p.sum()


def angle(losses: Tensor) -> float:
    """Return the degrees between the losses and equal losses; 0 if all are 0.

    Computed from std/mean, which is exact near 0 where arccos is not.
    """
    scaled = losses / losses.max().clamp_min(1e-300)  # equal losses become ones, of spread 0
    return math.degrees(math.atan2(float(scaled.std(correction=0)), float(scaled.mean())))
