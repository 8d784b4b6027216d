"""The simplex projection: on the simplex, idempotent, blind to a common shift, and nearest.

The shortest mixture of vectors: by hand, against independent solvers, by its optimality conditions,
on singular matrices.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from method_helpers import EXAMPLES
from scipy.optimize import minimize, nnls

from udjfl.errors import DivergedError, SettingsError
from udjfl.methods._solvers import min_norm_weights, project_to_simplex

vectors = st.lists(st.floats(-50, 50), min_size=1, max_size=12).map(
    lambda v: torch.tensor(v, dtype=torch.float64)
)


def test_by_hand() -> None:
    # Of (0.8, 0.6, -1): with k = 2 the shift is (1.4 - 1) / 2 = 0.2 and 0.6 > 0.2; with k = 3 it is
    # -0.2 and -1 < -0.2.
    assert project_to_simplex(torch.tensor([0.8, 0.6, -1.0])).tolist() == pytest.approx(
        [0.6, 0.4, 0.0]
    )


def test_the_published_off_by_one_leaves_the_simplex_and_ours_does_not() -> None:
    y = torch.tensor([0.5, 0.4, 0.3])
    # The mistaken sum stops before the k-th entry: shifts -1/1, (0.5-1)/2, (0.9-1)/3; the last is
    # -1/30, total 1.3.
    mistaken = (y + 1 / 30).clamp_min(0)
    assert mistaken.sum() == pytest.approx(1.3)
    assert project_to_simplex(y).tolist() == pytest.approx(
        [0.5 - 0.2 / 3, 0.4 - 0.2 / 3, 0.3 - 0.2 / 3]
    )


@EXAMPLES
@given(vectors, st.floats(-100, 100))
def test_properties(y: torch.Tensor, shift: float) -> None:
    p = project_to_simplex(y)
    assert p.sum().item() == pytest.approx(1, abs=1e-9)
    assert (p >= 0).all()
    assert torch.allclose(project_to_simplex(p), p, atol=1e-9)
    assert torch.allclose(project_to_simplex(y + shift), p, atol=1e-9)


def slsqp(objective, gradient, lower, upper) -> np.ndarray:
    """Solve a smooth problem over weights that sum to 1, between bounds, independently."""
    n = len(lower)
    return minimize(
        objective,
        np.clip(np.full(n, 1 / n), lower, upper),
        jac=gradient,
        bounds=list(zip(lower, upper, strict=True)),
        constraints={"type": "eq", "fun": lambda x: x.sum() - 1, "jac": lambda x: np.ones(n)},
        method="SLSQP",
        options={"ftol": 1e-15, "maxiter": 500},
    ).x


@pytest.mark.parametrize("seed", range(5))
def test_against_a_quadratic_program(seed: int) -> None:
    y = np.random.default_rng(seed).normal(size=6)
    found = slsqp(lambda x: ((x - y) ** 2).sum(), lambda x: 2 * (x - y), np.zeros(6), np.ones(6))
    assert project_to_simplex(torch.from_numpy(y)).numpy() == pytest.approx(found, abs=1e-6)


# --- the shortest mixture ---


def gram_of(rows) -> torch.Tensor:
    rows = torch.as_tensor(rows, dtype=torch.float64)
    return rows @ rows.T


def duality_gap(
    gram: torch.Tensor, weights: torch.Tensor, lo: torch.Tensor, hi: torch.Tensor
) -> float:
    """Return how much l' G l can fall at most, relative to the largest entry.

    That is its slope from l to the best corner of the bounds: every weight at its lower bound, and
    the rest given to where the gradient is smallest.
    """
    gradient = 2 * gram @ weights
    corner, left = lo.clone(), 1 - float(lo.sum())
    for i in gradient.argsort().tolist():
        corner[i] += min(left, float(hi[i] - lo[i]))
        left -= min(left, float(hi[i] - lo[i]))
    return float(gradient @ (weights - corner) / gram.diagonal().max().clamp_min(1e-300))


def test_the_shortest_mixture_by_hand() -> None:
    # Of (1, 0) and (0, 2): l^2 + 4 (1-l)^2 is least where 2l = 8 (1-l), l = 4/5.
    gram = gram_of([[1.0, 0.0], [0.0, 2.0]])
    assert min_norm_weights(gram).tolist() == pytest.approx([0.8, 0.2])
    assert min_norm_weights(gram, hi=0.7).tolist() == pytest.approx([0.7, 0.3])
    assert min_norm_weights(gram, lo=torch.tensor([0.0, 0.25])).tolist() == pytest.approx(
        [0.75, 0.25]
    )
    assert min_norm_weights(gram, lo=0.5, hi=0.5).tolist() == [0.5, 0.5]
    # (1, 0) is nearer to 0 than anything between it and (2, 1).
    assert min_norm_weights(gram_of([[1.0, 0.0], [2.0, 1.0]])).tolist() == pytest.approx(
        [1, 0], abs=1e-6
    )


@pytest.mark.parametrize(("n", "d"), [(2, 5), (6, 3), (6, 20), (30, 10)])
@pytest.mark.parametrize("epsilon", [0.02, 0.1, 1.0])
def test_the_shortest_mixture_against_an_independent_solver(n, d, epsilon) -> None:
    rng = np.random.default_rng(n * d)
    rows, start = rng.normal(size=(n, d)), rng.dirichlet(np.ones(n))
    gram, lower, upper = (
        rows @ rows.T,
        np.maximum(start - epsilon, 0),
        np.minimum(start + epsilon, 1),
    )
    scaled = gram / gram.max()
    found = slsqp(lambda x: x @ scaled @ x, lambda x: 2 * scaled @ x, lower, upper)
    weights = min_norm_weights(*(torch.from_numpy(value) for value in (gram, lower, upper))).numpy()
    assert weights @ scaled @ weights <= found @ scaled @ found + 1e-10
    # The shortest vector is unique, the weights only if the vectors are independent.
    assert weights @ rows == pytest.approx(found @ rows, abs=1e-4)


@EXAMPLES
@given(
    data=st.data(),
    n=st.integers(1, 8),
    d=st.integers(1, 5),
    epsilon=st.sampled_from([0.0, 0.05, 0.5, 1.0]),
)
def test_optimality_conditions(data, n, d, epsilon) -> None:
    """Feasible, no direction within the bounds is downhill, and a common scale cancels."""
    number = st.floats(-3, 3, width=32, allow_subnormal=False)
    rows = data.draw(st.lists(st.lists(number, min_size=d, max_size=d), min_size=n, max_size=n))
    start = torch.tensor(
        data.draw(st.lists(st.floats(0.1, 9), min_size=n, max_size=n)), dtype=torch.float64
    )
    start = start / start.sum()
    lo, hi = (start - epsilon).clamp_min(0), (start + epsilon).clamp_max(1)
    gram = gram_of(rows)
    weights = min_norm_weights(gram, lo, hi)
    assert weights.sum().item() == pytest.approx(1, abs=1e-9)
    assert ((weights >= lo) & (weights <= hi)).all()
    assert duality_gap(gram, weights, lo, hi) < 1e-9
    for scale in (1e-20, 1e20):
        assert torch.allclose(min_norm_weights(scale * gram, lo, hi), weights, atol=1e-4)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([[0.0], [0.0], [0.0]], [1 / 3] * 3),
        ([[2.0, 1.0]] * 4, [1 / 4] * 4),
        ([[1.0, 0.0], [-1.0, 0.0]], [1 / 2] * 2),
        ([[3.0]], [1.0]),
        ([[0.0]], [1.0]),
        # Twice (1, 0) and once (0, 1): half the weight on each side, and the two that are alike
        # share theirs.
        ([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]], [1 / 4, 1 / 4, 1 / 2]),
        ([[0.0, 0.0], [1.0, 0.0], [0.0, 2.0]], [1.0, 0.0, 0.0]),
    ],
    ids=["zero", "rank one", "opposite", "alone", "alone and zero", "duplicates", "one zero"],
)
def test_singular_matrices(rows, expected) -> None:
    assert min_norm_weights(gram_of(rows)).tolist() == pytest.approx(expected, abs=1e-6)


def test_vectors_of_very_different_lengths() -> None:
    rows = torch.diag(torch.tensor([1e-6, 1.0, 1e6], dtype=torch.float64))
    weights = min_norm_weights(gram_of(rows))
    assert float((weights @ rows).norm()) < 1e-6 * 1e6


@pytest.mark.parametrize("d", [10, 1500], ids=["singular", "regular"])
@pytest.mark.parametrize("epsilon", [0.0005, 1.0])
def test_a_thousand_clients(d, epsilon) -> None:
    rows = np.random.default_rng(0).normal(size=(1000, d)) + 0.1
    gram = gram_of(rows)
    lo, hi = (
        torch.full((1000,), max(0.001 - epsilon, 0)),
        torch.full((1000,), min(0.001 + epsilon, 1.0)),
    )
    lo, hi = lo.double(), hi.double()
    weights = min_norm_weights(gram, lo, hi)
    assert weights.sum().item() == pytest.approx(1, abs=1e-9)
    assert duality_gap(gram, weights, lo, hi) < 1e-9
    if epsilon == 1 and d == 1500:
        # min over x >= 0 of |rows' x|^2 + (sum x - 1)^2 is a multiple of the shortest mixture.
        x, _ = nnls(
            np.vstack([np.linalg.cholesky(gram.numpy()).T, np.ones(1000)]),
            np.append(np.zeros(1000), 1.0),
        )
        assert weights.numpy() == pytest.approx(x / x.sum(), abs=1e-7)


def test_the_same_every_time() -> None:
    gram = gram_of(np.random.default_rng(1).normal(size=(40, 7)))
    before = gram.clone()
    assert torch.equal(min_norm_weights(gram, hi=0.1), min_norm_weights(gram, hi=0.1))
    assert torch.equal(gram, before)
    assert min_norm_weights(gram.float()).dtype == torch.float64


@pytest.mark.parametrize(
    ("lo", "hi"),
    [(0.0, 0.3), (0.4, 1.0), (torch.tensor([0.5, 0.0, 0.0]), torch.tensor([0.4, 1.0, 1.0]))],
)
def test_bounds_that_leave_no_weights_are_refused(lo, hi) -> None:
    with pytest.raises(
        SettingsError,
        match=r"3 weights between the given bounds.*the lower ones sum to .*, the upper ones to",
    ):
        min_norm_weights(torch.eye(3), lo, hi)


def test_a_gram_matrix_that_is_not_finite_is_refused() -> None:
    with pytest.raises(DivergedError, match="too long to be squared"):
        min_norm_weights(torch.full((2, 2), torch.inf))


@pytest.mark.parametrize("shift", [1e17, -1e17])
def test_numbers_far_from_one_keep_the_simplex(shift):
    """At 1e17 neighbouring numbers are 16 apart: the first entry stands alone at the top."""
    assert project_to_simplex(
        torch.tensor([shift, shift - 64.0], dtype=torch.float64)
    ).tolist() == [1.0, 0.0]


def test_one_product_that_is_not_finite_is_enough_to_refuse() -> None:
    gram = torch.eye(2, dtype=torch.float64)
    gram[0, 1] = torch.nan
    with pytest.raises(DivergedError, match="too long to be squared"):
        min_norm_weights(gram)


def test_bounds_are_not_rounded_to_single_precision() -> None:
    gram = torch.diag(torch.tensor([1.0, 1e6], dtype=torch.float64))
    assert min_norm_weights(gram, hi=0.6)[0].item() == pytest.approx(0.6, abs=1e-12)
    assert min_norm_weights(gram, lo=0.1)[1].item() == pytest.approx(0.1, abs=1e-12)


def test_a_solver_that_gives_up_is_told_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    class Hopeless:
        def __init__(self) -> None:
            self.settings = type("Settings", (), {})()

        def setup(self, *_: object, **__: object) -> None: ...

        def solve(self) -> str:
            return "PRIMAL_INFEASIBLE"

    monkeypatch.setattr("udjfl.methods._solvers.piqp.DenseSolver", Hopeless)
    with pytest.raises(DivergedError, match=r"no weights were found .*PRIMAL_INFEASIBLE"):
        min_norm_weights(torch.eye(2))
