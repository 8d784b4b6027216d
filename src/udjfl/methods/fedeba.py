"""FedEBA+: weights that grow exponentially with the loss, and updates aligned to a fair gradient or to a common first step.

Wang, Wang, Shi, Karimireddy, Tang. Entropy-driven Fair and Effective Federated Learning (first posted as FedEBA+: Towards Fair
and Effective Federated Learning via Entropy-Based Model). arXiv:2301.12407, 2023. Known to us from secondary descriptions of
its equations; no code was found. The values of tau, alpha and theta are recalled.

    weights   p_i = q_i exp(F_i / tau) / sum_j q_j exp(F_j / tau)       entropy's maximiser, prior q; F_i at the received model
    angle     a = arccos( sum_i F_i / (|F| sqrt K) )                    between the losses and equal losses, K clients

    a > theta (unfair), gradients aligned: every client is sent gb = sum_i p_i grad F_i(theta) before it trains, and trains with
              (1-alpha) gradient + alpha gb;                            step = sum_i p_i (theta - theta_i)
    else      models aligned: theta_i^1 is the client's model after its first local step
              step = (1-alpha) sum_i p_i (theta - theta_i) + alpha mean_i (theta - theta_i^1)

tan a is the standard deviation of the losses over their mean, and a is computed so: with theta = 45 degrees gradients are
aligned once the deviation exceeds the mean. For K clients a is at most arccos(1/sqrt K), 45 degrees for two.
With alpha = 0 this is TERM with t = 1/tau; with tau -> infinity also FedAvg weighted by q; with tau -> 0 the worst client.
The server's learning rate is 1. The practical variant, which saves a message by reusing the last round's gradient, is left out.
Partial participation: weights, gb and angle over the clients of the round. The angle is decided before training; the weights of
the step are over those that then report. The UDJ-FL paper did not run FedEBA+.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from udjfl.errors import SettingsError
from udjfl.methods._linalg import combination
from udjfl.methods.base import (
    Diagnostics,
    Grade,
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
    name: ClassVar[str] = "fedeba"
    title: ClassVar[str] = "FedEBA+"
    theories = ("egalitarian", "utilitarian")
    paper: ClassVar[str] = "Wang et al. 2023, arXiv:2301.12407"
    grade: ClassVar[Grade] = "partial"
    idea: ClassVar[str] = (
        "Weigh clients by the exponential of their loss, and pull local training or the step towards all."
    )
    cost: ClassVar[str] = (
        "a second exchange in each round (loss and gradient come first), and the model after one step sent as well"
    )
    needs: ClassVar[frozenset[str]] = frozenset({"losses", "sizes", "first_deltas"})
    needs_if: ClassVar[Mapping[str, tuple[str, str]]] = {"sizes": ("prior", "size")}
    probes: ClassVar[frozenset[str]] = frozenset({"losses", "gradients"})

    tau: Annotated[
        float,
        Field(gt=0, description="temperature: small, the worst client alone; large, the prior"),
    ] = 0.1
    alpha: Annotated[
        float, Field(ge=0, le=1, description="share of the alignment in training or in the step")
    ] = 0.5
    theta: Annotated[
        float, Field(ge=0, le=90, description="angle in degrees above which gradients are aligned")
    ] = 45.0
    prior: Annotated[Literal["uniform", "size"], Field(description="weights at equal losses")] = (
        "uniform"
    )

    def init(self, setup: Setup) -> State:
        return {"aligns_gradients": torch.zeros((), dtype=torch.int64)}

    def notes(self, setup: Setup) -> list[str]:
        k = max(1, round(setup.participation * len(setup)))  # clients of a round
        widest = math.degrees(math.acos(1 / math.sqrt(k)))
        if widest > self.theta + 1e-9:
            return []
        return [
            f"The losses of the {k} clients of a round are at most {widest:.0f} degrees from equal, so with "
            f"theta = {self.theta:g} FedEBA+ never aligns gradients here; a smaller theta lets it."
        ]

    def plan(self, state: State, probe: Reports | None) -> tuple[State, Plan]:
        if probe is None:
            raise SettingsError(
                "fedeba: needs the clients' losses and gradients before they train; ask for a probe first"
            )
        probe.require("losses", "gradients")
        unfair = angle(probe.losses) > self.theta
        state = {**state, "aligns_gradients": torch.tensor(int(unfair))}
        if not unfair:
            return state, Plan()
        return state, Plan(
            pull=weighted_sum(self._weights(probe), probe.extras["gradients"]),
            pull_share=self.alpha,
        )

    def aggregate(self, state: State, reports: Reports) -> tuple[State, Tensor, Diagnostics]:
        reports.require("losses", "first_deltas")
        p, aligns = self._weights(reports), state["aligns_gradients"]
        if aligns:
            step = weighted_sum(p, reports.deltas)
        else:
            first = torch.full_like(p, self.alpha / len(reports))
            step = combination((1 - self.alpha) * p, reports.deltas)
            step = step.add_(combination(first, reports.extras["first_deltas"])).to(
                reports.deltas.dtype
            )
        notes = {
            "weight": p,
            "angle": torch.tensor(angle(reports.losses), dtype=torch.float64),
            "aligns_gradients": aligns.to(torch.float64),
        }
        return state, step, notes

    def _weights(self, reports: Reports) -> Tensor:
        """p. The largest loss is taken off before dividing, so that no tau can overflow."""
        if self.prior == "size":
            reports.require("sizes")
        q = reports.sizes if self.prior == "size" else torch.ones_like(reports.losses)
        p = q * ((reports.losses - reports.losses.max()) / self.tau).exp()
        return p / p.sum()


def angle(losses: Tensor) -> float:
    """Degrees between the losses and equal losses; 0 if all are 0. By way of std/mean, exact near 0 where arccos is not."""
    scaled = losses / losses.max().clamp_min(
        1e-300
    )  # equal losses become ones, whose spread is 0 to the last bit
    return math.degrees(math.atan2(float(scaled.std(correction=0)), float(scaled.mean())))
