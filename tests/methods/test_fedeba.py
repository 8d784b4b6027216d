"""FedEBA+: weights, angle and both alignments by hand, its limits, and hazards."""

from __future__ import annotations

import math
from typing import Any

import method_helpers
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from method_helpers import EXAMPLES

from udjfl.errors import ReportError, SettingsError
from udjfl.methods.base import Plan, Reports, Setup
from udjfl.methods.fedavg import FedAvg
from udjfl.methods.fedeba import FedEBA, angle

LN2 = math.log(2)


def tensor(values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def two_clients(**changes: Any) -> Reports:
    """At tau = 1 the losses ln 2 and ln 6 weigh 2 : 6 = 1/4, 3/4."""
    values: dict[str, Any] = {
        "deltas": [[4.0, 0.0], [0.0, 8.0]],
        "losses": [LN2, math.log(6)],
        "sizes": [3, 1],
        "extras": {"first_deltas": tensor([[1.0, 0.0], [1.0, 2.0]])},
        **changes,
    }
    return method_helpers.two_clients(**values)


def probe(**changes: Any) -> Reports:
    gradients = {"gradients": tensor([[4.0, -4.0], [8.0, 0.0]])}
    return two_clients(**{"deltas": torch.zeros(2, 2), "extras": gradients, **changes})


def state_of(aligns_gradients: int) -> dict[str, torch.Tensor]:
    angle = torch.zeros((), dtype=torch.float64)
    return {"aligns_gradients": torch.tensor(aligns_gradients), "angle": angle}


def step_of(rule: FedEBA, reports: Reports, aligns_gradients: int = 0) -> torch.Tensor:
    return rule.aggregate(state_of(aligns_gradients), reports)[1]


def weights_of(rule: FedEBA, reports: Reports) -> list[float]:
    return rule.aggregate(state_of(0), reports)[2]["weight"].tolist()


def test_weights_by_hand():
    assert weights_of(FedEBA(tau=1.0), two_clients()) == pytest.approx([1 / 4, 3 / 4])
    assert weights_of(FedEBA(tau=0.5), two_clients()) == pytest.approx([4 / 40, 36 / 40])
    assert weights_of(FedEBA(tau=1.0, prior="size"), two_clients()) == pytest.approx(
        [3 * 2 / 12, 6 / 12]
    )


def test_models_aligned_by_hand():
    # sum p delta = (1, 6); mean first delta = (1, 1). 3/4 of the one and 1/4 of the other.
    _, step, diagnostics = FedEBA(tau=1.0, alpha=0.25).aggregate(state_of(0), two_clients())
    assert step.tolist() == pytest.approx([1.0, 4.75])
    assert float(diagnostics["aligns_gradients"]) == 0


def test_gradients_aligned_by_hand():
    # The angle of (ln 2, ln 6) is atan(std/mean) = atan((ln 3 / 2) / (ln 12 / 2)) = 23.9 degrees.
    rule = FedEBA(tau=1.0, alpha=0.25, theta=20.0)
    state, plan = rule.plan(rule.init(Setup.of(probe())), probe())
    # 1/4 (4, -4) + 3/4 (8, 0) = (7, -1), of which alpha is mixed in
    assert plan.shift.tolist() == pytest.approx([7 / 4, -1 / 4])
    assert plan.gradient_share == 0.75
    _, step, diagnostics = rule.aggregate(state, two_clients())
    assert step.tolist() == pytest.approx(
        [1.0, 6.0]
    )  # the alignment was in the training: a plain weighted average
    assert float(diagnostics["aligns_gradients"]) == 1
    assert float(diagnostics["angle"]) == pytest.approx(
        math.degrees(math.atan(math.log(3) / math.log(12)))
    )


def test_fair_losses_leave_training_alone_and_undo_the_last_decision():
    rule = FedEBA(tau=1.0, theta=30.0)
    state, plan = rule.plan(state_of(1), probe())
    assert plan == Plan()
    assert int(state["aligns_gradients"]) == 0


def test_the_state_has_one_form_from_the_start():
    rule = FedEBA(theta=0.0)
    start = rule.init(Setup.of(probe()))
    for losses in ([1.0, 2.0], [1.0, 1.0]):
        after, _ = rule.plan(start, probe(losses=losses))
        assert after.keys() == start.keys()
        for name in start:
            assert after[name].dtype == start[name].dtype
            assert after[name].shape == start[name].shape
    assert start["angle"].dtype == torch.float64
    # Before the first losses are known, nothing is said to be unfair.
    assert start["angle"] == start["aligns_gradients"] == 0


# --- the angle ---


@EXAMPLES
@given(losses=st.lists(st.floats(1e-3, 100), min_size=1, max_size=8))
def test_the_angle_is_the_papers(losses):
    cosine = sum(losses) / (math.sqrt(sum(x * x for x in losses)) * math.sqrt(len(losses)))
    assert angle(tensor(losses)) == pytest.approx(
        math.degrees(math.acos(min(1.0, cosine))), abs=2e-6
    )


@pytest.mark.parametrize(
    "losses", [[0.1] * 3, [7.3] * 7, [0.0, 0.0], [1e-320] * 2, [1e300] * 3, [5.0]]
)
def test_equal_losses_have_no_angle_to_the_last_bit(losses):
    assert angle(tensor(losses)) == 0
    assert FedEBA(theta=0.0).plan(state_of(1), probe_of(losses))[1] == Plan()


def probe_of(losses: list[float]) -> Reports:
    n = len(losses)
    return Reports(
        ids=[str(i) for i in range(n)],
        deltas=torch.zeros(n, 1),
        losses=losses,
        extras={"gradients": torch.ones(n, 1)},
    )


@pytest.mark.parametrize("n", [2, 3, 5, 100])
def test_the_widest_angle_is_one_client_with_all_the_loss(n):
    assert angle(tensor([3.0] + [0.0] * (n - 1))) == pytest.approx(
        math.degrees(math.acos(1 / math.sqrt(n)))
    )


def test_huge_losses_do_not_overflow_the_angle():
    assert angle(tensor([1e300, 0.0])) == pytest.approx(45)


def test_a_note_tells_that_the_angle_cannot_be_reached():
    setup = Setup(["a", "b"], torch.ones(2), torch.zeros(1))
    (note,) = FedEBA(theta=45.0).notes(setup)
    assert "never aligns gradients" in note
    assert FedEBA(theta=44.0).notes(setup) == []
    assert FedEBA(theta=45.0).notes(Setup(["a", "b", "c"], torch.ones(3), torch.zeros(1))) == []
    # Of four clients two are asked in a round, and it is their losses that the angle is of.
    (note,) = FedEBA(theta=45.0).notes(
        Setup(list("abcd"), torch.ones(4), torch.zeros(1), participation=0.5)
    )
    assert "the 2 clients of a round are at most 45 degrees" in note
    # At least one is asked, and one client's loss is always equal to itself.
    (note,) = FedEBA(theta=1.0).notes(
        Setup(list("abcd"), torch.ones(4), torch.zeros(1), participation=0.1)
    )
    assert "the 1 clients of a round are at most 0 degrees" in note


# --- identities ---


@pytest.mark.parametrize("prior", ["uniform", "size"])
def test_at_great_temperature_it_is_fedavg(prior):
    expected = FedAvg(weights=prior).aggregate({}, two_clients())[1]
    torch.testing.assert_close(
        step_of(FedEBA(alpha=0.0, tau=1e12, prior=prior), two_clients()), expected
    )


@pytest.mark.parametrize("tau", [1e-3, 1e-300, 5e-324])
def test_at_no_temperature_the_worst_client_is_followed(tau):
    assert step_of(FedEBA(alpha=0.0, tau=tau, prior="size"), two_clients()).tolist() == [0.0, 8.0]


def test_alpha_one_is_the_mean_first_step():
    assert step_of(FedEBA(alpha=1.0), two_clients()).tolist() == pytest.approx([1.0, 1.0])


# --- hazards and properties ---


def test_all_losses_zero_weigh_by_the_prior():
    assert weights_of(FedEBA(), two_clients(losses=[0.0, 0.0])) == [0.5, 0.5]
    assert weights_of(FedEBA(prior="size"), two_clients(losses=[0.0, 0.0])) == [0.75, 0.25]


@EXAMPLES
@given(
    losses=st.lists(st.floats(0, 1e6), min_size=2, max_size=2),
    tau=st.floats(1e-6, 1e6),
    alpha=st.floats(0, 1),
    aligns=st.integers(0, 1),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_steps_are_finite_and_linear_in_the_updates_and_larger_losses_weigh_more(
    losses, tau, alpha, aligns, dtype
):
    rule, reports = FedEBA(tau=tau, alpha=alpha), two_clients(losses=losses, dtype=dtype)
    step = step_of(rule, reports, aligns)
    assert step.dtype == dtype
    assert torch.isfinite(step).all()
    doubled = {
        "dtype": dtype,
        "deltas": 2 * reports.deltas,
        "extras": {"first_deltas": 2 * reports.extras["first_deltas"]},
    }
    assert torch.equal(step_of(rule, two_clients(losses=losses, **doubled), aligns), 2 * step)
    larger, smaller = (losses.index(f(losses)) for f in (max, min))
    p = weights_of(rule, reports)
    assert sum(p) == pytest.approx(1)
    assert p[larger] >= p[smaller]


def test_weights_of_the_step_are_over_those_that_report():
    # Planned with both, then b is lost: a's update is all there is.
    rule = FedEBA(tau=1.0, theta=20.0)
    state, _ = rule.plan(state_of(0), probe())
    alone = Reports(
        ids=["a"],
        deltas=[[4.0, 0.0]],
        losses=[LN2],
        client_indices=[1],
        extras={"first_deltas": tensor([[1.0, 0.0]])},
    )
    assert rule.aggregate(state, alone)[1].tolist() == [4.0, 0.0]


def test_needed_fields_and_probes_cannot_be_left_out():
    with pytest.raises(ReportError, match="first_deltas was left out"):
        step_of(FedEBA(), two_clients(extras={}))
    with pytest.raises(ReportError, match="sizes was left out"):
        step_of(FedEBA(prior="size"), two_clients(sizes=None))
    with pytest.raises(ReportError, match="gradients was left out"):
        FedEBA().plan(state_of(0), probe(extras={}))
    with pytest.raises(SettingsError, match="gradients and losses before they train"):
        FedEBA().plan(state_of(0), None)
