"""Small optimisation problems that several methods share."""

from __future__ import annotations

import torch
from torch import Tensor


def project_to_simplex(y: Tensor) -> Tensor:
    """The point nearest to y (Euclidean) whose entries are not negative and sum to 1, in float64.

    Sorted, largest first, the answer is max(y - c, 0) where c = (sum of the k largest - 1) / k for the largest k that leaves
    the k-th entry positive. The sum includes the k-th entry itself: leaving it out is a published mistake.
    """
    y = y.to(torch.float64)
    largest = y.sort(descending=True).values
    counts = torch.arange(1, len(y) + 1, dtype=torch.float64)
    shifts = (largest.cumsum(0) - 1) / counts
    k = int((largest > shifts).sum()) - 1
    return (y - shifts[k]).clamp_min(0)
