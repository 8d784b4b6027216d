"""AdaFed: a direction downhill for every client where there is one, steeper for larger losses.

Hamidi, Yang. AdaFed: Fair Federated Learning via Adaptive Common Descent Direction. TMLR 2024,
arXiv:2401.04993.

    direction   d with <g_k, d> = f_k^gamma |d|^2 for every client k
                g_k = theta - theta_k, f_k the loss at theta

The paper orthogonalises the g_k one after another (a Gram-Schmidt with f_k^gamma in its divisors,
eqs. 5-6 and 12-14, here as three independent public codes have them; the authors' own was not
found) and takes the shortest vector in the hull of the result. In any order, and without the
divisors that can pass through zero, that is

    a = (G G')^-1 phi     d = sum_k a_k g_k / <phi, a>            G: rows g_k, phi_k = f_k^gamma

the shortest sum_k c_k g_k with <phi, c> = 1. Deviations:

ridge      ours: (G G' + ridge * mean |g_k|^2 * I)^-1. Updates that nearly depend on one another, as
           those of similar clients do or of more clients than the model has numbers, make d vanish
           far from any goal; two clients with one gradient and two losses ask for the impossible.
           A ridge leads from there towards the average with weights phi_k, and its only resting
           points are those of sum_k f_k^(1+gamma). The equation above then holds nearly, with
           ridge = 0 exactly. Nearly is not always downhill: where updates almost cancel, a client
           with a small loss may be sent uphill. For updates (1, 0) and (-1, 0.05) and losses 2 and
           0.1 the slopes are 0.223 and -0.174; with ridge = 0, 0.048 and 0.0024. But with ridge = 0
           the method rests wherever gradients depend on one another, also with coefficients of
           different signs, where all losses could still fall: in our convex tests mostly at points
           that are not Pareto-stationary.
step       "paper" steps by server_lr * d, which is g / f^gamma for a single client and so grows
           without limit as losses fall (here up to a million times, no further). "scaled", the
           default and ours, is d times the mean of the phi_k: the unit of the losses cancels, and
           clients that are alike step as in FedAvg. "mean" gives d the length of the plain mean of
           the g_k: faster, but it does not come to rest.
normalise  unit g_k in place of g_k. Two of the three codes do; that the paper does not is recalled.
gamma      1 is the default of those third-party codes. The UDJ-FL paper did not run AdaFed, so
           there is no searched range.

gamma = 0 asks for the same slope for all. A client with loss 0 and gamma > 0 is only kept from
rising; if all are at 0 there is no step. A client with g_k = 0 is left out. Under partial
participation all of this is over the clients that report.
"""

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from udjfl.methods import _linalg
from udjfl.methods.base import Diagnostics, Method, Reports, State, parameters

LARGEST_FACTOR = 1e6  # of the paper's step, 1 / f^gamma
SMALLEST_RIDGE = 1e-12  # so that there is always something to divide by


@parameters
class AdaFed(Method):
    name = "adafed"
    title = "AdaFed"
    theories = ("egalitarian",)
    paper = "Hamidi & Yang, TMLR 2024, arXiv:2401.04993"
    grade = "verified"
    idea = (
        "Step downhill for every client at once where that is possible, "
        "and faster for those whose loss is larger."
    )
    cost = "a forward pass over the client's data; server: K² D + K³"
    needs = frozenset({"losses"})

    gamma: Annotated[
        float,
        Field(
            ge=0,
            le=100,
            description="how much steeper the step is for larger losses; 0: not at all",
        ),
    ] = 1.0
    ridge: Annotated[
        float,
        Field(
            ge=0,
            le=1e12,
            description="keeps the step from stalling where clients are similar; 0: as published",
        ),
    ] = 0.01
    step: Annotated[
        Literal["scaled", "mean", "paper"],
        Field(
            description="length of the step: independent of the losses' unit, "
            "that of the mean update, or as published"
        ),
    ] = "scaled"
    normalise: Annotated[bool, Field(description="give all updates the same length first")] = False
    server_lr: Annotated[float, Field(gt=0, le=1e6, description="multiplies the step")] = 1.0

    def aggregate(self, state: State, reports: Reports) -> tuple[State, Tensor, Diagnostics]:
        deltas = reports.deltas
        gram = _linalg.gram(deltas)
        coefficients = torch.zeros(len(reports), dtype=torch.float64)
        moving = gram.diagonal() > 0
        if moving.any():
            coefficients[moving] = self.server_lr * self._coefficients(
                gram[moving][:, moving], reports.losses[moving]
            )
        step = _linalg.combination(coefficients, deltas)
        if self.step == "mean":
            length = step.norm()
            scale = self.server_lr * _linalg.mean(deltas).norm() / length if length > 0 else 0.0
            coefficients, step = scale * coefficients, scale * step
        length = step.norm()
        # Shares are projections on the step and sum to 1; slopes are those of the losses along it.
        slope = gram @ coefficients / length if length > 0 else torch.zeros_like(coefficients)
        diagnostics = {
            "weight": coefficients * slope / length if length > 0 else slope,
            "coefficient": coefficients,
            "slope": slope,
            "step_length": length,
        }
        return state, step.to(deltas.dtype), diagnostics

    def _coefficients(self, gram: Tensor, f: Tensor) -> Tensor:
        """Return the coefficients of the direction, from inner products of nonzero updates."""
        # Divided by the largest phi, in logarithms: no power can overflow. 0^gamma is 0; 0^0 is 1.
        log_phi = self.gamma * f.clamp_min(1e-300).log() if self.gamma else torch.zeros_like(f)
        phi = torch.where((f > 0) | (self.gamma == 0), (log_phi - log_phi.max()).exp(), 0.0)
        if not phi.any():
            return phi
        inverse = 1 / gram.diagonal().sqrt() if self.normalise else torch.ones_like(f)
        gram = gram * inverse[:, None] * inverse
        ridge = (self.ridge + SMALLEST_RIDGE) * gram.diagonal().mean()
        a = torch.linalg.solve(gram + ridge * torch.eye(len(f), dtype=torch.float64), phi)
        scale = (
            (-log_phi.max()).exp().clamp_max(LARGEST_FACTOR) if self.step == "paper" else phi.mean()
        )
        coefficients: Tensor = scale * a * inverse / (phi @ a)
        return coefficients
