"""AFL: rounds by hand, limits of the weights, partial participation, and where it converges."""

from __future__ import annotations

from functools import partial
from typing import Any

import method_helpers
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from method_helpers import EXAMPLES, close, make_reports
from safetensors.torch import load, save
from scipy.optimize import minimize_scalar

from udjfl.errors import ReportError
from udjfl.methods import FedAvg, Reports, Setup
from udjfl.methods.afl import AFL

two_clients = partial(method_helpers.two_clients, sizes=[3, 1])
close = partial(close, rtol=0, atol=1e-12)


def federation(n: int, sizes: Any = None) -> Setup:
    sizes = (
        torch.ones(n, dtype=torch.float64)
        if sizes is None
        else torch.tensor(sizes, dtype=torch.float64)
    )
    return Setup([f"c{i}" for i in range(n)], sizes, torch.zeros(2), (2,))


def test_two_rounds_by_hand():
    # lambda starts at 3/4, 1/4. Plus 0.1 F: 0.85, 0.45, which sum to 1.3: 0.15 off each, 0.70,
    # 0.30. Used at once.
    rule = AFL(lr_lambda=0.1)
    state = rule.init(Setup.of(two_clients()))
    close(state["lambda"], (0.75, 0.25))
    state, step, diagnostics = rule.aggregate(state, two_clients())
    close(state["lambda"], (0.7, 0.3))
    close(step, (0.7, 0.6))
    close(diagnostics["weight"], (0.7, 0.3))
    # Round 2 with losses 0 and 4: 0.7, 0.7, so 0.2 off each.
    state, step, _ = rule.aggregate(state, two_clients(losses=[0.0, 4.0]))
    close(state["lambda"], (0.5, 0.5))
    close(step, (0.5, 1.0))


def test_the_other_order_uses_the_weights_from_before():
    rule = AFL(lr_lambda=0.1, order="step_first", start="uniform")
    state, step, diagnostics = rule.aggregate(rule.init(Setup.of(two_clients())), two_clients())
    close(step, (0.5, 1.0))
    close(diagnostics["weight"], (0.5, 0.5))
    # 0.5 + 0.1 and 0.5 + 0.2 sum to 1.3: 0.15 off each. This is what round 2 uses.
    close(diagnostics["lambda"], (0.45, 0.55))
    close(rule.aggregate(state, two_clients())[1], (0.45, 1.1))


@pytest.mark.parametrize("start", ["size", "uniform"])
@pytest.mark.parametrize("order", ["update_first", "step_first"])
def test_without_a_rate_it_is_fedavg(start, order):
    rule = AFL(lr_lambda=0, start=start, order=order)
    state = rule.init(Setup.of(two_clients()))
    for _ in range(3):
        state, step, _ = rule.aggregate(state, two_clients())
        close(step, FedAvg(weights=start).aggregate({}, two_clients())[1])


def test_equal_losses_leave_the_weights_alone():
    rule = AFL(lr_lambda=0.7)
    state, _, _ = rule.aggregate(rule.init(Setup.of(two_clients())), two_clients(losses=[5.0, 5.0]))
    close(state["lambda"], (0.75, 0.25))


def test_a_lasting_largest_loss_gets_all_the_weight():
    # The gap 0.1 (2 - 1) per round overtakes 3/4 - 1/4 and then 1 within 15 rounds. Then the step
    # is b's own.
    rule = AFL(lr_lambda=0.1)
    state = rule.init(Setup.of(two_clients()))
    for _ in range(20):
        state, step, _ = rule.aggregate(state, two_clients())
    close(state["lambda"], (0.0, 1.0))
    close(step, (0.0, 2.0))


@pytest.mark.parametrize("losses", [[1e17, 0.0, 1e17], [3e38, 1.0, 0.0], [0.0, 0.0, 0.0]])
def test_weights_stay_on_the_simplex_whatever_the_losses(losses):
    rule = AFL()
    reports = Reports(["c0", "c1", "c2"], torch.eye(3), losses, sizes=[1, 1, 1])
    state, step, _ = rule.aggregate(rule.init(Setup.of(reports)), reports)
    assert state["lambda"].min() >= 0
    assert state["lambda"].sum().item() == pytest.approx(1)
    assert torch.isfinite(step).all()
    if max(losses) > 1:
        assert state["lambda"][losses.index(max(losses))] > 0.4


# --- partial participation ---


def test_weights_belong_to_clients_not_to_rows():
    # Clients 3 and 1 of four report, a is client 3. From 1/4 each, plus 0.1 F = 0.1 and 0.2: sums
    # to 1.3, 0.075 off each.
    rule = AFL(lr_lambda=0.1)
    reports = two_clients(client_indices=[3, 1])
    state, step, diagnostics = rule.aggregate(rule.init(federation(4)), reports)
    close(state["lambda"], (0.175, 0.375, 0.175, 0.275))
    # The step divides by what the two have, 0.65.
    close(diagnostics["weight"], (0.275 / 0.65, 0.375 / 0.65))
    close(diagnostics["lambda"], (0.275, 0.375))
    close(step, (0.275 / 0.65, 0.75 / 0.65))


def test_absent_clients_give_way_alike_and_keep_their_order():
    rule = AFL(lr_lambda=0.05)
    before = rule.init(federation(4, [1, 2, 3, 4]))["lambda"]
    after = rule.aggregate({"lambda": before}, two_clients(client_indices=[0, 2]))[0]["lambda"]
    # Plus 0.05 and 0.1: 0.15 too much, 0.0375 off each.
    close(after, before + torch.tensor([0.0125, -0.0375, 0.0625, -0.0375], dtype=torch.float64))


@pytest.mark.parametrize(("start", "share"), [("size", (0.75, 0.25)), ("uniform", (0.5, 0.5))])
def test_reporting_clients_without_any_weight_count_as_at_the_start(start, share):
    rule = AFL(lr_lambda=0.0, start=start)
    state = {"lambda": torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64)}
    after, step, diagnostics = rule.aggregate(state, two_clients())
    close(diagnostics["weight"], share)
    close(step, (share[0], 2 * share[1]))
    close(after["lambda"], (0.0, 0.0, 1.0))


def test_the_state_keeps_its_shape_and_survives_a_file():
    rule = AFL()
    state = rule.init(federation(5))
    for indices in ([0, 1], [4, 2], [3, 0]):
        before = state["lambda"].clone()
        after, _, _ = rule.aggregate(state, two_clients(client_indices=indices))
        assert torch.equal(state["lambda"], before)
        state = load(save(after))
        assert list(state) == ["lambda"]
        assert state["lambda"].shape == (5,)
        assert state["lambda"].dtype == torch.float64


# --- parameters ---


def test_sizes_are_needed_only_to_start_by_size():
    AFL(start="uniform").aggregate(
        {"lambda": torch.tensor([0.5, 0.5], dtype=torch.float64)}, two_clients(sizes=None)
    )
    with pytest.raises(ReportError, match="sizes was left out"):
        AFL().aggregate(
            {"lambda": torch.tensor([0.5, 0.5], dtype=torch.float64)}, two_clients(sizes=None)
        )


@EXAMPLES
@given(
    rows=st.lists(
        st.tuples(st.floats(-3, 3), st.floats(-3, 3), st.floats(0, 50)), min_size=1, max_size=6
    ),
    rate=st.floats(0, 2),
    shift=st.floats(0, 10),
    order=st.sampled_from(["update_first", "step_first"]),
)
def test_properties(rows, rate, shift, order):
    deltas = torch.tensor([row[:2] for row in rows], dtype=torch.float64)
    losses = torch.tensor([row[2] for row in rows], dtype=torch.float64)
    ids, sizes = [f"c{i}" for i in range(len(rows))], torch.arange(1, len(rows) + 1)
    rule = AFL(lr_lambda=rate, order=order)
    reports = Reports(ids, deltas, losses, sizes)
    state = rule.init(Setup.of(reports))
    after, step, _ = rule.aggregate(state, reports)
    assert step.shape == (2,)
    assert torch.isfinite(step).all()
    assert after["lambda"].min() >= 0
    assert after["lambda"].sum().item() == pytest.approx(1, abs=1e-12)
    indices = torch.arange(len(rows))
    reverse = Reports(
        ids[::-1], deltas.flip(0), losses.flip(0), sizes.flip(0), client_indices=indices.flip(0)
    )
    assert torch.equal(rule.aggregate(state, reverse)[1], step)
    # A constant added to every loss is taken off again by the projection; the step is linear in the
    # deltas.
    close(
        rule.aggregate(state, Reports(ids, deltas, losses + shift, sizes))[0]["lambda"],
        after["lambda"],
        atol=1e-9,
    )
    close(rule.aggregate(state, Reports(ids, 3 * deltas, losses, sizes))[1], 3 * step)


@pytest.mark.parametrize("order", ["update_first", "step_first"])
def test_it_reaches_the_smallest_largest_loss(order):
    # F_a = x^2/2 and F_b = (x - 2)^2/2 + 1/2: equal at x = 5/4, where lambda_a 5/4 = lambda_b 3/4.
    def losses(x: float) -> np.ndarray:
        return np.array([x**2 / 2, (x - 2) ** 2 / 2 + 0.5])

    rule, x, lr = AFL(lr_lambda=0.05, order=order), 0.0, 0.1
    state = rule.init(federation(2))
    for _ in range(1000):
        deltas = torch.tensor([[lr * x], [lr * (x - 2)]], dtype=torch.float64)
        state, step, _ = rule.aggregate(state, Reports(["a", "b"], deltas, losses(x), sizes=[1, 1]))
        x -= step.item()
    best = minimize_scalar(
        lambda x: losses(x).max(), bounds=(0, 2), method="bounded", options={"xatol": 1e-9}
    ).fun
    assert losses(x).max() == pytest.approx(best, rel=1e-6)
    close(state["lambda"], (3 / 8, 5 / 8), atol=1e-6)


def test_a_little_weight_is_weight():
    """Clients that together have 1.5e-12 of it are weighted by it, two to one."""
    weights = torch.tensor([1 - 1.5e-12, 1e-12, 0.5e-12], dtype=torch.float64)
    reports = make_reports([[1.0], [2.0]], losses=[1.0, 1.0], sizes=[1, 9], client_indices=[1, 2])
    rule = AFL(order="step_first")
    close(rule.aggregate({"lambda": weights}, reports)[2]["weight"], [2 / 3, 1 / 3])
