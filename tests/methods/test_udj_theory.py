"""What UDJ-FL starts from, against hand-worked numbers, closed forms and finite differences."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from udj_theory import (
    alpha_fair_utility,
    curvature_as_printed,
    curvature_bound,
    fairness_measure,
    objective,
)

from udjfl.errors import SettingsError
from udjfl.seeds import numpy_stream

positive = st.floats(0.01, 100.0)


def shares_of(x):
    return np.asarray(x) / np.sum(x)


# --- fairness measure ---


def test_fairness_measure_by_hand():
    # r = -1, beta = -1: x^(-rb) = x^(-1); sum 0.25/1 + 0.75/3 = 0.5; ^(1/b) -> 2; sign(1 * (1 + 1))
    # = +1.
    assert float(fairness_measure([1.0, 3.0], [0.25, 0.75], r=-1, beta=-1)) == pytest.approx(2.0)
    # r = 1, beta = 1: sum 0.5/1 + 0.5/2 = 0.75; sign(-1 * 2) = -1.
    assert float(fairness_measure([1.0, 2.0], [0.5, 0.5], r=1, beta=1)) == pytest.approx(-0.75)


@given(st.lists(positive, min_size=1, max_size=6))
def test_jain_index_is_r_2_beta_minus_1(x):
    n, jain = len(x), np.sum(x) ** 2 / (len(x) * np.sum(np.square(x)))
    assert float(fairness_measure(x / np.mean(x), [1 / n] * n, r=2, beta=-1)) == pytest.approx(jain)
    assert float(fairness_measure(shares_of(x), [1.0] * n, r=2, beta=-1)) == pytest.approx(n * jain)


def test_jain_index_is_not_r_1_because_the_sign_vanishes():
    x = shares_of([1.0, 2.0, 5.0])
    assert float(fairness_measure(x, x, r=1, beta=-1)) == 0.0
    # Also where r * beta is -1 only up to rounding: (-1/49) * 49 is not exactly -1 in floating
    # point.
    assert (1 / 49) * -49 != -1.0
    assert float(fairness_measure(x, x, r=1 / 49, beta=-49)) == 0.0
    assert float(fairness_measure(x, x, r=0, beta=2)) == 0.0


@given(
    st.lists(positive, min_size=1, max_size=6), st.sampled_from([-3.0, -1.0, -0.5, 0.5, 2.0, 4.0])
)
def test_unweighted_family_of_lan_et_al(x, beta):
    p = shares_of(x)
    lan = np.sign(1 - beta) * np.sum(p ** (1 - beta)) ** (1 / beta)
    assert float(fairness_measure(p, [1.0] * len(x), r=1 - 1 / beta, beta=beta)) == pytest.approx(
        lan
    )


def test_entropy_is_the_limit_at_beta_zero():
    p, q = shares_of([1.0, 2.0, 5.0]), np.array([0.5, 0.3, 0.2])
    entropy, cross = -np.sum(p * np.log(p)), -np.sum(q * np.log(p))
    for beta in (1e-6, -1e-6):
        assert float(fairness_measure(p, [1.0] * 3, r=1 - 1 / beta, beta=beta)) == pytest.approx(
            math.exp(entropy), rel=1e-4
        )
        assert float(fairness_measure(p, q, r=1, beta=beta)) == pytest.approx(
            -math.exp(cross), rel=1e-4
        )
        assert float(fairness_measure(p, p, r=1, beta=beta)) == pytest.approx(
            -math.exp(entropy), rel=1e-4
        )
    # Weights that do not sum to 1 have no such limit: 3^(1/beta).
    assert float(fairness_measure(p, [1.0] * 3, r=1, beta=1e-4).abs()) == math.inf
    assert float(fairness_measure(p, [1.0] * 3, r=1, beta=-1e-4).abs()) == 0.0


def test_large_beta_sees_only_the_smallest_share():
    p = shares_of([1.0, 2.0, 5.0])
    beta = 500.0
    assert float(fairness_measure(p, [1.0] * 3, r=1 - 1 / beta, beta=beta)) == pytest.approx(
        -1 / 0.125, rel=0.01
    )


@given(st.lists(positive, min_size=2, max_size=5), st.sampled_from([-2.0, -1.0, 0.5, 3.0]))
def test_r_minus_1_is_a_signed_power_mean(x, beta):
    n = len(x)
    power_mean = np.mean(np.asarray(x) ** beta) ** (1 / beta)
    assert float(fairness_measure(x, [1 / n] * n, r=-1, beta=beta)) == pytest.approx(
        np.sign(1 - beta) * power_mean
    )


def test_a_client_without_importance_is_ignored():
    alone = fairness_measure([2.0, 3.0], [0.4, 0.6], r=-1, beta=-2)
    assert torch.equal(fairness_measure([2.0, 3.0, 7.0], [0.4, 0.6, 0.0], r=-1, beta=-2), alone)


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        (([1.0, 0.0], [1.0, 1.0], 1.0, 1.0), r"x\[1\] is 0.0"),
        (([1.0, math.nan], [1.0, 1.0], 1.0, 1.0), r"x\[1\] is nan"),
        (([1.0, 2.0], [-1.0, 1.0], 1.0, 1.0), r"q\[0\] is -1.0"),
        (([1.0, 2.0], [0.0, 0.0], 1.0, 1.0), "q is zero everywhere"),
        (([1.0, 2.0], [1.0], 1.0, 1.0), "x has 2, q has 1"),
        (([], [], 1.0, 1.0), r"x has shape \(0,\)"),
        (([1.0], [1.0], 1.0, 0.0), "beta is 0.0"),
        (([1.0], [1.0], math.inf, 1.0), "r is inf"),
    ],
)
def test_fairness_measure_names_what_is_wrong(arguments, field):
    with pytest.raises(SettingsError, match=field):
        fairness_measure(*arguments)


# --- alpha-fairness ---


@given(
    st.lists(st.tuples(positive, st.floats(0.01, 10.0)), min_size=1, max_size=6),
    st.sampled_from([0.25, 0.5, 0.9, 1.5, 2.0, 4.0]),
)
def test_alpha_fairness_comes_from_the_fairness_measure(pairs, beta):
    x, q = zip(*pairs, strict=True)
    f = fairness_measure(x, q, r=1 - 1 / beta, beta=beta)
    right = (1 - beta) * (torch.tensor(q, dtype=torch.float64) * alpha_fair_utility(x, beta)).sum()
    assert float(f.abs() ** beta) == pytest.approx(float(right), rel=1e-9)


def test_alpha_one_is_the_logarithm_up_to_a_constant():
    x = [0.5, 1.0, 7.0]
    assert alpha_fair_utility(x, 1.0).tolist() == pytest.approx(np.log(x))
    for alpha in (1 - 1e-6, 1 + 1e-6):
        assert (alpha_fair_utility(x, alpha) - 1 / (1 - alpha)).tolist() == pytest.approx(
            np.log(x), abs=1e-4
        )
    assert alpha_fair_utility([4.0], 0.5).item() == pytest.approx(4.0)  # 4^0.5 / 0.5
    assert alpha_fair_utility([4.0], 2.0).item() == pytest.approx(-0.25)  # 4^-1 / -1


def best_long_flow(alpha):
    """Return the best rate s of a flow on two links of capacity 1, with a short flow on each."""
    s = torch.linspace(0.001, 0.999, 999, dtype=torch.float64)
    return float(s[(alpha_fair_utility(s, alpha) + 2 * alpha_fair_utility(1 - s, alpha)).argmax()])


def test_alpha_fair_allocation_moves_from_greatest_sum_to_max_min():
    assert best_long_flow(0.0) == pytest.approx(0.001)  # the sum is 2 - s: starve the long flow
    # Setting the derivative to zero: s^-a = 2 (1-s)^-a, so s = 1 / (1 + 2^(1/a)): 1/3, 0.414, ...,
    # 1/2.
    for alpha in (1.0, 2.0, 5.0, 20.0):
        assert best_long_flow(alpha) == pytest.approx(1 / (1 + 2 ** (1 / alpha)), abs=0.001)
    assert best_long_flow(50.0) == pytest.approx(0.5, abs=0.005)


def test_alpha_fair_utility_names_what_is_wrong():
    with pytest.raises(SettingsError, match=r"x\[0\] is -1.0"):
        alpha_fair_utility([-1.0], 2.0)
    with pytest.raises(SettingsError, match="alpha is -1"):
        alpha_fair_utility([1.0], -1.0)


# --- objective ---


def test_objective_by_hand():
    # u = [1, 3] / 4. gamma 1, p 2: 0.25 * 4 + 0.75 * 9 = 7.75. gamma -1, p 1: 4 * 2 + (4/3) * 3 =
    # 12.
    assert float(objective([2.0, 3.0], [1.0, 3.0], 2.0, 1.0)) == pytest.approx(7.75)
    assert float(objective([2.0, 3.0], [1.0, 3.0], 1.0, -1.0)) == pytest.approx(12.0)
    # One exponent per client, gamma 0: 2^-1 + 3^2 = 9.5.
    assert float(objective([2.0, 3.0], [1.0, 3.0], [-1.0, 2.0], 0.0)) == pytest.approx(9.5)
    assert float(objective([0.0, 3.0], [1.0, 3.0], -1.0, 0.0)) == math.inf


def test_objective_forgets_the_scale_of_uncertainties_and_in_the_limit_their_values():
    losses, uncertainties = [0.5, 2.0, 1.0], torch.tensor([0.2, 0.1, 0.4])
    small, large = (
        objective(losses, uncertainties, 3.0, 1.0),
        objective(losses, uncertainties * 50, 3.0, 1.0),
    )
    assert float(small) == pytest.approx(float(large))
    assert float(objective(losses, uncertainties, 500.0, 1.0)) ** (1 / 500) == pytest.approx(
        2.0, rel=0.01
    )


def test_objective_gradient_flows():
    losses = torch.tensor([2.0, 3.0], dtype=torch.float64, requires_grad=True)
    objective(losses, [1.0, 3.0], 2.0, 1.0).backward()
    assert losses.grad is not None
    assert losses.grad.tolist() == pytest.approx([1.0, 4.5])  # p u H: 2 * 0.25 * 2 and 2 * 0.75 * 3


def test_objective_names_what_is_wrong():
    with pytest.raises(SettingsError, match=r"uncertainties\[1\] is 0.0"):
        objective([1.0, 1.0], [1.0, 0.0], 1.0, 1.0)
    with pytest.raises(SettingsError, match=r"losses\[0\] is -1.0"):
        objective([-1.0, 1.0], [1.0, 1.0], 1.0, 1.0)
    with pytest.raises(SettingsError, match="losses has 2, uncertainties has 2, exponent has 3"):
        objective([1.0, 1.0], [1.0, 1.0], [1.0, 2.0, 3.0], 1.0)
    with pytest.raises(SettingsError, match="losses has 2, uncertainties has 1"):
        objective([1.0, 1.0], [1.0], 1.0, 1.0)
    with pytest.raises(SettingsError, match="gamma is nan"):
        objective([1.0], [1.0], 1.0, math.nan)


# --- curvature ---


class SmoothPositive:
    """h(t) = c + t'At/2 + sum_k a_k cos(b_k.t + s_k), with a known L.

    c > sum |a_k|, and A is positive semidefinite.
    """

    def __init__(self, seed, dimensions=3, waves=4):
        draw = numpy_stream(seed, "smooth function")
        root = draw.normal(size=(dimensions, dimensions)) * draw.uniform(0, 1)
        self.bowl = root @ root.T
        self.heights = draw.normal(size=waves)
        self.waves = draw.normal(size=(waves, dimensions))
        self.shifts = draw.uniform(0, 6, size=waves)
        self.constant = np.abs(self.heights).sum() + draw.uniform(0.2, 2.0)
        # The Hessian is A - sum a_k b_k b_k' cos(.), whose norm is at most the sum of the parts'
        # norms.
        self.lipschitz = np.linalg.norm(self.bowl, 2) + np.sum(
            np.abs(self.heights) * np.sum(self.waves**2, axis=1)
        )

    def value(self, t):
        return (
            self.constant
            + t @ self.bowl @ t / 2
            + self.heights @ np.cos(self.waves @ t + self.shifts)
        )

    def gradient(self, t):
        return self.bowl @ t - (self.heights * np.sin(self.waves @ t + self.shifts)) @ self.waves


def hessian_norm(function, t, step=1e-3):
    """Spectral norm of the Hessian by central differences of function values."""
    n = len(t)
    hessian = np.empty((n, n))
    for i, a in enumerate(np.eye(n) * step):
        for j, b in enumerate(np.eye(n) * step):
            corners = (
                function(t + a + b)
                - function(t + a - b)
                - function(t - a + b)
                + function(t - a - b)
            )
            hessian[i, j] = corners / (4 * step**2)
    return np.linalg.norm(hessian, 2)


EXPONENTS = [-3.0, -1.0, -0.2, 0.0, 0.1, 0.5, 0.9, 1.0, 1.3, 2.0, 4.0, 7.0]


@pytest.mark.parametrize("p", EXPONENTS)
def test_curvature_bound_holds_on_random_smooth_functions(p):
    for seed in range(30):
        h = SmoothPositive(seed)
        t = numpy_stream(seed, "point").normal(size=3) * 2
        w = 0.3
        true = hessian_norm(lambda point, h=h, w=w: w * h.value(point) ** p, t)
        bound = float(curvature_bound(h.value(t), np.sum(h.gradient(t) ** 2), h.lipschitz, p, w))
        assert true <= bound * (1 + 1e-4) + 1e-8, (p, seed)


@pytest.mark.parametrize("p", [1.0, 1.5, 2.0, 5.0])
def test_curvature_bound_is_reached(p):
    # h = 1 + |t|^2 / 2 bends by exactly L = 1 everywhere, so along the gradient nothing is lost.
    t = np.array([1.0, -2.0])  # h = 3.5, |grad|^2 = 5
    true = hessian_norm(lambda point: 2 * (1 + point @ point / 2) ** p, t)
    assert true == pytest.approx(float(curvature_bound(3.5, 5.0, 1.0, p, 2.0)), rel=1e-4)


@given(positive, positive, positive, st.floats(1.0, 7.0), positive)
def test_printed_curvature_is_the_bound_for_exponents_from_one(loss, squared, lipschitz, p, weight):
    arguments = (loss, squared, lipschitz, p, weight)
    assert float(curvature_as_printed(*arguments)) == pytest.approx(
        float(curvature_bound(*arguments))
    )


@pytest.mark.parametrize("p", [-3.0, -1.0, 0.5])
def test_printed_curvature_is_no_bound_below_one(p):
    # h = 1 + |t|^2 / 2 at (3, 0): h = 5.5, |grad|^2 = 9, L = 1. Across the gradient h^p bends by
    # |p| h^(p-1).
    t = np.array([3.0, 0.0])
    true = hessian_norm(lambda point: (1 + point @ point / 2) ** p, t)
    printed = float(curvature_as_printed(5.5, 9.0, 1.0, p, 1.0))
    if p == 0.5:
        # 0.5 * 5.5^-0.5 * (1 - 0.5 * 9 / 5.5) = 0.0388; across the gradient 0.5 * 5.5^-0.5 = 0.2132
        assert printed == pytest.approx(0.0388, abs=1e-4)
        assert true == pytest.approx(0.2132, abs=1e-4)
        assert printed < true
    # For p < 0 the same formula can be negative: at the bowl's bottom it is p, and no norm is below
    # zero.
    else:
        assert float(curvature_as_printed(1.0, 0.0, 1.0, p, 1.0)) == p
        assert hessian_norm(
            lambda point: (1 + point @ point / 2) ** p, np.zeros(2)
        ) == pytest.approx(-p, rel=1e-4)
    assert true <= float(curvature_bound(5.5, 9.0, 1.0, p, 1.0))


def test_curvature_works_element_by_element():
    # p = 2: 2 w (L h + |g|^2) = 2 * 1 * (3 * 1 + 4) = 14.
    # p = -1: 1 w (L h^-2 + 2 h^-3 |g|^2) = 0.5 (3/4 + 2 * 8 / 8) = 1.375.
    bound = curvature_bound(torch.tensor([1.0, 2.0]), [4.0, 8.0], 3.0, [2.0, -1.0], [1.0, 0.5])
    assert bound.dtype == torch.float64
    assert bound.tolist() == pytest.approx([14.0, 1.375])
    # The second without absolute values: -0.5 (3/4 - 2) = 0.625
    printed = curvature_as_printed(
        torch.tensor([1.0, 2.0]), [4.0, 8.0], 3.0, [2.0, -1.0], [1.0, 0.5]
    )
    assert printed.tolist() == pytest.approx([14.0, 0.625])


def test_curvature_at_zero_loss():
    exponents = [-1.0, 0.0, 0.5, 1.0, 1.5, 2.0, 3.0]
    # p = 0 is a constant, p = 1 is h itself (L w = 6), p = 2 is 2 w |grad|^2 = 4; below 2 h^(p-2)
    # is infinite.
    assert curvature_bound(0.0, 1.0, 3.0, exponents, 2.0).tolist() == [
        math.inf,
        0,
        math.inf,
        6,
        math.inf,
        4,
        0,
    ]
    assert curvature_bound(0.0, 0.0, 3.0, exponents, 2.0).tolist() == [
        math.inf,
        0,
        math.inf,
        6,
        0,
        0,
        0,
    ]


def test_curvature_names_what_is_wrong():
    with pytest.raises(SettingsError) as caught:
        curvature_bound([-1.0], 1.0, math.nan, math.inf, 1.0)
    assert [mistake.split()[0] for mistake in caught.value.mistakes] == [
        "loss",
        "lipschitz",
        "exponent",
    ]
