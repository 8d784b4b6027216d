"""The terms of UDJ-FL's step (Carey & Wu, FAccT 2025). The symbols are those of udj.py.

Without state, on float64 tensors with one entry per reporting client.
"""

import math
from typing import Literal

import torch
from torch import Tensor

from udjfl.errors import SettingsError
from udjfl.methods._linalg import squared_norms
from udjfl.methods._local_steps import undamped_steps

StepRule = Literal["paper", "authors", "safe", "calibrated", "normalised"]
SMALLEST_LOSS = 1e-10
# Where 1/u enters, an uncertainty below this share of the largest counts as this share.
UNCERTAINTY_FLOOR = 0.01
# The largest share of a step that one client may have, unless it is chosen.
DEFAULT_CAP = 0.5


def floor_uncertainties(u: Tensor, largest: float | None = None) -> Tensor:
    """Raise u_i to at least a hundredth of the largest, so that no 1/u_i outweighs all others."""
    return u.clamp_min(UNCERTAINTY_FLOOR * (float(u.max()) if largest is None else largest))


def largest_share(cap: float, n_clients: int) -> float:
    """Return the cap on one client's share; of fewer than four clients nobody stays below 2/N."""
    return max(cap, min(1.0, 2 / n_clients))


def log_cap(log_c: Tensor, limit: float) -> float:
    """Return the logarithm of the largest c_i that leaves its share of the sum at the limit.

    With a limit of at least a half, only the largest can be above it, so the sum of all others
    says what it may be; added up in logarithms, it stays known however small it is beside the
    largest. Infinite where nothing can be capped: no other client has any weight.
    """
    if limit >= 1:
        return math.inf
    others = float(torch.logsumexp(log_c.sort().values[:-1], dim=0))
    return math.inf if others == -math.inf else others + math.log(limit / (1 - limit))


def log_coefficients(p: Tensor, u: Tensor, gamma: float, H: Tensor) -> Tensor:
    """Return log c_i, where c_i = |p_i| u_i^gamma H_i^(p_i-1): in logarithms no power overflows."""
    return p.abs().log() + gamma * u.log() + (p - 1) * H.log()


def curvature_factor(p: Tensor, H: Tensor, deltas: Tensor, L: float, rule: StepRule) -> Tensor:
    """Return k_i = (p_i-1) |D_i|^2 / (L H_i), where |D_i|^2 / L = L |theta - theta_i|^2.

    Its absolute value unless the rule is as published; 0 for the rule without curvature.
    """
    if rule == "normalised":
        return torch.zeros_like(p)
    k = (p - 1) * L * squared_norms(deltas) / H
    return k if rule in ("paper", "authors") else k.abs()


def step_signs(p: Tensor, rule: StepRule) -> tuple[Tensor, Tensor]:
    """Return the signs s_i of the step's numerator and s'_i of its denominator."""
    s = p.sign() if rule in ("paper", "authors") else torch.ones_like(p)
    return s, s * (p - 1).sign() if rule == "authors" else s


def lipschitz(rule: str, lr: float, momentum: float, mean_steps: float) -> float:
    """Return L, which makes D_i = L (theta - theta_i) a gradient: 1/lr after one plain step.

    For calibrated D_i is the mean gradient of the whole local training.
    """
    if rule != "calibrated":
        return 1 / lr
    return (1 - momentum) / (lr * undamped_steps(mean_steps, momentum))


def divide(numerator: Tensor, denominator: Tensor, rule: StepRule) -> Tensor:
    """Divide by the step's denominator, which can be zero for the published rules."""
    if denominator == 0:
        raise SettingsError(
            f"udj: step={rule!r} divides by zero here; use step='calibrated' or 'normalised'"
        )
    return numerator / denominator
