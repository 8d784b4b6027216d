"""CoreFed: by hand, the gradient of its objective, the clamp, and parameters."""

from __future__ import annotations

from functools import partial

import method_helpers
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from method_helpers import EXAMPLES, close, step_of

from udjfl.errors import ReportError
from udjfl.methods import FedAvg, Reports
from udjfl.methods.corefed import CoreFed

# At M = 3 the utilities are 2 and 1.
two_clients = partial(method_helpers.two_clients, sizes=[3, 1])


BY_HAND = [
    # 1/2 (1/2 (1, 0) + 1/1 (0, 2))
    ({"step": "paper"}, (1 / 4, 1.0), 3 / 4),
    # weights 1/2 : 1 = 1 : 2
    ({}, (1 / 3, 4 / 3), 1.0),
    # 3/4 * 1/2 (1, 0) + 1/4 (0, 2)
    ({"step": "paper", "weights": "size"}, (3 / 8, 1 / 2), 5 / 8),
    # 3/8 : 2/8
    ({"weights": "size"}, (3 / 5, 4 / 5), 1.0),
    # M = 5: utilities 4 and 3, weights 3 : 4
    ({"M": 5}, (3 / 7, 8 / 7), 1.0),
]


@pytest.mark.parametrize(("params", "expected", "scale"), BY_HAND)
def test_by_hand(params, expected, scale):
    state, step, diagnostics = CoreFed(**params).aggregate({}, two_clients())
    assert state == {}
    close(step, expected)
    close(diagnostics["step_scale"], scale)
    close(diagnostics["weight"], step / torch.tensor([1.0, 2.0], dtype=torch.float64) / scale)


@pytest.mark.parametrize("weights", ["uniform", "size"])
def test_a_utility_of_one_for_all_is_fedavg_and_so_is_any_other_when_normalised(weights):
    average = FedAvg(weights=weights).aggregate({}, two_clients())[1]
    close(
        step_of(CoreFed(M=3, step="paper", weights=weights), two_clients(losses=[2.0, 2.0])),
        average,
    )
    close(step_of(CoreFed(M=3, weights=weights), two_clients(losses=[0.7, 0.7])), average)


@pytest.mark.parametrize("weights", ["uniform", "size"])
def test_one_full_step_each_is_a_gradient_step_on_the_objective(weights):
    """Sum_k p_k log(M - F_k) of two quadratics, by automatic differentiation."""
    w = torch.tensor([0.3, -0.2], dtype=torch.float64, requires_grad=True)
    centres = torch.tensor([[1.0, 0.0], [-0.5, 1.0]], dtype=torch.float64)
    losses = (w - centres).square().sum(dim=1) / 2
    p = torch.tensor([0.5, 0.5] if weights == "uniform" else [0.75, 0.25], dtype=torch.float64)
    (ascent,) = torch.autograd.grad((p * (3 - losses).log()).sum(), w)
    lr = 0.1
    reports = two_clients(deltas=lr * (w.detach() - centres), losses=losses.detach())
    close(step_of(CoreFed(step="paper", weights=weights), reports), -lr * ascent)


def test_both_steps_have_the_same_direction():
    published, normalised = (
        step_of(CoreFed(step=step), two_clients()) for step in ("paper", "normalised")
    )
    close(published / published.norm(), normalised / normalised.norm())


@pytest.mark.parametrize("loss", [2.8, 2.9, 3.0, 50.0, 1e30])
@pytest.mark.parametrize("step", ["paper", "normalised"])
def test_a_loss_near_or_above_M_neither_turns_nor_blows_up_the_step(step, loss):
    # Utilities 2 and, at the least, epsilon 0.2: 1/2 : 5 = 1 : 10, and the published step is half
    # of 1/2 and of 5.
    _, result, diagnostics = CoreFed(step=step).aggregate({}, two_clients(losses=[1.0, loss]))
    close(result, (1 / 11, 20 / 11) if step == "normalised" else (1 / 4, 5.0))
    assert diagnostics["clamped"].tolist() == [0, float(loss > 2.8)]
    close(diagnostics["utility"], (2.0, 3 - loss))


def test_a_utility_of_just_epsilon_is_not_clamped():
    diagnostics = CoreFed(M=2, epsilon=0.25).aggregate({}, two_clients(losses=[1.75, 1.8]))[2]
    assert diagnostics["clamped"].tolist() == [0, 1]


def test_the_larger_loss_weighs_more_and_at_most_M_over_epsilon_times():
    weight = CoreFed().aggregate({}, two_clients(losses=[0.0, 100.0]))[2]["weight"]
    close(weight[1] / weight[0], 3 / 0.2)


def test_only_the_clients_that_report_count():
    close(step_of(CoreFed(), two_clients(client_indices=[9, 4])), (1 / 3, 4 / 3))


def test_sizes_are_needed_only_for_weights_by_size():
    close(step_of(CoreFed(), two_clients(sizes=None)), (1 / 3, 4 / 3))
    with pytest.raises(ReportError, match="sizes was left out"):
        CoreFed(weights="size").aggregate({}, two_clients(sizes=None))


@EXAMPLES
@given(
    rows=st.lists(
        st.tuples(st.floats(-3, 3), st.floats(-3, 3), st.floats(0, 50)), min_size=1, max_size=6
    ),
    M=st.floats(0.5, 10),
    step=st.sampled_from(["normalised", "paper"]),
)
def test_properties(rows, M, step):
    deltas = torch.tensor([row[:2] for row in rows], dtype=torch.float64)
    losses = torch.tensor([row[2] for row in rows], dtype=torch.float64)
    ids = [f"c{i}" for i in range(len(rows))]
    rule = CoreFed(M=M, step=step)
    _, result, diagnostics = rule.aggregate({}, Reports(ids, deltas, losses))
    assert result.shape == (2,)
    assert torch.isfinite(result).all()
    assert diagnostics["weight"].sum().item() == pytest.approx(1)
    assert (diagnostics["step_scale"] - 1).abs() < 1e-12 or step == "paper"
    assert torch.equal(step_of(rule, Reports(ids[::-1], deltas.flip(0), losses.flip(0))), result)
    torch.testing.assert_close(step_of(rule, Reports(ids, 3 * deltas, losses)), 3 * result)
    # Losses, M and epsilon in another unit: the average stays, the published step is divided by the
    # unit.
    other = step_of(CoreFed(M=2 * M, epsilon=0.4, step=step), Reports(ids, deltas, 2 * losses))
    torch.testing.assert_close(other, result / (2 if step == "paper" else 1))
