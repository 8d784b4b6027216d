"""PropFair: the local objective by hand and by differences, both branches, and parameters."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from method_helpers import EXAMPLES, close

from udjfl.methods import FedAvg, Reports, Setup
from udjfl.methods.propfair import PropFair


def value_and_slope(
    rule: PropFair, batch_losses: Any, dtype: torch.dtype = torch.float64
) -> tuple[torch.Tensor, torch.Tensor]:
    """The objective of clients whose batch is one example of this loss, and its derivative."""
    losses = torch.tensor(batch_losses, dtype=dtype)[:, None].requires_grad_()
    value = rule.objective(losses, torch.ones_like(losses), None, None)
    (slope,) = torch.autograd.grad(value.sum(), losses)
    return value.detach(), slope[:, 0]


def test_the_objective_by_hand():
    # M = 2. Client a: mean of 0.5 and 1.5 is 1, -log(1 - 1/2) = log 2, slope 1/(2 - 1) * 1/2 on
    # either example. Client b: mean of 0 and 1, and padding that does not count: -log(3/4), slope
    # 1/(3/2) * 1/2, and 0 on the padding.
    losses = torch.tensor(
        [[0.5, 1.5, 9.0], [0.0, 1.0, 9.0]], dtype=torch.float64, requires_grad=True
    )
    weights = torch.tensor([[0.5, 0.5, 0.0], [0.5, 0.5, 0.0]], dtype=torch.float64)
    value = PropFair(M=2).objective(losses, weights, None, None)
    close(value, (math.log(2), -math.log(0.75)))
    (slope,) = torch.autograd.grad(value.sum(), losses)
    close(slope, [[0.5, 0.5, 0.0], [1 / 3, 1 / 3, 0.0]])


@pytest.mark.parametrize(
    ("huber", "values", "slopes"),
    [
        # M = 2, epsilon = 1/4. At 1.75 there is just epsilon left: -log(1/8), slope 1/epsilon = 4.
        # At 1.8, 2 and 5 there is less: b/2 with slope 1/2, or b/epsilon with slope 4.
        (False, (math.log(8), 0.9, 1.0, 2.5), (4, 0.5, 0.5, 0.5)),
        (True, (math.log(8), 7.2, 8.0, 20.0), (4, 4, 4, 4)),
    ],
)
def test_both_branches_by_hand(huber, values, slopes):
    value, slope = value_and_slope(PropFair(M=2, epsilon=0.25, huber=huber), [1.75, 1.8, 2.0, 5.0])
    close(value, values)
    close(slope, slopes)


@pytest.mark.parametrize("b", [0.0, 0.3, 1.0, 2.0, 2.79])
def test_the_gradient_is_the_losss_divided_by_the_utility(b):
    # Against finite differences of the formula.
    _, slope = value_and_slope(PropFair(M=3), [b])
    close(slope, [1 / (3 - b)])
    h = 1e-6
    numeric = (-math.log(1 - (b + h) / 3) + math.log(1 - (b - h) / 3)) / (2 * h)
    assert slope.item() == pytest.approx(numeric, rel=1e-6)


@pytest.mark.parametrize("huber", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("epsilon", [0.2, 1e-8])
def test_no_gradient_is_nan(huber, dtype, epsilon):
    # At M the logarithm is infinite, above it undefined; neither may leak from the branch that is
    # not taken.
    losses = [0.0, 2.0 - 1e-7, 2.0, 2.0 + 1e-7, 2.302585, 1e30]
    value, slope = value_and_slope(PropFair(M=2, epsilon=epsilon, huber=huber), losses, dtype)
    assert value.dtype == dtype
    assert torch.isfinite(value).all()
    assert torch.isfinite(slope).all()
    assert (slope > 0).all()


def test_at_the_default_an_untrained_model_of_sixteen_classes_is_on_the_logarithms_side():
    inside = 1 / (3 - math.log(16)), 1 / 3
    close(value_and_slope(PropFair(), [math.log(16), math.log(17)])[1], inside)
    # With the authors' M = 2 ten classes are not.
    close(value_and_slope(PropFair(M=2), [math.log(10)])[1], [1 / 2])


def test_a_large_M_with_the_learning_rate_times_M_is_fedavg():
    slope = value_and_slope(PropFair(M=1e9), [0.1, 2.0, 30.0])[1]
    close(1e9 * slope, (1.0, 1.0, 1.0), rtol=1e-6)


def test_a_step_under_vmap_is_the_same():
    # Engines may train all clients in one batched program.
    rule, losses = PropFair(M=2), torch.tensor([0.5, 2.5], dtype=torch.float64)

    def one(loss: torch.Tensor) -> torch.Tensor:
        return rule.objective(loss[None, None], torch.ones(1, 1, dtype=torch.float64), None, None)[
            0
        ]

    close(torch.func.vmap(torch.func.grad(one))(losses), value_and_slope(rule, [0.5, 2.5])[1])


@pytest.mark.parametrize("weights", ["size", "uniform"])
def test_the_server_averages_as_fedavg(weights):
    # 1/4 (4, 0) + 3/4 (0, 2) = (1, 1.5), or half of each, (2, 1). Losses do not enter.
    reports = Reports(["a", "b"], [[4.0, 0.0], [0.0, 2.0]], sizes=[1, 3], client_indices=[5, 2])
    state, step, diagnostics = PropFair(weights=weights).aggregate({}, reports)
    assert state == {}
    assert step.tolist() == ([1.0, 1.5] if weights == "size" else [2.0, 1.0])
    assert torch.equal(
        diagnostics["weight"], FedAvg(weights=weights).aggregate({}, reports)[2]["weight"]
    )


def test_a_note_warns_about_its_learning_rate():
    (note,) = PropFair().notes(Setup(["a"], torch.ones(1), torch.zeros(2)))
    assert "lr" in note
    assert "M - loss" in note


@pytest.mark.parametrize(
    ("text", "value"),
    [("false", False), ("False", False), ("0", False), ("true", True), ("1", True)],
)
def test_huber_may_come_as_text(text, value):
    assert PropFair(huber=text).huber is value


@EXAMPLES
@given(
    rows=st.lists(st.lists(st.floats(0, 20), min_size=3, max_size=3), min_size=1, max_size=5),
    M=st.floats(0.5, 6),
    huber=st.booleans(),
)
def test_properties(rows, M, huber):
    losses, weights = (
        torch.tensor(rows, dtype=torch.float64),
        torch.full((len(rows), 3), 1 / 3, dtype=torch.float64),
    )
    rule = PropFair(M=M, huber=huber)
    value = rule.objective(losses, weights, None, None)
    assert value.shape == (len(rows),)
    assert torch.isfinite(value).all()
    assert (value >= 0).all()
    # Clients do not mix: each row is what it would be alone, in any order.
    assert torch.equal(rule.objective(losses.flip(0), weights, None, None), value.flip(0))
    assert torch.equal(rule.objective(losses[:1], weights[:1], None, None), value[:1])
    # Loss and M in another unit: the logarithm's side has no unit.
    scaled = PropFair(M=2 * M, epsilon=0.4, huber=huber).objective(2 * losses, weights, None, None)
    torch.testing.assert_close(scaled, value)
