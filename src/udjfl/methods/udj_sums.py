"""UDJ-FL from sums over clients, which is all that a server with secure aggregation learns.

The numerator and the denominator of the step are sums of terms that each client can compute by
itself. The normalisation of u cancels, so it is left out. Over the clients that report, every one
of them needs beforehand

    largest_uncertainty     for the floor, which is used where 1/u enters (gamma < 0, or desert)
    inverse_uncertainties   sum_j 1/u_j, for desert's own beta: a sum itself, computed once if all
                            clients report in every round
    log_scale               any number: it cancels too, but near the largest log c_i it keeps powers
                            from overflowing
    log_cap                 of the largest c_i that a client may have, where its share is capped:
                            from the sum of all c_j but the largest

L enters only when the sums are there: calibrated's mean number of steps is
sum_i steps_i / sum_i 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from udjfl.methods._linalg import combination
from udjfl.methods._udj_math import (
    SMALLEST_LOSS,
    curvature_factor,
    divide,
    floor_uncertainties,
    lipschitz,
    log_cap,
    log_coefficients,
    step_signs,
)
from udjfl.methods.reports import Reports

if TYPE_CHECKING:
    from udjfl.methods.udj import UDJ


class UDJSums:
    """The form `Additive` of a point of UDJ-FL."""

    def __init__(self, rule: UDJ) -> None:
        self.rule = rule

    def common(self, reports: Reports) -> dict[str, float]:
        """Return the numbers that every client needs beforehand."""
        u = reports.uncertainties
        common = {
            "largest_uncertainty": float(u.max()),
            "inverse_uncertainties": float((1 / floor_uncertainties(u)).sum()),
        }
        log_c, _, _ = self._terms(reports, common)
        largest = log_cap(log_c, self.rule.largest_share(len(reports)))
        return {
            **common,
            "log_cap": largest,
            "log_scale": float(log_c.clamp_max(largest).max()),
        }

    def client_terms(self, report: Reports, common: Mapping[str, float]) -> dict[str, Tensor]:
        """Return one client's terms of the sums; that of the curvature without its factor L."""
        report.require(*sorted(self.rule.needs))
        log_c, p, H = self._terms(report, common)
        c = (log_c.clamp_max(common["log_cap"]) - common["log_scale"]).exp()
        k = curvature_factor(p, H, report.deltas, 1.0, self.rule.step)
        s, s_denominator = step_signs(p, self.rule.step)
        return {
            "direction": combination(s * c, report.deltas),
            "weight": (s_denominator * c).sum(),
            "curvature": (s_denominator * c * k).sum(),
            "steps": report.steps.sum(),
            "clients": torch.tensor(float(len(report)), dtype=torch.float64),
        }

    def step_from_sums(self, sums: Mapping[str, Tensor], lr: float, momentum: float) -> Tensor:
        """Return the step [D] from the sums of all clients' terms."""
        rule = self.rule.step
        L = lipschitz(rule, lr, momentum, float(sums["steps"] / sums["clients"]))
        return divide(sums["direction"], sums["weight"] + L * sums["curvature"], rule)

    def _terms(
        self, reports: Reports, common: Mapping[str, float]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return log c_i, p_i and H_i."""
        rule, gamma, u = self.rule, self.rule.gamma or 0.0, reports.uncertainties
        floored = floor_uncertainties(u, common["largest_uncertainty"])
        if rule.beta is None:
            p = rule.exponent(1 / (floored * common["inverse_uncertainties"]))
        else:
            p = rule.exponents(reports)
        H = reports.losses.clamp_min(SMALLEST_LOSS)
        return log_coefficients(p, floored if gamma < 0 else u, gamma, H), p, H
