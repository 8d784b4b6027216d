"""FedFV: hand-worked rounds, its identities, opposite clients, memory of absent clients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from method_helpers import EXAMPLES, first_round, make_reports, step_of

from udjfl.methods._conflicts import NEGLIGIBLE
from udjfl.methods.base import Setup
from udjfl.methods.fedavg import FedAvg
from udjfl.methods.fedfv import FedFV
from udjfl.methods.reports import Reports

INTERNAL = FedFV(alpha=0.0, tau=0)


def reports_of(deltas: Any, losses: Any = None, **changes: Any) -> Reports:
    losses = list(range(1, len(deltas) + 1)) if losses is None else losses
    return make_reports(deltas, losses=losses, **changes)


def run(rule: FedFV, reports: Reports) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    return first_round(rule, reports)[1:]


def average(reports: Reports) -> torch.Tensor:
    return FedAvg(weights="uniform").aggregate({}, reports)[1]


@st.composite
def any_reports(draw: st.DrawFn) -> Reports:
    m, d = draw(st.integers(1, 6)), draw(st.integers(1, 4))
    number = st.floats(-3, 3, width=32, allow_subnormal=False)
    deltas = draw(st.lists(st.lists(number, min_size=d, max_size=d), min_size=m, max_size=m))
    return reports_of(
        deltas,
        draw(st.lists(st.floats(0, 9), min_size=m, max_size=m)),
        round=draw(st.integers(1, 3)),
    )


# --- by hand ---


def test_internal_conflicts_by_hand():
    # g_a = (2, 0), g_b = (-1, 1), dot -2.  h_a = g_a + 2/2 g_b = (1, 1);  h_b = g_b + 2/4 g_a = (0,
    # 1). G = (1/2, 1), |G| = sqrt(5)/2; the mean of the g is (1/2, 1/2), its length sqrt(2)/2. Step
    # = G sqrt(2/5).
    step, diagnostics = run(INTERNAL, reports_of([[2.0, 0.0], [-1.0, 1.0]]))
    assert step.tolist() == pytest.approx([0.5 * 0.4**0.5, 0.4**0.5])
    # G = (1 + 1/2)/2 g_a + (1 + 1)/2 g_b: weights 3 : 4.
    assert diagnostics["weight"].tolist() == pytest.approx([3 / 7, 4 / 7])
    assert diagnostics["conflicts"].tolist() == [1, 1]
    assert diagnostics["kept"].tolist() == [0, 0]
    assert diagnostics["rescale"].item() == pytest.approx(0.4**0.5)
    # cos of (2, 0) and of (-1, 1) with (1, 2).
    assert diagnostics["alignment"].tolist() == pytest.approx([5**-0.5, 10**-0.5])


@pytest.mark.parametrize(
    ("losses", "expected"), [((1.0, 2.0), (0.0, 1.0)), ((2.0, 1.0), (1.0, 0.5))]
)
def test_the_client_with_the_highest_loss_keeps_its_update(losses, expected):
    # alpha 1/2: order[ceil(1/2):] is the last one. If b keeps: h = (1, 1) and (-1, 1), G = (0, 1).
    # If a keeps: h = (2, 0) and (0, 1), G = (1, 1/2). Both rescaled to sqrt(2)/2.
    step, diagnostics = run(FedFV(alpha=0.5, tau=0), reports_of([[2.0, 0.0], [-1.0, 1.0]], losses))
    direction = torch.tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(step, direction / direction.norm() * 0.5**0.5)
    assert diagnostics["kept"].tolist() == [float(loss == 2.0) for loss in losses]


def test_external_conflicts_of_the_current_round_by_hand():
    # alpha 1: all keep, G = the mean of (4, 0), (-1, 1), (-1, 0) = (2/3, 1/3). Against it: b (-1/3)
    # and c (-2/3). c = (-2, 1), dot -1, |c|^2 = 5: G = (2/3, 1/3) + 1/5 (-2, 1) = (4, 8)/15. Length
    # back to sqrt(5)/3: (1, 2)/3.
    step, diagnostics = run(
        FedFV(alpha=1.0, tau=1), reports_of([[4.0, 0.0], [-1.0, 1.0], [-1.0, 0.0]])
    )
    assert step.tolist() == pytest.approx([1 / 3, 2 / 3])
    assert diagnostics["weight"].tolist() == pytest.approx(
        [5 / 21, 8 / 21, 8 / 21]
    )  # 1/3, 1/3 + 1/5, 1/3 + 1/5
    # cos of (4, 0), (-1, 1) and (-1, 0) with (1, 2).
    assert diagnostics["alignment"].tolist() == pytest.approx([5**-0.5, 10**-0.5, -(5**-0.5)])


def test_a_client_at_right_angles_to_the_step_is_not_harmed():
    # alpha 1: G = the mean of (4, 0), (-2, 0), (-1, 1), (0, 0) = (1/4, 1/4). Only b is against it;
    # c is at right angles. G + 1/8 (-2, 0) = (0, 1/4), as long as the mean: (0, sqrt(2)/4).
    step, _ = run(
        FedFV(alpha=1.0, tau=1), reports_of([[4.0, 0.0], [-2.0, 0.0], [-1.0, 1.0], [0.0, 0.0]])
    )
    assert step.tolist() == pytest.approx([0.0, 2**0.5 / 4])


def test_an_absent_client_at_right_angles_to_the_step_is_not_harmed():
    # As by hand below, beside a client whose update (0, 1) is at right angles to (2, 0).
    rule = FedFV(alpha=0.0, tau=2)
    state = rule.init(Setup(["a", "b", "c"], torch.ones(3), torch.zeros(2, dtype=torch.float64)))
    state, _, _ = rule.aggregate(
        state,
        reports_of([[-1.0, 1.0], [0.0, 1.0]], ids=["b", "c"], client_indices=[1, 2], round=1),
    )
    _, step, _ = rule.aggregate(
        state, reports_of([[2.0, 0.0]], ids=["a"], client_indices=[0], round=2)
    )
    assert step.tolist() == pytest.approx([2**0.5, 2**0.5])


def test_external_conflicts_with_absent_clients_by_hand():
    # tau 2. Round 1: b sends (-1, 1). Round 2: a sends (2, 0), G = (2, 0), dot with b's -2, |.|^2 =
    # 2: G = (1, 1). Length 2 again: (1, 1) sqrt(2).
    rule = FedFV(alpha=0.0, tau=2)
    state = rule.init(Setup(["a", "b", "c"], torch.ones(3), torch.zeros(2, dtype=torch.float64)))
    state, _, _ = rule.aggregate(
        state, reports_of([[-1.0, 1.0]], ids=["b"], client_indices=[1], round=1)
    )
    kept, step, diagnostics = rule.aggregate(
        state, reports_of([[2.0, 0.0]], ids=["a"], client_indices=[0], round=2)
    )
    assert step.tolist() == pytest.approx([2**0.5, 2**0.5])
    assert diagnostics["weight"].tolist() == [1.0]
    # By client index, not by row; an absent client is left alone.
    assert kept["last_updates"].tolist() == [[2.0, 0.0], [-1.0, 1.0], [0.0, 0.0]]
    assert kept["last_rounds"].tolist() == [2, 1, 0]
    # In round 3 what b sent is two rounds old, and tau 2 looks back to round 2 only.
    _, step, _ = rule.aggregate(
        kept, reports_of([[2.0, 0.0]], ids=["a"], client_indices=[0], round=3)
    )
    assert step.tolist() == [2.0, 0.0]


def test_older_rounds_come_first():
    # tau 3, round 3: G = (1, 0); c of round 1 is (-1, 1), of round 2 (-1, -2).
    # r = 2: dot -1, /2: G = (1/2, 1/2).  r = 1: dot -3/2, |c|^2 = 5: G = (1/2, 1/2) + 3/10 (-1, -2)
    # = (1/5, -1/10). (The other way round: (4/5, -2/5), dot -6/5: (1/5, 1/5).)  r = 0: 1/5 > 0.
    #                                                                            Length 1: (2, -1) /
    # sqrt(5).
    rule = FedFV(alpha=0.0, tau=3)
    state = rule.init(Setup(["a", "b", "c"], torch.ones(3), torch.zeros(2, dtype=torch.float64)))
    for t, (place, delta) in enumerate(
        [(1, [-1.0, 1.0]), (2, [-1.0, -2.0]), (0, [1.0, 0.0])], start=1
    ):
        state, step, _ = rule.aggregate(
            state, reports_of([delta], ids=["abc"[place]], client_indices=[place], round=t)
        )
    assert step.tolist() == pytest.approx([2 * 5**-0.5, -(5**-0.5)])


def test_external_conflicts_wait_for_round_tau():
    # As by hand above, where tau 1 turns the step in round 1; tau 3 looks back from round 3 on.
    deltas = [[4.0, 0.0], [-1.0, 1.0], [-1.0, 0.0]]
    for t, expected in [(1, [2 / 3, 1 / 3]), (2, [2 / 3, 1 / 3]), (3, [1 / 3, 2 / 3])]:
        assert step_of(
            FedFV(alpha=1.0, tau=3), reports_of(deltas, round=t)
        ).tolist() == pytest.approx(expected)


# --- identities ---


@pytest.mark.parametrize("rule", [FedFV(), FedFV(alpha=0.0, tau=0), FedFV(alpha=0.5, tau=4)])
def test_without_conflicts_it_is_the_plain_average(rule):
    reports = reports_of(np.random.default_rng(0).uniform(0, 1, size=(5, 6)), round=4)
    assert torch.equal(step_of(rule, reports), average(reports))


def test_all_keep_their_updates_and_nothing_external_is_the_plain_average():
    reports = reports_of(np.random.default_rng(0).normal(size=(5, 6)))
    assert torch.equal(step_of(FedFV(alpha=1.0, tau=0), reports), average(reports))
    assert not torch.allclose(step_of(INTERNAL, reports), average(reports))


@EXAMPLES
@given(reports=any_reports(), alpha=st.sampled_from([0.0, 0.1, 0.5, 1.0]), tau=st.integers(0, 2))
def test_the_step_is_as_long_as_the_average(reports, alpha, tau):
    step, diagnostics = run(FedFV(alpha=alpha, tau=tau), reports)
    assert torch.isfinite(step).all()
    assert all(torch.isfinite(value).all() for value in diagnostics.values())
    assert diagnostics["weight"].sum().item() == pytest.approx(1)
    assert diagnostics["weight"].min() >= 0
    if diagnostics["rescale"] > 0:
        assert step.norm().item() == pytest.approx(
            average(reports).norm().item(), rel=1e-9, abs=1e-12
        )
    else:
        assert not step.any()


@EXAMPLES
@given(seed=st.integers(0, 1000))
def test_two_clients_are_not_harmed_by_each_others_turned_update(seed):
    g = torch.from_numpy(np.random.default_rng(seed).normal(size=(2, 4)))
    step = step_of(INTERNAL, reports_of(g))
    assert (g @ step > -1e-12).all()
    # tau 1 does the same for a client that kept its update.
    assert (g @ step_of(FedFV(alpha=0.5, tau=1), reports_of(g)) > -1e-12).all()


@pytest.mark.parametrize("rule", [FedFV(), FedFV(alpha=0.0, tau=3)])
def test_one_client_becomes_the_model(rule):
    assert step_of(rule, reports_of([[0.3, -0.7]], round=5)).tolist() == [0.3, -0.7]


@EXAMPLES
@given(reports=any_reports())
def test_the_step_scales_with_the_updates(reports):
    scaled = reports_of(reports.deltas * 8, reports.losses, round=reports.round)
    torch.testing.assert_close(
        step_of(FedFV(tau=2), scaled), 8 * step_of(FedFV(tau=2), reports), rtol=1e-12, atol=0
    )


@pytest.mark.parametrize("scale", [2.0**-40, 2.0**40])
def test_no_update_is_too_short_or_too_long(scale):
    for rule, deltas in (
        (INTERNAL, [[2.0, 0.0], [-1.0, 1.0]]),
        (FedFV(alpha=1.0, tau=1), [[4.0, 0.0], [-1.0, 1.0], [-1.0, 0.0]]),
    ):
        expected = scale * step_of(rule, reports_of(deltas))
        assert torch.equal(step_of(rule, reports_of(scale * np.array(deltas))), expected)


def test_a_conflict_with_an_update_too_short_to_be_squared_is_passed_over():
    # 1e-200 squared is 0 in floats.
    step, diagnostics = run(FedFV(alpha=1.0, tau=1), reports_of([[4.0, 0.0], [-1e-200, 0.0]]))
    assert step.tolist() == [2.0, 0.0]
    assert diagnostics["weight"].tolist() == [0.5, 0.5]


def test_sizes_do_not_count():
    deltas = np.random.default_rng(0).normal(size=(3, 4))
    assert torch.equal(
        step_of(FedFV(), reports_of(deltas, sizes=[1, 50, 2])), step_of(FedFV(), reports_of(deltas))
    )


# --- hazards ---


@pytest.mark.parametrize("b", [-0.7, -1.0, -3.0])
@pytest.mark.parametrize(
    "rule", [FedFV(alpha=0.0), FedFV(alpha=0.0, tau=0), FedFV(alpha=0.0, tau=2)]
)
def test_opposite_clients_leave_the_model_where_it_is(rule, b):
    # Nothing is left of either update, so there is no direction, and 0/0 would be NaN.
    v = torch.from_numpy(np.random.default_rng(1).normal(size=5))
    step, diagnostics = run(rule, reports_of(torch.stack([v, b * v]), round=2))
    assert not step.any()
    assert diagnostics["rescale"] == 0
    assert diagnostics["rescale"].dtype == torch.float64
    assert diagnostics["alignment"].tolist() == [0, 0]


@pytest.mark.parametrize(("share", "expected"), [(0.5, 0.0), (1.5, 1.0)])
def test_what_is_left_is_compared_with_the_mean_length_of_the_updates(share, expected):
    # (1, 0) and (-1, e): turned, both are (0, e) up to e^2. Direction (0, 1), of length e/2.
    e = share * NEGLIGIBLE
    step, diagnostics = run(INTERNAL, reports_of([[1.0, 0.0], [-1.0, e]]))
    assert step.tolist() == pytest.approx([0.0, expected * e / 2], abs=1e-11)
    assert bool(diagnostics["rescale"] > 0) == (expected > 0)


def test_a_zero_update_conflicts_with_none():
    # a and b as by hand; G is over three, (1/3, 2/3), and so is the mean, (1/3, 1/3).
    step, diagnostics = run(INTERNAL, reports_of([[2.0, 0.0], [-1.0, 1.0], [0.0, 0.0]]))
    assert step.tolist() == pytest.approx([0.4**0.5 / 3, 2 * 0.4**0.5 / 3])
    assert diagnostics["conflicts"].tolist() == [1, 1, 0]


def test_zero_updates_give_no_step():
    step, diagnostics = run(FedFV(tau=2), reports_of(torch.zeros(3, 2), round=2))
    assert step.tolist() == [0.0, 0.0]
    assert diagnostics["weight"].tolist() == pytest.approx([1 / 3] * 3)


@pytest.mark.parametrize(
    ("alpha", "m", "count"),
    # order[ceil((m-1)(1-alpha)):]; ceil(9*.9) = 9, ceil(4*.5) = 2, ceil(10*.3) = 3 although
    # 10*(1-.7) is above 3 in floats.
    [(0.0, 10, 0), (0.1, 10, 1), (0.5, 5, 3), (0.7, 11, 8), (1.0, 4, 4), (0.1, 1, 1)],
)
def test_the_share_alpha_keeps_its_update(alpha, m, count):
    losses = np.random.default_rng(0).permutation(m) + 1.0
    kept = run(
        FedFV(alpha=alpha), reports_of(np.random.default_rng(0).normal(size=(m, 3)), losses)
    )[1]["kept"]
    assert kept.tolist() == [float(loss > m - count) for loss in losses]


def test_equal_losses_go_by_id():
    deltas = np.random.default_rng(3).normal(size=(4, 3))
    shuffled = reports_of(deltas[[2, 0, 3, 1]], [1.0] * 4, ids=["c2", "c0", "c3", "c1"])
    for rule in (FedFV(), INTERNAL):
        assert torch.equal(step_of(rule, shuffled), step_of(rule, reports_of(deltas, [1.0] * 4)))


def test_of_many_equal_losses_the_last_by_id_keeps_its_update():
    deltas = np.random.default_rng(3).normal(size=(40, 3))
    _, diagnostics = run(FedFV(alpha=0.01), reports_of(deltas, [1.0] * 40))
    assert diagnostics["kept"].nonzero().flatten().tolist() == [39]


def test_the_order_is_that_of_the_losses():
    deltas = np.random.default_rng(3).normal(size=(5, 6))
    rising, falling = (
        step_of(INTERNAL, reports_of(deltas, losses))
        for losses in ([1, 2, 3, 4, 5], [5, 4, 3, 2, 1])
    )
    assert not torch.allclose(rising, falling)
    # Renaming the clients in step with their losses changes nothing.
    torch.testing.assert_close(
        step_of(INTERNAL, reports_of(deltas[::-1].copy(), [1, 2, 3, 4, 5])), falling
    )


# --- state, parameters, what is needed ---


@pytest.mark.parametrize("tau", [0, 1])
def test_no_memory_unless_absent_clients_count(tau):
    reports = reports_of([[2.0, 0.0], [-1.0, 1.0]])
    assert FedFV(tau=tau).init(Setup.of(reports)) == {}
    assert FedFV(tau=tau).aggregate({}, reports)[0] == {}


def test_memory_has_the_dtype_of_the_model_and_the_old_state_is_left_alone():
    rule = FedFV(tau=2)
    start = rule.init(Setup(["a", "b"], torch.ones(2), torch.zeros(2, dtype=torch.float32)))
    after, _, _ = rule.aggregate(start, reports_of([[2.0, 0.0]], ids=["b"], client_indices=[1]))
    assert after["last_updates"].dtype == torch.float32
    assert after["last_rounds"].dtype == torch.int64
    double = rule.init(Setup(["a", "b"], torch.ones(2), torch.zeros(2, dtype=torch.float64)))
    assert double["last_updates"].dtype == torch.float64
    assert not start["last_updates"].any()
    assert start["last_rounds"].tolist() == [0, 0]
