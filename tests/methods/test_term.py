"""TERM: both step rules by hand, limits of the tilt, overflow, parameters, where it converges."""

from __future__ import annotations

import math
from functools import partial

import method_helpers
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from method_helpers import EXAMPLES, close, make_reports, step_of
from safetensors.torch import load, save
from scipy.optimize import minimize_scalar

from udjfl.errors import ReportError
from udjfl.methods import FedAvg, Reports, Setup
from udjfl.methods.term import TERM

# With t = log 3, exp(t F) = 3 and 9.
two_clients = partial(method_helpers.two_clients, sizes=[2, 1])

LOG3 = math.log(3)


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        # p exp(t F) = 2/3*3 : 1/3*9 = 2 : 3.
        ({"t": LOG3}, (2 / 5, 6 / 5)),
        # 3 : 9 = 1 : 3.
        ({"t": LOG3, "weights": "uniform"}, (1 / 4, 6 / 4)),
        # 1/3 : 1/9 = 3 : 1.
        ({"t": -LOG3, "weights": "uniform"}, (3 / 4, 2 / 4)),
    ],
)
def test_normalised_by_hand(params, expected):
    state, step, diagnostics = TERM(**params).aggregate({}, two_clients())
    assert state == {}
    close(step, expected)
    close(diagnostics["weight"] * torch.tensor([1.0, 2.0], dtype=torch.float64), expected)


def test_official_by_hand():
    # a = 3^(1-2) = 1/3 and 1, mean 2/3. Round 1: X = 1/3; factors a / (K K X) = 1/4 and 3/4 of (1,
    # 0) and (0, 2).
    rule = TERM(t=LOG3, step="official", weights="uniform")
    state, step, diagnostics = rule.aggregate(rule.init(Setup.of(two_clients())), two_clients())
    close(state["X"], 1 / 3)
    close(step, (1 / 4, 6 / 4))
    close(diagnostics["weight"], (1 / 4, 3 / 4))
    close(diagnostics["step_scale"], 1.0)  # 2/K: twice what it settles to
    # Round 2, losses 2 and 2: a = 1 and 1, X = 1/6 + 1/2 = 2/3, factors 3/8 each.
    state, step, diagnostics = rule.aggregate(state, two_clients(losses=[2.0, 2.0]))
    close(diagnostics["estimate"], 2 / 3)
    close(step, (3 / 8, 6 / 8))


def test_official_by_size_by_hand():
    # p a = 2/3*1/3 = 2/9 and 1/3 = 3/9, sum 5/9, X = 5/18; factors (2/9, 3/9) / (2 * 5/18) = 2/5,
    # 3/5.
    close(step_of(TERM(t=LOG3, step="official"), two_clients()), (2 / 5, 6 / 5))


def test_official_settles_to_a_kth_of_the_tilted_average():
    rule = TERM(t=LOG3, step="official")
    state = rule.init(Setup.of(two_clients()))
    for _ in range(50):
        state, step, _ = rule.aggregate(state, two_clients())
    close(step, (1 / 2) * step_of(TERM(t=LOG3), two_clients()))


@pytest.mark.parametrize("weights", ["size", "uniform"])
def test_no_tilt_or_equal_losses_is_fedavg(weights):
    average = FedAvg(weights=weights).aggregate({}, two_clients())[1]
    close(step_of(TERM(t=0, weights=weights), two_clients()), average)
    for t in (1e-9, -1e-9):
        close(step_of(TERM(t=t, weights=weights), two_clients()), average, rtol=1e-8)
    for t in (-3.0, 0.5, 40.0):
        close(step_of(TERM(t=t, weights=weights), two_clients(losses=[7.0, 7.0])), average)


@pytest.mark.parametrize(
    ("t", "expected"),
    [(1e6, (0.0, 2.0)), (-1e6, (1.0, 0.0)), (1e308, (0.0, 2.0)), (-1e308, (1.0, 0.0))],
)
def test_an_extreme_tilt_follows_one_client(t, expected):
    # The worst client's for t -> infinity, the best client's for t -> -infinity.
    close(step_of(TERM(t=t), two_clients()), expected)


@pytest.mark.parametrize("step", ["normalised", "official"])
@pytest.mark.parametrize("t", [5.0, -5.0])
@pytest.mark.parametrize("losses", [[1e4, 1e4 - 1], [0.0, 1e30], [0.0, 0.0]])
def test_nothing_overflows(step, t, losses):
    result = step_of(TERM(t=t, step=step), two_clients(losses=losses))
    assert torch.isfinite(result).all()
    assert result.any()


def test_the_tilt_the_paper_chose_is_fedavg_to_half_a_percent():
    weight = TERM(t=0.01, weights="uniform").aggregate({}, two_clients(losses=[0.1, 0.6]))[2][
        "weight"
    ]
    assert (weight / 0.5 - 1).abs().max() < 0.005


def test_the_running_estimate_is_one_number_for_all():
    # Indices do not matter, and the state keeps its shape through a file.
    rule = TERM(step="official")
    state = rule.init(Setup.of(two_clients()))
    for indices in ([0, 1], [6, 2]):
        before = state["X"].clone()
        after, _, _ = rule.aggregate(state, two_clients(client_indices=indices))
        assert torch.equal(state["X"], before)
        state = load(save(after))
        assert {name: (value.shape, value.dtype) for name, value in state.items()} == {
            "X": (torch.Size([]), torch.float64)
        }
    assert TERM().init(Setup.of(two_clients())) == {}


def test_sizes_are_needed_only_for_weights_by_size():
    close(step_of(TERM(t=LOG3, weights="uniform"), two_clients(sizes=None)), (1 / 4, 6 / 4))
    with pytest.raises(ReportError, match="sizes was left out"):
        TERM().aggregate({}, two_clients(sizes=None))


@EXAMPLES
@given(
    rows=st.lists(
        st.tuples(st.floats(-3, 3), st.floats(-3, 3), st.floats(0, 50)), min_size=1, max_size=6
    ),
    t=st.floats(-20, 20),
    shift=st.floats(0, 10),
    step=st.sampled_from(["normalised", "official"]),
)
def test_properties(rows, t, shift, step):
    deltas = torch.tensor([row[:2] for row in rows], dtype=torch.float64)
    losses = torch.tensor([row[2] for row in rows], dtype=torch.float64)
    ids, sizes = [f"c{i}" for i in range(len(rows))], torch.arange(1, len(rows) + 1)
    rule = TERM(t=t, step=step)
    result = step_of(rule, Reports(ids, deltas, losses, sizes))
    assert result.shape == (2,)
    assert torch.isfinite(result).all()
    reverse = Reports(ids[::-1], deltas.flip(0), losses.flip(0), sizes.flip(0))
    assert torch.equal(step_of(rule, reverse), result)
    # A constant added to every loss cancels; the step is linear in the deltas.
    torch.testing.assert_close(
        step_of(rule, Reports(ids, deltas, losses + shift, sizes)), result, rtol=1e-9, atol=1e-9
    )
    torch.testing.assert_close(step_of(rule, Reports(ids, 3 * deltas, losses, sizes)), 3 * result)


def test_it_minimises_its_objective_and_tends_to_the_smallest_largest_loss():
    # F_a = x^2/2 and F_b = (x - 2)^2/2 + 1/2, one plain step each; the largest loss is smallest
    # where they are equal, x = 5/4.
    def losses(x: float) -> np.ndarray:
        return np.array([x**2 / 2, (x - 2) ** 2 / 2 + 0.5])

    found = []
    for t in (-1.0, 0.5, 5.0, 50.0):
        x, lr = 0.0, 0.02
        for _ in range(800):
            deltas = torch.tensor([[lr * x], [lr * (x - 2)]], dtype=torch.float64)
            x -= step_of(TERM(t=t), Reports(["a", "b"], deltas, losses(x), sizes=[1, 1])).item()
        best = minimize_scalar(
            lambda x, t=t: np.log(np.exp(t * losses(x)).mean()) / t,
            bounds=(-1, 3),
            method="bounded",
        ).x
        assert x == pytest.approx(best, abs=1e-3)
        found.append(losses(x).max())
    assert found == sorted(found, reverse=True)
    assert found[-1] == pytest.approx(1.25**2 / 2, rel=0.01)


@pytest.mark.parametrize("t", [0.5, -0.5, 5.0])
def test_losses_far_apart_do_not_overflow(t):
    """exp(0.5 * 3000) is beyond float64."""
    reports = make_reports([[1.0], [2.0]], losses=[0.0, 3000.0], sizes=[1, 1])
    weight = TERM(t=t).aggregate({}, reports)[2]["weight"]
    assert weight.tolist() == ([0.0, 1.0] if t > 0 else [1.0, 0.0])
