"""Small optimisation problems that several methods share."""

import numpy as np
import piqp
import torch
from torch import Tensor

from udjfl.errors import DivergedError, SettingsError
from udjfl.methods._linalg import TOO_LONG

# The solver's tolerances, on a problem scaled so that the longest vector has length 1.
TOLERANCE = 1e-12


def project_to_simplex(y: Tensor) -> Tensor:
    """Return the point nearest to y whose entries are not negative and sum to 1, in float64.

    Sorted, largest first, it is max(y - c, 0) where c = (sum of the k largest - 1) / k for the
    largest k that leaves the k-th entry positive. The sum includes the k-th entry itself: leaving
    it out is a published mistake.
    """
    y = y.to(torch.float64)
    y = y - y.max()  # changes nothing but rounding: beside 1e17 the 1 would be lost
    largest = y.sort(descending=True).values
    counts = torch.arange(1, len(y) + 1, dtype=torch.float64)
    shifts = (largest.cumsum(0) - 1) / counts
    k = int((largest > shifts).sum()) - 1
    return (y - shifts[k]).clamp_min(0)


def min_norm_weights(gram: Tensor, lo: Tensor | float = 0.0, hi: Tensor | float = 1.0) -> Tensor:
    """Return the weights l that minimise l' gram l, with sum l = 1 and lo <= l <= hi, in float64.

    `gram` [N, N] holds the inner products of N vectors and may be singular: sum_i l_i vector_i is
    the shortest vector that such weights can make, to 1e-4 of the longest of them (the worst found
    was 2.5e-5). Where several l do, vectors that are alike get alike weights.

    PIQP (an interior-point method; BSD) solves it: for vectors of similar length to a duality gap
    of 1e-10 at N = 5, 100 and 1,000, the last in 0.3 s, with no ridge on singular matrices. scipy's
    nnls knows no upper bounds; its SLSQP stops at 1e-8 and is slow from N = 100 on.
    """
    G = gram.to(torch.float64).numpy()
    n = len(G)
    lower, upper = (
        torch.as_tensor(bound, dtype=torch.float64).expand(n).numpy() for bound in (lo, hi)
    )
    if (lower > upper).any() or lower.sum() > 1 + TOLERANCE or upper.sum() < 1 - TOLERANCE:
        raise SettingsError(
            f"no {n} weights between the given bounds sum to 1: the lower ones sum to "
            f"{lower.sum():g}, the upper ones to {upper.sum():g}, and each lower one has to be at "
            "most its upper one"
        )
    if not np.isfinite(G).all():
        raise DivergedError(TOO_LONG)
    scale = max(G.diagonal().max(), np.finfo(float).tiny)
    solver = piqp.DenseSolver()
    for name in ("eps_abs", "eps_rel", "eps_duality_gap_abs", "eps_duality_gap_rel"):
        setattr(solver.settings, name, TOLERANCE)
    solver.setup(
        np.asfortranarray(G / scale), np.zeros(n), np.ones((1, n)), np.ones(1), x_l=lower, x_u=upper
    )
    status = solver.solve()
    # At the limit of iterations the answer is good to 1e-10: flat problems allow no more digits.
    if status not in (piqp.PIQP_SOLVED, piqp.PIQP_MAX_ITER_REACHED):
        raise DivergedError(
            f"no weights were found for the updates of these clients (solver status: {status})"
        )
    return torch.from_numpy(np.clip(solver.result.x, lower, upper))
