"""SCAFFOLD by hand, its first round, and where its correction leads."""

from __future__ import annotations

import pytest
import torch
from method_helpers import close, first_round, step_of, two_clients
from small_runs import make_federation, model_bytes, train_briefly

from udjfl.methods import FedAvg, Reports, Setup
from udjfl.methods.scaffold import Scaffold


def plain_clients(**changes: object) -> Reports:
    """Return clients without momentum at lr 1/2: a takes 1 step, b takes 3."""
    return two_clients(momentum=0.0, **changes)


def test_two_rounds_by_hand() -> None:
    rule = Scaffold(weights="uniform")
    state, step, _ = first_round(rule, plain_clients())
    assert step.tolist() == [0.5, 1.0]
    # c = 0: c_a = (1, 0) / (1/2 * 1) = (2, 0), c_b = (0, 2) / (1/2 * 3) = (0, 4/3); c = (1, 2/3)
    close(state["variates"], [[2.0, 0.0], [0.0, 4 / 3]])
    _, plan = rule.plan(state, None)
    close(plan.shift, [[1 - 2.0, 2 / 3], [1.0, 2 / 3 - 4 / 3]])
    # Only b reports, with (1, 1): c_b - c + (1, 1) / (3/2) = (0 - 1 + 2/3, 4/3 - 2/3 + 2/3)
    alone = Reports(
        ids=["b"], deltas=[[1.0, 1.0]], sizes=[3], steps=[3], lr=0.5, client_indices=[1]
    )
    state, step, _ = rule.aggregate(state, alone)
    assert step.tolist() == [1.0, 1.0]
    close(state["variates"], [[2.0, 0.0], [-1 / 3, 4 / 3]])


def test_by_size_the_mean_variate_is_weighted_as_the_step() -> None:
    rule = Scaffold()
    state, step, _ = first_round(rule, plain_clients())
    assert torch.equal(step, step_of(FedAvg(), plain_clients()))
    _, plan = rule.plan(state, None)
    # c = 1/4 (2, 0) + 3/4 (0, 4/3): weighted by size, the corrections cancel.
    close(plan.shift[0], [0.5 - 2, 1.0])
    close(torch.tensor([0.25, 0.75], dtype=torch.float64) @ plan.shift, [0.0, 0.0], atol=1e-15)


def test_with_momentum_a_variate_is_the_mean_gradient() -> None:
    """A constant gradient g, momentum 1/2 and 3 steps: the change is lr 17/4 g."""
    g = torch.tensor([3.0, -1.0], dtype=torch.float64)
    reports = two_clients(deltas=torch.stack([0.5 * g, 0.5 * 17 / 4 * g]))
    state, _, _ = first_round(Scaffold(), reports)
    close(state["variates"], torch.stack([g, g]))


@pytest.mark.parametrize("engine", ["stacked", "serial"])
def test_its_first_round_is_fedavg_to_the_last_bit(engine: str) -> None:
    federation = make_federation()
    ours, theirs = (
        train_briefly(federation, name, rounds=1, engine=engine) for name in ("scaffold", "fedavg")
    )
    assert model_bytes(ours) == model_bytes(theirs)
    ours, theirs = (train_briefly(federation, name, rounds=2) for name in ("scaffold", "fedavg"))
    assert model_bytes(ours) != model_bytes(theirs)


def test_clients_at_the_common_optimum_stay_there() -> None:
    """Gradients (1, 0) and (-1, 0) cancel on average; corrected, both are zero."""
    reports = plain_clients(deltas=[[0.5, 0.0], [-1.5, 0.0]], sizes=[1, 1])
    rule = Scaffold()
    state = rule.init(Setup.of(reports))
    state = {**state, "variates": torch.tensor([[1.0, 0.0], [-1.0, 0.0]], dtype=torch.float64)}
    _, plan = rule.plan(state, None)
    assert (torch.tensor([[1.0, 0.0], [-1.0, 0.0]]) + plan.shift).tolist() == [[0, 0], [0, 0]]


def test_variates_start_at_zero() -> None:
    state = Scaffold().init(Setup.of(two_clients()))
    assert state["variates"].tolist() == [[0.0, 0.0], [0.0, 0.0]]
    assert Scaffold().plan(state, None)[1].shift.tolist() == [[0.0, 0.0], [0.0, 0.0]]  # type: ignore[union-attr]
