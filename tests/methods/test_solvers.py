"""The simplex projection (T13): on the simplex, idempotent, blind to a common shift, and nearest."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

from udjfl.methods._solvers import project_to_simplex

vectors = st.lists(st.floats(-50, 50), min_size=1, max_size=12).map(lambda v: torch.tensor(v, dtype=torch.float64))


def test_by_hand() -> None:
    # Of (0.8, 0.6, -1): with k = 2 the shift is (1.4 - 1) / 2 = 0.2 and 0.6 > 0.2; with k = 3 it is -0.2 and -1 < -0.2.
    assert project_to_simplex(torch.tensor([0.8, 0.6, -1.0])).tolist() == pytest.approx([0.6, 0.4, 0.0])


def test_the_published_off_by_one_leaves_the_simplex_and_ours_does_not() -> None:
    y = torch.tensor([0.5, 0.4, 0.3])
    # The mistaken sum stops before the k-th entry: shifts -1/1, (0.5-1)/2, (0.9-1)/3; the last is -1/30, total 1.3.
    mistaken = (y + 1 / 30).clamp_min(0)
    assert mistaken.sum() == pytest.approx(1.3)
    assert project_to_simplex(y).tolist() == pytest.approx([0.5 - 0.2 / 3, 0.4 - 0.2 / 3, 0.3 - 0.2 / 3])


@given(vectors, st.floats(-100, 100))
def test_properties(y: torch.Tensor, shift: float) -> None:
    p = project_to_simplex(y)
    assert p.sum().item() == pytest.approx(1, abs=1e-9)
    assert (p >= 0).all()
    assert torch.allclose(project_to_simplex(p), p, atol=1e-9)
    assert torch.allclose(project_to_simplex(y + shift), p, atol=1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_against_a_quadratic_program(seed: int) -> None:
    y = np.random.default_rng(seed).normal(size=6)
    found = minimize(
        lambda x: ((x - y) ** 2).sum(),
        np.full(6, 1 / 6),
        jac=lambda x: 2 * (x - y),
        bounds=[(0, 1)] * 6,
        constraints={"type": "eq", "fun": lambda x: x.sum() - 1, "jac": lambda x: np.ones(6)},
        method="SLSQP",
        options={"ftol": 1e-14},
    )
    assert project_to_simplex(torch.from_numpy(y)).numpy() == pytest.approx(found.x, abs=1e-6)
