"""mFairFL: the clients' objective, the penalties, the server step by hand, identities, absences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from method_helpers import EXAMPLES, make_reports

from udjfl.methods.base import Setup
from udjfl.methods.fedavg import FedAvg
from udjfl.methods.fedfv import FedFV
from udjfl.methods.mfairfl import MFairFL
from udjfl.methods.reports import Reports

CONFLICT = [[2.0, 0.0], [-1.0, 1.0]]


def reports_of(deltas: Any, losses: Any = None, **changes: Any) -> Reports:
    losses = list(range(1, len(deltas) + 1)) if losses is None else losses
    return make_reports(deltas, losses=losses, **changes)


def run(
    rule: MFairFL, reports: Reports, **state: Any
) -> tuple[dict[str, Any], torch.Tensor, dict[str, torch.Tensor]]:
    changed = {name: torch.tensor(value, dtype=torch.float64) for name, value in state.items()}
    return rule.aggregate({**rule.init(Setup.of(reports)), **changed}, reports)


def objective(
    losses: Any, weights: Any, groups: Any, lam: Any, rule: MFairFL | None = None
) -> tuple[list, list]:
    """Value and gradient."""
    at = torch.tensor(losses, requires_grad=True)
    value = (rule or MFairFL()).objective(at, torch.tensor(weights), groups, lam)
    value.sum().backward()
    return value.tolist(), at.grad.tolist()


# --- the clients' objective ---

QUARTER = [0.25, 0.25, 0.25, 0.25]


def test_two_groups_by_hand():
    # Group 0: 1 and 3, mean 2; group 1: 5 and 7, mean 6. Mean 4, gap 4, lam 1/2: 4 + 2.
    # Gradient: 1/4 for each, + 1/2 * 1/2 in the worse group, - in the better.
    value, gradient = objective(
        [[1.0, 5.0, 3.0, 7.0]], [QUARTER], torch.tensor([[0, 1, 0, 1]]), torch.tensor([0.5])
    )
    assert value == [6.0]
    assert gradient == [[0.0, 0.5, 0.0, 0.5]]


def test_it_does_not_matter_which_group_is_worse():
    values = [
        objective([[1.0, 5.0, 3.0, 7.0]], [QUARTER], torch.tensor([g]), torch.tensor([2.0]))
        for g in ([0, 1, 0, 1], [1, 0, 1, 0])
    ]
    assert values[0] == values[1]


def test_of_three_groups_the_best_and_the_worst_count():
    # Means 1, 4, 9 of groups 7, 2, 5: gap 8, lam 1. Mean (1 + 4 + 4 + 9)/4 = 4.5.
    value, gradient = objective(
        [[1.0, 4.0, 4.0, 9.0]], [QUARTER], torch.tensor([[7, 2, 2, 5]]), torch.tensor([1.0])
    )
    assert value == [12.5]
    assert gradient == [[-0.75, 0.25, 0.25, 1.25]]


def test_each_client_has_its_own_penalty_and_groups():
    # Client 1: gap 2, lam 3, mean 2. Client 2 has one group in its batch: its mean alone.
    value, _ = objective(
        [[1.0, 3.0], [2.0, 8.0]],
        [[0.5, 0.5]] * 2,
        torch.tensor([[0, 1], [1, 1]]),
        torch.tensor([3.0, 3.0]),
    )
    assert value == [8.0, 5.0]


def test_padding_and_examples_without_a_group_have_no_gap_and_no_nan():
    # Row 1: padding of group 1 has weight 0, so one group is left. Row 2: group -1 is none, so
    # again one is left. Row 3: nothing but padding. Row 4: equal means, where the gap has a kink: 0
    # is taken.
    losses = [[1.0, 3.0, 100.0], [1.0, 5.0, 9.0], [1.0, 2.0, 3.0], [2.0, 2.0, 2.0]]
    weights = [[0.5, 0.5, 0.0], [1 / 3] * 3, [0.0] * 3, [0.5, 0.5, 0.0]]
    groups = torch.tensor([[0, 0, 1], [0, 0, -1], [0, 1, 0], [0, 1, 1]])
    value, gradient = objective(
        losses, weights, groups, torch.full((4,), 10.0, dtype=torch.float64)
    )
    assert value == pytest.approx([2.0, 5.0, 0.0, 2.0])
    np.testing.assert_allclose(gradient, weights, rtol=1e-6)


@pytest.mark.parametrize(
    ("groups", "lam"), [(None, torch.tensor([2.0])), (torch.tensor([[0, 1]]), None)]
)
def test_without_groups_or_price_it_is_the_mean_loss(groups, lam):
    assert objective([[1.0, 4.0]], [[0.5, 0.5]], groups, lam) == ([2.5], [[0.5, 0.5]])


@EXAMPLES
@given(data=st.data(), k=st.integers(1, 4), b=st.integers(1, 6))
def test_the_objective_is_the_slow_formula(data, k, b):
    def draw_rows(values: st.SearchStrategy[Any]) -> Any:
        return data.draw(st.lists(st.lists(values, min_size=b, max_size=b), min_size=k, max_size=k))

    losses, groups = draw_rows(st.floats(0, 9, width=16)), draw_rows(st.integers(-1, 2))
    weights = [[float(keep) / b for keep in row] for row in draw_rows(st.booleans())]
    value, gradient = objective(losses, weights, torch.tensor(groups), torch.full((k,), 2.0))
    assert np.isfinite(gradient).all()
    for row in range(k):
        cells = [
            (g, x) for g, x, w in zip(groups[row], losses[row], weights[row], strict=True) if w > 0
        ]
        means = [
            np.mean([x for g, x in cells if g == group])
            for group in {g for g, _ in cells if g >= 0}
        ]
        gap = max(means) - min(means) if means else 0.0
        assert value[row] == pytest.approx(
            sum(x for _, x in cells) / b + 2 * gap, rel=1e-5, abs=1e-5
        )


# --- the prices ---


def test_penalties_start_alike_and_grow_with_the_gap():
    # 1 + 0.1 * 2 and 1 + 0.1 * 0.5.
    rule = MFairFL()
    reports = reports_of(CONFLICT, extras={"group_gaps": torch.tensor([2.0, 0.5])})
    state, _, diagnostics = run(rule, reports)
    assert rule.plan(rule.init(Setup.of(reports)), None)[1].multipliers.tolist() == [1.0, 1.0]
    assert state["lam"].tolist() == pytest.approx([1.2, 1.05])
    assert rule.plan(state, None)[1].multipliers.tolist() == pytest.approx([1.2, 1.05])
    assert diagnostics["lam"].tolist() == [1.0, 1.0]  # what clients paid in this round
    assert diagnostics["group_gap"].tolist() == [2.0, 0.5]


def test_penalties_and_targets_are_in_double_precision():
    start = MFairFL().init(Setup.of(reports_of(CONFLICT, dtype=torch.float32)))
    assert {name: value.dtype for name, value in start.items()} == {
        "lam": torch.float64,
        "targets": torch.float64,
    }


def test_penalties_are_never_negative():
    reports = reports_of(CONFLICT, extras={"group_gaps": torch.tensor([0.5, 1.0])})
    state, _, _ = run(MFairFL(lam_rate=1.0), reports, lam=[-0.75, 0.25])
    assert state["lam"].tolist() == [0.0, 1.25]


def test_without_a_sensitive_attribute_penalties_stay_and_a_note_says_so():
    reports = reports_of(CONFLICT)
    state, step, diagnostics = run(MFairFL(lam_start=3.0), reports)
    assert state["lam"].tolist() == [3.0, 3.0]
    assert diagnostics["group_gap"].tolist() == [0.0, 0.0]
    assert torch.equal(step, run(MFairFL(), reports)[1])
    (note,) = MFairFL().notes(Setup.of(reports))
    assert note.startswith("Without a sensitive attribute only the client-level part")
    assert MFairFL().notes(Setup(["a"], torch.ones(1), torch.zeros(1), has_groups=True)) == []


# --- the server step ---


def test_projection_by_hand():
    # As for FedFV: h = (1, 1) and (0, 1), so the step is (1/2, 1). In round 1 every target is 0.
    _, step, diagnostics = run(MFairFL(), reports_of(CONFLICT))
    assert step.tolist() == [0.5, 1.0]
    assert diagnostics["weight"].tolist() == pytest.approx([3 / 7, 4 / 7])
    assert diagnostics["step_scale"].item() == pytest.approx(7 / 4)
    assert diagnostics["conflicts"].tolist() == [1, 1]
    assert diagnostics["alignment"].tolist() == pytest.approx([5**-0.5, 10**-0.5])


def test_a_target_above_zero_by_hand():
    # g = (1, 0) and (0, 2), aim 3/5: h_a = (1, 3/4), h_b = (3/2, 2) (cos 1.5/2.5), mean (5/4,
    # 11/8).
    targets = [[0.0, 0.6], [0.6, 0.0]]
    state, step, diagnostics = run(
        MFairFL(similarity_rate=0.5), reports_of([[1.0, 0.0], [0.0, 2.0]]), targets=targets
    )
    assert step.tolist() == pytest.approx([1.25, 1.375])
    assert diagnostics["conflicts"].tolist() == [1, 1]
    # Their cosine is 0: (1 - 1/2) 0.6.
    assert state["targets"][0, 1].item() == state["targets"][1, 0].item() == pytest.approx(0.3)


def test_updates_at_right_angles_are_no_conflict_at_a_target_of_zero():
    _, step, diagnostics = run(MFairFL(), reports_of([[1.0, 0.0], [0.0, 2.0]]))
    assert step.tolist() == [0.5, 1.0]
    assert diagnostics["conflicts"].tolist() == [0, 0]


def test_of_many_equal_losses_the_order_is_that_of_the_ids():
    deltas = np.random.default_rng(3).normal(size=(40, 3))
    equal, rising = (
        run(MFairFL(), reports_of(deltas, losses))[1] for losses in ([1.0] * 40, range(40))
    )
    assert torch.equal(equal, rising)


def test_a_target_below_zero_tolerates_the_usual_conflict():
    # cos of (2, 0) and (-1, 1) is -0.707: above a target of -0.8 nothing is turned.
    reports = reports_of(CONFLICT)
    _, step, diagnostics = run(MFairFL(), reports, targets=[[0.0, -0.8], [-0.8, 0.0]])
    assert torch.equal(step, FedAvg(weights="uniform").aggregate({}, reports)[1])
    assert diagnostics["conflicts"].tolist() == [0, 0]


def test_targets_follow_the_similarities_of_those_that_meet():
    # Clients 0 and 2 of three meet, at cos -1/sqrt(2); one hundredth of it is taken over. Client
    # 1's pairs are untouched.
    rule = MFairFL()
    start = rule.init(Setup(["a", "b", "c"], torch.ones(3), torch.zeros(2)))
    start["targets"][1] = 0.25
    reports = reports_of(
        CONFLICT,
        ids=["a", "c"],
        client_indices=[0, 2],
        extras={"group_gaps": torch.tensor([1.0, 2.0])},
    )
    state, _, _ = rule.aggregate(start, reports)
    assert (
        state["targets"][0, 2].item()
        == state["targets"][2, 0].item()
        == pytest.approx(-0.01 * 0.5**0.5)
    )
    assert state["targets"][1].tolist() == [0.25] * 3
    assert state["targets"][0, 1] == state["targets"][2, 1] == 0
    assert state["lam"].tolist() == pytest.approx([1.1, 1.0, 1.2])
    assert start["lam"].tolist() == [1.0, 1.0, 1.0]
    assert start["targets"][0, 2] == 0


def test_targets_are_those_of_the_pair_wherever_it_stands():
    # Of four clients, 3 and 1 meet; theirs is the target of 0.6 in the case by hand.
    rule = MFairFL()
    start = rule.init(Setup(["a", "b", "c", "d"], torch.ones(4), torch.zeros(2)))
    start["targets"][1, 3] = start["targets"][3, 1] = 0.6
    _, step, _ = rule.aggregate(
        start, reports_of([[1.0, 0.0], [0.0, 2.0]], ids=["b", "d"], client_indices=[1, 3])
    )
    assert step.tolist() == pytest.approx([1.25, 1.375])


def test_a_client_that_did_not_move_has_no_similarity():
    targets = [[0.0, 0.5, 0.5], [0.5, 0.0, 0.5], [0.5, 0.5, 0.0]]
    state, step, diagnostics = run(
        MFairFL(), reports_of([[1.0, 0.0], [0.0, 0.0], [0.0, 1.0]]), targets=targets
    )
    assert state["targets"][1].tolist() == [0.5, 0.0, 0.5]
    assert state["targets"][0, 2].item() == pytest.approx(0.495)
    assert diagnostics["conflicts"].tolist() == [1, 0, 1]
    assert torch.isfinite(step).all()


@pytest.mark.parametrize("seed", range(3))
def test_target_zero_is_the_internal_step_of_fedfv(seed):
    """In the same order, with alpha = 0, before FedFV restores the length of the average."""
    rng = np.random.default_rng(seed)
    reports = reports_of(rng.normal(size=(5, 6)), rng.uniform(0, 3, size=5))
    _, turned_step, diagnostics = FedFV(alpha=0.0, tau=0).aggregate({}, reports)
    rule = MFairFL(similarity_rate=0.0)
    state, step, _ = run(rule, reports)
    torch.testing.assert_close(step * diagnostics["rescale"], turned_step)
    # Nothing is remembered of pairs, so the next round starts the same.
    assert set(state) == {"lam"}
    assert torch.equal(rule.aggregate(state, reports)[1], step)


def test_without_conflicts_it_is_the_plain_average():
    reports = reports_of(np.random.default_rng(0).uniform(0, 1, size=(5, 6)))
    assert torch.equal(
        run(MFairFL(), reports)[1], FedAvg(weights="uniform").aggregate({}, reports)[1]
    )


def test_losses_only_set_the_order():
    deltas = np.random.default_rng(3).normal(size=(5, 6))
    rising, same_order, falling = (
        run(MFairFL(), reports_of(deltas, x))[1]
        for x in ([1, 2, 3, 4, 5], [0, 2, 5, 6, 9], [5, 4, 3, 2, 1])
    )
    assert torch.equal(rising, same_order)
    assert not torch.allclose(rising, falling)


def test_opposite_clients_and_clients_at_rest_give_no_step():
    ones = [[1.0, 1.0], [1.0, 1.0]]
    for deltas in ([[1.0, -2.0], [-0.5, 1.0]], [[0.0, 0.0], [0.0, 0.0]]):
        for targets in (ones, [[0.0, 0.0], [0.0, 0.0]]):
            _, step, diagnostics = run(MFairFL(), reports_of(deltas), targets=targets)
            assert not step.any()
            assert all(torch.isfinite(value).all() for value in diagnostics.values())


def test_identical_clients_drive_the_target_to_one_and_stay_finite():
    rule = MFairFL(similarity_rate=1.0)
    reports = reports_of([[1.0, 2.0]] * 3)
    state, _, _ = run(rule, reports)
    torch.testing.assert_close(state["targets"], torch.ones(3, 3, dtype=torch.float64))
    _, step, _ = rule.aggregate(state, reports)
    torch.testing.assert_close(step, torch.tensor([1.0, 2.0], dtype=torch.float64))
    _, step, _ = rule.aggregate(state, reports_of(np.random.default_rng(0).normal(size=(3, 2))))
    assert torch.isfinite(step).all()


@EXAMPLES
@given(
    data=st.data(), m=st.integers(1, 6), d=st.integers(1, 4), rate=st.sampled_from([0.0, 0.01, 1.0])
)
def test_any_two_rounds_are_finite_and_scale_with_the_updates(data, m, d, rate):
    number = st.floats(-3, 3, width=32, allow_subnormal=False)
    rule = MFairFL(similarity_rate=rate)
    rounds = [
        data.draw(st.lists(st.lists(number, min_size=d, max_size=d), min_size=m, max_size=m))
        for _ in range(2)
    ]
    losses = data.draw(st.lists(st.floats(0, 9), min_size=m, max_size=m))
    steps = []
    for scale in (1.0, 8.0):
        state = rule.init(Setup.of(reports_of(rounds[0])))
        for deltas in rounds:
            state, step, diagnostics = rule.aggregate(
                state, reports_of(scale * np.array(deltas), losses)
            )
        assert step.shape == (d,)
        assert torch.isfinite(step).all()
        assert all(
            torch.isfinite(value).all() for value in (*diagnostics.values(), *state.values())
        )
        assert diagnostics["weight"].sum().item() == pytest.approx(1)
        assert diagnostics["weight"].min() >= 0
        steps.append(step)
    torch.testing.assert_close(steps[1], 8 * steps[0], rtol=1e-9, atol=1e-12)
