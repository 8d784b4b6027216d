"""EFFL: each stage by hand, with and without a sensitive attribute; FedMGDA+; unmet limits."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from method_helpers import EXAMPLES, close, diagnostics_of, make_reports

from udjfl.errors import ReportError, SettingsError
from udjfl.methods.base import Reports, Setup
from udjfl.methods.effl import EFFL
from udjfl.methods.fedmgda import FedMGDA

close = partial(close, rtol=0, atol=1e-6)

FAR = {"eps_vl": 1e9, "eps_b": 1e9, "eps_vb": 1e9}
AXES = [[1.0, 0.0], [0.0, 2.0]]


def reports_of(
    gradients: Any,
    losses: Any,
    gaps: Any = None,
    gap_gradients: Any = None,
    lr: float = 0.5,
    **changes: Any,
) -> Reports:
    """Return the reports of one full step: deltas are lr times the gradients."""
    gradients = torch.as_tensor(gradients, dtype=torch.float64)
    given_extras = {"group_gaps": gaps, "group_gap_gradients": gap_gradients}
    extras = {
        k: torch.as_tensor(v, dtype=torch.float64) for k, v in given_extras.items() if v is not None
    }
    fields = {"deltas": lr * gradients, "losses": losses, "lr": lr, "extras": extras, **changes}
    return make_reports(**fields)


def direction_of(rule: EFFL, reports: Reports) -> torch.Tensor:
    """Return d, from the step server_lr * lr * d."""
    return rule.aggregate({}, reports)[1] / (rule.server_lr * reports.lr)


# --- by hand; gradients g_a = (1, 0), g_b = (0, 2) ---


def test_stage_three_by_hand():
    # Losses alike: the shortest vector between g_a and g_b is 4/5 g_a + 1/5 g_b.
    reports = reports_of(AXES, [1.0, 1.1])
    close(direction_of(EFFL(), reports), (0.8, 0.4))
    close(EFFL(server_lr=3.0).aggregate({}, reports)[1], (0.8 * 1.5, 0.4 * 1.5))
    diagnostics = diagnostics_of(EFFL(), reports)
    close(diagnostics["weight"], (0.8, 0.2))
    close(diagnostics["direction_length"], math.sqrt(0.8))
    close(diagnostics["loss_spread_excess"], 0.05 - 0.2)
    assert diagnostics["stage"] == 3


def test_stage_two_by_hand():
    # Losses 1 and 3, 1 from their mean. Ties go to the first: client a, below the mean, whose
    # spread mean - l_a has the gradient (g_b - g_a) / 2 = (-1/2, 1). The largest loss is b's, g_b =
    # (0, 2). Between them |(-l/2, 2 - l)|^2 is least at l = 8/5 > 1: the first alone.
    reports = reports_of(AXES, [1.0, 3.0])
    close(direction_of(EFFL(), reports), (-0.5, 1.0))
    diagnostics = diagnostics_of(EFFL(), reports)
    close(diagnostics["weight"], (-0.5, 0.5))
    close(diagnostics["loss_spread_excess"], 0.8)
    assert diagnostics["stage"] == 2
    # Were g_b short, (0, 1/2): the spread's (-1/2, 1/4), and between them |(-l/2, 1/2 - l/4)|^2 is
    # least at l = 2/5.
    close(direction_of(EFFL(), reports_of([[1.0, 0.0], [0.0, 0.5]], [1.0, 3.0])), (-0.2, 0.4))


def test_the_spread_is_that_of_the_client_farthest_from_the_mean():
    # Losses 1, 2, 6 around 3: client c, above the mean by 3, whose spread l_c - mean has the
    # gradient g_c - (g_a + g_b + g_c) / 3 = (0, -1/3, 2/3). That of the largest loss is g_c = (0,
    # 0, 1), and between the two the nearest to 0 is at <d, d> = <d, g_c>: (0, -1/3, 2/3) itself is
    # nearer, since <(0, -1/3, 2/3), g_c> = 2/3 is above its square 5/9.
    reports = reports_of([[0.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]], [1.0, 2.0, 6.0])
    close(direction_of(EFFL(), reports), (0.0, -1 / 3, 2 / 3))
    close(diagnostics_of(EFFL(), reports)["loss_spread_excess"], 3 - 0.2)


def test_a_limit_nearly_reached_takes_part_in_stage_three():
    # Spread 0.95 of a limit of 1. Its gradient (-1/2, 1), with g_a and g_b: the line from g_a to
    # it, (1 - 3l/2, l), is nearest to 0 at l = 6/13: (4/13, 6/13), and g_b is beyond that line:
    # <g_b, d> = 12/13 > |d|^2 = 4/13.
    near = reports_of(AXES, [1.0, 2.9])
    close(direction_of(EFFL(eps_vl=1.0), near), (4 / 13, 6 / 13))
    assert diagnostics_of(EFFL(eps_vl=1.0), near)["stage"] == 3
    # 0.85 of the limit is not near.
    close(direction_of(EFFL(eps_vl=1.0), reports_of(AXES, [1.0, 2.7])), (0.8, 0.4))


def test_stage_one_by_hand():
    # Client b's gap is over its limit; the gradient of its gap, (1, 1) / 2, is the shortest vector
    # of the hull with g_a and g_b: <g_a, d> = 1/2 = |d|^2, <g_b, d> = 1.
    reports = reports_of(AXES, [1.0, 3.0], [0.1, 0.5], [[9.0, 9.0], [0.5, 0.5]])
    close(direction_of(EFFL(), reports), (0.5, 0.5))
    diagnostics = diagnostics_of(EFFL(), reports)
    assert diagnostics["stage"] == 1  # before the spread of the losses
    close(diagnostics["weight"], (0.0, 0.0), atol=1e-4)
    close(diagnostics["bias_excess"], 0.4)
    close(diagnostics["bias_spread_excess"], 0.1)


def test_stage_two_for_gaps_that_differ_by_hand():
    # Gaps 0 and 0.08, all below eps_b = 0.1 (and not near), 0.04 from their mean, over eps_vb =
    # 0.02. The spread's gradient, first client below the mean: (q_b - q_a) / 2 = (1, 0). Largest
    # loss: b, g_b = (0, 2). Between: 4/5 (1, 0) + 1/5 (0, 2).
    reports = reports_of(AXES, [1.0, 1.1], [0.0, 0.08], [[-2.0, 0.0], [0.0, 0.0]])
    rule = EFFL(eps_vb=0.02)
    close(direction_of(rule, reports), (0.8, 0.4))
    assert diagnostics_of(rule, reports)["stage"] == 2
    close(diagnostics_of(rule, reports)["weight"], (0.0, 0.2))
    # With eps_b = 0.085 the gap of b is near its limit. Its gradient (1/5, 1/5) is shorter than
    # anything else: d.
    reports = reports_of(AXES, [1.0, 1.1], [0.0, 0.08], [[-1.8, 0.2], [0.2, 0.2]])
    close(direction_of(EFFL(eps_vb=0.02, eps_b=0.085), reports), (0.2, 0.2))


# --- ties to other methods, and properties ---


@EXAMPLES
@given(data=st.data(), n=st.integers(1, 6), lr=st.sampled_from([0.01, 1.0]))
def test_limits_far_away_leave_descent_for_all(data, n, lr):
    """For updates of length 1 that is FedMGDA+ with free weights."""
    angles = torch.tensor(
        data.draw(st.lists(st.floats(0, 3), min_size=n, max_size=n)), dtype=torch.float64
    )
    losses = data.draw(st.lists(st.floats(0, 50), min_size=n, max_size=n))
    reports = reports_of(torch.stack([angles.cos(), angles.sin()], dim=1) / lr, losses, lr=lr)
    step = EFFL(**FAR).aggregate({}, reports)[1]
    close(step, FedMGDA(epsilon=1.0).aggregate({}, reports)[1], atol=1e-5)
    assert diagnostics_of(EFFL(**FAR), reports)["stage"] == 3


@EXAMPLES
@given(data=st.data(), n=st.integers(1, 6), d=st.integers(1, 4), grouped=st.booleans())
def test_properties(data, n, d, grouped):
    """Finite; downhill for all losses in stages 1 and 3, for the largest in 2, and for limits."""
    number = st.floats(-3, 3, width=32, allow_subnormal=False)
    table = st.lists(st.lists(number, min_size=d, max_size=d), min_size=n, max_size=n)
    column = st.lists(st.floats(0, 2), min_size=n, max_size=n)
    g, losses = torch.tensor(data.draw(table), dtype=torch.float64), data.draw(column)
    gaps, q = (data.draw(column), data.draw(table)) if grouped else (None, None)
    state, step, diagnostics = EFFL().aggregate({}, reports_of(g, losses, gaps, q))
    assert step.shape == (d,)
    assert all(torch.isfinite(value).all() for value in (step, *diagnostics.values()))
    assert diagnostics["weight"].shape == (n,)
    assert diagnostics.keys() >= ({"bias_excess", "bias_spread_excess"} if grouped else set())
    stage = int(state["stage"])
    assert stage == int(diagnostics["stage"])
    assert (stage == 1) == (grouped and max(gaps) > 0.1)
    tolerance = 1e-5 * 10
    slopes = g @ step
    assert slopes[torch.tensor(losses).argmax()] >= -tolerance
    if stage != 2:
        assert (slopes >= -tolerance).all()
    if stage == 1:
        assert (
            torch.tensor(q, dtype=torch.float64)[torch.tensor(gaps).argmax()] @ step >= -tolerance
        )


def test_a_federation_without_groups_is_one_whose_gaps_are_far_from_their_limits():
    plain = reports_of(AXES, [1.0, 3.0])
    grouped = reports_of(AXES, [1.0, 3.0], [0.5, 0.1], [[3.0, 1.0], [1.0, -1.0]])
    close(direction_of(EFFL(eps_b=9, eps_vb=9), grouped), direction_of(EFFL(), plain))


# --- hazards ---


def test_clients_alike_step_as_one():
    for n in (1, 2, 5):
        close(EFFL().aggregate({}, reports_of([[3.0, 4.0]] * n, [2.0] * n))[1], (1.5, 2.0))


def test_a_limit_that_no_step_can_change_does_not_stop_the_others():
    # One gradient, losses 1 apart: their spread has no gradient. What is left of stage 2 is the
    # largest loss.
    reports = reports_of([[3.0, 4.0], [3.0, 4.0]], [1.0, 3.0])
    close(direction_of(EFFL(), reports), (3.0, 4.0))
    assert diagnostics_of(EFFL(), reports)["stage"] == 2


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize("grouped", [False, True])
def test_rounding_is_not_taken_for_a_gradient(scale, grouped):
    """The same case for gradients of many digits, whose differences are not exactly zero.

    With groups, those of the gaps are much shorter than the rounding.
    """
    rng = np.random.default_rng(0)
    for n in (2, 3, 4, 6) * 6:
        gradient, losses = scale * rng.normal(size=47), rng.uniform(0, 3, size=n)
        gaps, q = ([0.0] * n, np.full((n, 47), 1e-12)) if grouped else (None, None)
        reports = reports_of(np.tile(gradient, (n, 1)), losses, gaps, q, lr=0.3)
        d = direction_of(EFFL(eps_vl=0.001), reports)
        assert d.norm() == pytest.approx(np.linalg.norm(gradient), rel=1e-3)


def test_a_short_gradient_of_a_limit_is_not_passed_over():
    # The spread's is (0, 1e-4), and <g_b, (0, 1e-4)> is not below its square.
    reports = reports_of([[1.0, 0.0], [1.0, 2e-4]], [1.0, 3.0])
    assert direction_of(EFFL(), reports).norm() < 0.01


def test_a_limit_that_is_just_met_is_not_broken_and_nine_tenths_of_one_are_near():
    # Losses 0 and 2 are 1 from their mean; 0 and 1.8 are 0.9, where the hull is that by hand above.
    assert diagnostics_of(EFFL(eps_vl=1.0), reports_of(AXES, [0.0, 2.0]))["stage"] == 3
    near = reports_of(AXES, [0.0, 1.8])
    close(direction_of(EFFL(eps_vl=1.0), near), (4 / 13, 6 / 13))


def test_limits_that_cannot_be_met_end_in_rest():
    # Opposite gradients, and a bias that only rises where the losses fall.
    reports = reports_of(
        [[1.0, 0.0], [-1.0, 0.0]], [1.0, 9.0], [5.0, 5.0], [[1.0, 0.0], [1.0, 0.0]]
    )
    assert direction_of(EFFL(), reports).norm() < 1e-5
    close(diagnostics_of(EFFL(), reports)["bias_excess"], 4.9)


def test_a_client_at_its_minimum_is_at_rest():
    # No step lowers the losses of all.
    reports = reports_of([[0.0, 0.0], [1.0, 0.0]], [1.0, 1.0])
    assert direction_of(EFFL(), reports).tolist() == [0, 0]
    weight = diagnostics_of(EFFL(), reports)["weight"]
    assert weight.tolist() == [0, 0]
    assert weight.dtype == torch.float64


def test_gradients_are_in_double_precision():
    # 1/lr has no end in binary; a client alone steps along its gradient (3, 4).
    reports = reports_of([[3.0, 4.0]], [1.0], lr=0.3)
    assert float(diagnostics_of(EFFL(), reports)["direction_length"]) == pytest.approx(5, rel=1e-12)


@pytest.mark.parametrize("losses", [[1.0, 1.0], [1.0, 9.0], [0.0, 0.0]])
@pytest.mark.parametrize("gaps", [None, [0.0, 0.0], [0.0, 5.0], [0.01, 0.09]])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_zero_updates_give_no_step(losses, gaps, dtype):
    gap_gradients = None if gaps is None else [[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]]
    reports = reports_of(torch.zeros(2, 3), losses, gaps, gap_gradients, dtype=dtype)
    step = EFFL(eps_vb=0.01).aggregate({}, reports)[1]
    assert step.dtype == dtype
    assert step.tolist() == [0, 0, 0]


def test_the_spread_of_losses_is_brought_within_its_limit_and_all_then_fall():
    """Losses |theta - c|^2 / 2 with c at 0 and at 4; the start is far to one side."""
    centres = torch.tensor([[0.0, 0.0], [4.0, 0.0]], dtype=torch.float64)
    model = torch.tensor([0.0, 3.0], dtype=torch.float64)
    rule, state = EFFL(eps_vl=0.5), EFFL().init(Setup(["a", "b"], torch.ones(2), model))
    stages: list[int] = []
    for _ in range(600):
        losses = (model - centres).square().sum(dim=1) / 2
        state, step, _ = rule.aggregate(state, reports_of(model - centres, losses, lr=0.05))
        model = model - step
        stages.append(int(state["stage"]))
    losses = (model - centres).square().sum(dim=1) / 2
    assert stages[0] == 2
    assert 3 in stages
    assert float((losses - losses.mean()).abs().max()) <= 0.5 + 0.01
    assert abs(float(model[1])) < 0.05  # Pareto-stationary: between the centres


# --- slots ---


def setup(**changes: Any) -> Setup:
    return Setup(**{"ids": ["a", "b"], "sizes": torch.ones(2), "model": torch.zeros(3), **changes})


@pytest.mark.parametrize("changes", [{"participation": 0.5}, {"drop_out": 0.1}])
def test_partial_participation_is_refused(changes):
    with pytest.raises(
        SettingsError,
        match=r"effl: .*every one has to report; set participation to 1 and drop_out to 0",
    ):
        EFFL().init(setup(**changes))


def test_a_round_without_some_client_is_refused():
    # Its report was excluded, which could not be known before round 1.
    state = EFFL().init(setup())
    state, _, _ = EFFL().aggregate(state, reports_of(AXES, [1.0, 3.0]))
    with pytest.raises(SettingsError, match=r"effl: .*in round 2 only 1 of 2 .*on_bad_report"):
        EFFL().aggregate(state, reports_of(AXES[:1], [1.0], round=2))


def test_state_keeps_its_shape():
    start = EFFL().init(setup())
    after, _, _ = EFFL().aggregate(start, reports_of(AXES, [1.0, 3.0]))
    assert start.keys() == after.keys() == {"stage", "clients"}
    assert all(
        (start[name].shape, start[name].dtype) == (after[name].shape, after[name].dtype)
        for name in start
    )
    assert (int(start["stage"]), int(after["stage"])) == (0, 2)


def test_clients_take_one_full_step():
    state = EFFL().init(setup())
    same, plan = EFFL().plan(state, None)
    assert plan.one_full_step
    assert same is state


def test_a_note_tells_that_there_are_no_groups():
    (one_step,) = EFFL().notes(setup(has_groups=True))
    assert one_step.startswith("EFFL: clients take one step on all their data a round")
    first, no_groups = EFFL().notes(setup())
    assert first == one_step
    assert no_groups.startswith("EFFL: without a sensitive attribute")


def test_needed_fields_cannot_be_left_out():
    with pytest.raises(ReportError, match="losses was left out"):
        EFFL().aggregate({}, reports_of(AXES, None))
    for name, extras in (("group_gap_gradients", ([1.0, 2.0], None)), ("group_gaps", (None, AXES))):
        with pytest.raises(ReportError, match=f"{name} was left out"):
            EFFL().aggregate({}, reports_of(AXES, [1.0, 1.0], *extras))
