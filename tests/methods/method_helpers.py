"""Reports, rounds and comparisons that the tests of single methods share."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from hypothesis import settings
from torch import Tensor

from udjfl.methods import Diagnostics, Method, Reports, Setup, State

EXAMPLES = settings(max_examples=30, deadline=None, derandomize=True)


def close(actual: Tensor, expected: Any, rtol: float = 1e-12, atol: float = 0.0) -> None:
    """Assert that a tensor is near the expected numbers."""
    wanted = torch.as_tensor(expected, dtype=actual.dtype)
    torch.testing.assert_close(actual, wanted, rtol=rtol, atol=atol)


def make_reports(deltas: Any, dtype: torch.dtype = torch.float64, **fields: Any) -> Reports:
    """Return reports of clients c0, c1, ... with these deltas."""
    deltas = torch.as_tensor(np.asarray(deltas), dtype=dtype)
    return Reports(**{"ids": [f"c{i}" for i in range(len(deltas))], "deltas": deltas, **fields})


def two_clients(**changes: Any) -> Reports:
    """Return reports of a and b whose numbers stay small fractions.

    1/lr = 2. The mean number of steps is 2, which with momentum 1/2 count as
    2 - 1/2 (1 - 1/4) / (1/2) = 5/4, so the calibrated L is (1 - 1/2) / (1/2 * 5/4) = 4/5.
    """
    fields: dict[str, Any] = {
        "ids": ["a", "b"],
        "deltas": [[1.0, 0.0], [0.0, 2.0]],
        "losses": [1.0, 2.0],
        "sizes": [1, 3],
        "uncertainties": [1.0, 3.0],
        "lr": 0.5,
        "momentum": 0.5,
        "steps": [1, 3],
    }
    return make_reports(**{**fields, **changes})


def random_reports(n: int = 4, d: int = 3, seed: int = 0, **changes: Any) -> Reports:
    """Return random reports of n clients with d parameters, at lr 0.1."""
    rng = np.random.default_rng(seed)
    fields: dict[str, Any] = {
        "deltas": rng.normal(size=(n, d)),
        "losses": rng.uniform(0.05, 3, size=n),
        "sizes": rng.integers(1, 50, size=n),
        "uncertainties": rng.uniform(0.05, 1, size=n),
        "steps": rng.integers(1, 9, size=n),
        "lr": 0.1,
    }
    return make_reports(**{**fields, **changes})


def first_round(method: Method, reports: Reports) -> tuple[State, Tensor, Diagnostics]:
    """Aggregate in a federation of just these clients."""
    return method.aggregate(method.init(Setup.of(reports)), reports)


def step_of(method: Method, reports: Reports) -> Tensor:
    """Return the step of a first round."""
    return first_round(method, reports)[1]


def diagnostics_of(method: Method, reports: Reports) -> Diagnostics:
    """Return the diagnostics of a first round."""
    return first_round(method, reports)[2]
