"""FedDyn by hand, and its limits."""

from __future__ import annotations

import torch
from method_helpers import close, first_round, make_reports, step_of, two_clients
from small_runs import make_federation, train_briefly

from udjfl.methods import FedAvg, Reports, Setup
from udjfl.methods.feddyn import FedDyn
from udjfl.models import to_vector


def test_two_rounds_by_hand() -> None:
    rule = FedDyn(alpha=0.5)
    state, step, _ = first_round(rule, two_clients())
    # mean of the changes (1/2, 1), and as much again for h / alpha
    assert step.tolist() == [1.0, 2.0]
    _, plan = rule.plan(state, None)
    assert (plan.mu, plan.gradient_share) == (0.5, 1.0)
    assert plan.shift.tolist() == [[-0.5, 0.0], [0.0, -1.0]]
    # Only b reports, with (2, 0): its sum is (2, 2), the mean of both sums (3/2, 1).
    alone = Reports(ids=["b"], deltas=[[2.0, 0.0]], client_indices=[1])
    state, step, _ = rule.aggregate(state, alone)
    assert step.tolist() == [3.5, 1.0]
    assert state["changes"].tolist() == [[1.0, 0.0], [2.0, 2.0]]


def test_the_first_step_is_twice_the_uniform_average() -> None:
    for alpha in (1e-6, 0.1, 10.0):
        step = step_of(FedDyn(alpha=alpha), two_clients())
        close(step, 2 * step_of(FedAvg(weights="uniform"), two_clients()))


def test_as_alpha_vanishes_clients_train_as_in_fedavg() -> None:
    """The changes of round 1, of which the step is twice the mean, become FedAvg's."""
    federation, settings = make_federation(), {"rounds": 1, "batch_size": 8}
    start, plain = (
        to_vector(train_briefly(federation, "fedavg:weights=uniform", lr=lr, **settings).model)
        for lr in (1e-9, 0.1)
    )
    gaps = []
    for alpha in (1.0, 1e-3, 1e-6):
        after = to_vector(train_briefly(federation, f"feddyn:alpha={alpha}", **settings).model)
        gaps.append(float(((after - start) / 2 - (plain - start)).norm()))
    assert gaps[0] > 100 * gaps[1] > gaps[2]
    assert gaps[2] < 1e-5


def test_it_finds_the_common_minimum_where_fedavg_does_not() -> None:
    """Losses 1/2 c_i (x - b_i)^2 in one dimension, each minimised exactly with the plan's terms.

    The minimum of their sum is sum c b / sum c = (1*0 + 4*3) / 5 = 2.4; FedAvg goes to the mean of
    the minima, 1.5.
    """
    c, b = torch.tensor([[1.0], [4.0]]).double(), torch.tensor([[0.0], [3.0]]).double()
    rule, x = FedDyn(alpha=1.0), torch.zeros(1, dtype=torch.float64)
    state = rule.init(Setup(["a", "b"], torch.ones(2), x))
    for _ in range(200):
        _, plan = rule.plan(state, None)
        # c (y - b) + mu (y - x) + shift = 0
        y = (c * b + plan.mu * x - plan.shift) / (c + plan.mu)
        state, step, _ = rule.aggregate(state, Reports(ids=["a", "b"], deltas=x - y))
        x = x - step
    close(x, [2.4], rtol=1e-6)


def test_thirds_and_changes_are_in_the_precision_of_the_model() -> None:
    reports = make_reports([[0.1], [0.2], [0.4]])
    state, step, _ = first_round(FedDyn(), reports)
    assert state["changes"].dtype == torch.float64
    close(step, [1.4 / 3], rtol=1e-14)
