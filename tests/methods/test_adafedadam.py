"""AdaFedAdam: by hand, against torch's Adam, its hazards and its state."""

from __future__ import annotations

import math
from typing import Any

import method_helpers
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from method_helpers import EXAMPLES, close, first_round

from udjfl.methods.adafedadam import AdaFedAdam
from udjfl.methods.base import Reports, Setup


def two_clients(norms: Any = (2.0, 6.0), **changes: Any) -> Reports:
    """Return the reports of one plain step at lr 1/2.

    eta' = 1/2 and 3/6, so U = (2, 0) and (0, 6), and both certainties are 1.
    """
    fields = {
        "deltas": [[1.0, 0.0], [0.0, 3.0]],
        "losses": [1.0, 1.0],
        "extras": {"gradient_norms": torch.tensor(norms, dtype=torch.float64)},
    }
    return method_helpers.two_clients(**{**fields, **changes})


def test_two_rounds_by_hand():
    rule = AdaFedAdam()
    # omega = 1/4, 3/4 and C = 1: g = (1/2, 9/2). After bias correction m = g and v = g^2, so the
    # step is 1e-3 g/(|g| + 1e-8).
    state, step, diagnostics = first_round(rule, two_clients())
    close(diagnostics["weight"], [0.25, 0.75])
    close(step, [1e-3 * 0.5 / (0.5 + 1e-8), 1e-3 * 4.5 / (4.5 + 1e-8)])

    # b's loss halved: I = 1, 1/2, omega ~ 1 : 3/2 = 2/5, 3/5. b went e times as far: C_b = 2, U_b
    # is still (0, 6). C = 2/5 + 6/5 = 8/5, g = (4/5, 18/5), b1 = 0.9^1.6, P1 = 0.9^2.6, and so for
    # 0.999.
    reports = two_clients(
        losses=[1.0, 0.5], deltas=torch.tensor([[1.0, 0.0], [0.0, 3 * math.e]], dtype=torch.float64)
    )
    state, step, diagnostics = rule.aggregate(state, reports)
    close(diagnostics["weight"], [0.4, 0.6])
    close(diagnostics["relative_loss"], [1.0, 0.5])
    close(diagnostics["certainty"], [1.0, 2.0])
    close(diagnostics["certainty_used"], 1.6)
    b1, b2 = 0.9**1.6, 0.999**1.6
    expected = []
    for g1, g2 in ((0.5, 0.8), (4.5, 3.6)):
        m = (b1 * 0.1 * g1 + (1 - b1) * g2) / (1 - 0.9**2.6)
        v = (b2 * 0.001 * g1**2 + (1 - b2) * g2**2) / (1 - 0.999**2.6)
        expected.append(1.6 * 1e-3 * m / (math.sqrt(v) + 1e-8))
    close(step, expected, rtol=1e-10)


def test_after_one_plain_step_it_is_adam_on_the_weighted_gradient():
    """Against torch's Adam."""
    rule, lr = AdaFedAdam(alpha=0.0, server_lr=0.05, beta1=0.8, beta2=0.95), 0.3
    theta = torch.nn.Parameter(torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64))
    judge = torch.optim.Adam([theta], lr=0.05, betas=(0.8, 0.95), eps=1e-8)
    ours, sizes = theta.detach().clone(), torch.tensor([1.0, 2.0, 5.0], dtype=torch.float64)
    centres = torch.tensor(
        [[0.0, 1.0, 2.0], [3.0, -1.0, 0.0], [1.0, 1.0, -4.0]], dtype=torch.float64
    )
    state = rule.init(Setup(["a", "b", "c"], sizes, ours))
    for _ in range(6):
        gradients = ours - centres  # of |theta - centre|^2 / 2
        reports = Reports(
            ids=["a", "b", "c"],
            deltas=lr * gradients,
            losses=[1.0, 2.0, 3.0],
            sizes=sizes,
            lr=lr,
            extras={"gradient_norms": gradients.norm(dim=1)},
        )
        state, step, diagnostics = rule.aggregate(state, reports)
        ours = ours - step
        theta.grad = (sizes / 8) @ (theta.detach() - centres)
        judge.step()
        close(diagnostics["certainty"], [1.0, 1.0, 1.0])
        close(ours, theta.detach(), rtol=1e-9)


@pytest.mark.parametrize(
    ("params", "losses", "expected"),
    [
        ({"weights": "code"}, (3.0, 2.0), (3 / 9, 6 / 9)),  # n F = 3 : 6
        ({"weights": "code", "alpha": 2.0}, (3.0, 1.0), (9 / 12, 3 / 12)),  # n F^2 = 9 : 3
        ({"weights": "code"}, (2.5, 2.5), (0.25, 0.75)),
        ({"weights": "code", "alpha": 0.0}, (3.0, 2.0), (0.25, 0.75)),
        ({"weights": "paper"}, (3.0, 2.0), (0.25, 0.75)),  # the first loss of each, so I = 1
    ],
)
def test_weights_of_a_first_round(params, losses, expected):
    close(first_round(AdaFedAdam(**params), two_clients(losses=losses))[2]["weight"], expected)


def test_a_common_factor_of_the_losses_changes_nothing():
    rule = AdaFedAdam(weights="code", alpha=3.0)
    step, scaled = (
        first_round(rule, two_clients(losses=[c * 0.2, c * 1.1]))[1] for c in (1.0, 1e5)
    )
    close(scaled, step, rtol=1e-10)


def test_huge_alpha_does_not_overflow():
    diagnostics = first_round(
        AdaFedAdam(weights="code", alpha=1e6), two_clients(losses=[1e3, 1.0])
    )[2]
    assert diagnostics["weight"].tolist() == [1.0, 0.0]


def test_the_authors_warm_up_leaves_the_learning_rate_alone_for_six_steps():
    # Every certainty is 2. The moments are the same, so the factor C is all that differs.
    plain, warm = AdaFedAdam(), AdaFedAdam(warm_up=6)
    reports = two_clients(norms=(2 / math.e, 6 / math.e))
    state, state_warm = plain.init(Setup.of(reports)), warm.init(Setup.of(reports))
    ratios = []
    for _ in range(8):
        state, step, _ = plain.aggregate(state, reports)
        state_warm, step_warm, _ = warm.aggregate(state_warm, reports)
        ratios.append(float(step[0] / step_warm[0]))
    assert ratios == pytest.approx([2.0] * 6 + [1.0] * 2, rel=1e-6)


# --- hazards ---


def test_a_client_that_did_not_move_adds_nothing():
    # b: U = 0, C = 1. g = 1/4 (2, 0).
    reports = two_clients(deltas=torch.tensor([[1.0, 0.0], [0.0, 0.0]], dtype=torch.float64))
    state, step, diagnostics = first_round(AdaFedAdam(beta1=0.5), reports)
    close(state["mean"], [0.25, 0.0])  # (1 - 0.5) g
    assert diagnostics["certainty"].tolist() == pytest.approx([1.0, 1.0])
    assert step[1] == 0


def test_a_client_without_gradient_adds_nothing():
    state, step, diagnostics = first_round(AdaFedAdam(beta1=0.5), two_clients(norms=(2.0, 0.0)))
    close(state["mean"], [0.25, 0.0])
    assert diagnostics["certainty"].tolist() == pytest.approx([1.0, 1.0])
    assert step[1] == 0


@pytest.mark.parametrize("changes", [{"deltas": torch.zeros(2, 2)}, {"norms": (0.0, 0.0)}])
def test_a_round_without_any_direction_changes_nothing(changes):
    rule = AdaFedAdam()
    state, _, _ = first_round(rule, two_clients())
    after, step, _ = rule.aggregate(state, two_clients(**changes))
    assert step.tolist() == [0.0, 0.0]
    assert all(torch.equal(after[name], state[name]) for name in state)


def test_certainty_is_kept_above_zero():
    # eta' = lr e^-5: C would be -4, and the averages would run backwards.
    state, step, diagnostics = first_round(
        AdaFedAdam(), two_clients(norms=(2 * math.exp(5), 6 * math.exp(5)))
    )
    close(diagnostics["certainty"], [-4.0, -4.0])
    close(diagnostics["certainty_used"], 0.1)
    close(state["decays"], [0.9**0.1, 0.999**0.1])
    close(step, [1e-4, 1e-4], rtol=1e-7)


def test_losses_of_zero():
    rule = AdaFedAdam()
    state, _, diagnostics = first_round(rule, two_clients(losses=[0.0, 0.0]))
    close(diagnostics["weight"], [0.25, 0.75])
    _, step, diagnostics = rule.aggregate(state, two_clients(losses=[0.0, 1.0]))
    assert torch.isfinite(step).all()
    assert diagnostics["weight"][1] > 0.999


# --- state ---


def test_the_state_keeps_its_form():
    start = AdaFedAdam().init(Setup.of(two_clients()))
    after, _, _ = AdaFedAdam().aggregate(start, two_clients(dtype=torch.float32))
    assert {name: value.dtype for name, value in start.items()} == {
        "mean": torch.float64,
        "mean_square": torch.float64,
        "decays": torch.float64,
        "server_steps": torch.int64,
        "first_losses": torch.float64,
    }
    for name in start:
        assert (after[name].dtype, after[name].shape) == (start[name].dtype, start[name].shape)


def test_a_late_client_counts_as_if_it_had_not_improved():
    rule = AdaFedAdam(alpha=1.0)
    state = rule.init(Setup(["a", "b"], torch.ones(2), torch.zeros(2)))
    for t, loss in enumerate([1.0, 0.5], start=1):
        alone = Reports(
            ["a"],
            [[1.0, 0.0]],
            [loss],
            [1],
            round=t,
            extras={"gradient_norms": torch.tensor([1.0])},
        )
        state, _, _ = rule.aggregate(state, alone)
    # a's loss fell to 1/100 of its first; b's is its first: 1/100 : 1 at equal sizes.
    _, _, diagnostics = rule.aggregate(
        state, two_clients(losses=[0.01, 0.01], sizes=[1, 1], round=3)
    )
    close(diagnostics["relative_loss"], [0.01, 1.0])
    close(diagnostics["weight"], [0.01 / 1.01, 1 / 1.01])


def test_a_first_loss_near_zero_counts_as_a_thousandth_of_the_largest():
    # b starts at 1e-9. With a loss of 0.004 later it would count 4 million times; beside a's 4 it
    # is 1e-3 * 4 that counts.
    rule = AdaFedAdam()
    state, _, diagnostics = first_round(rule, two_clients(losses=[4.0, 1e-9], sizes=[1, 1]))
    assert state["first_losses"].tolist() == [4.0, 1e-9]
    _, _, diagnostics = rule.aggregate(
        state, two_clients(losses=[4.0, 0.004], sizes=[1, 1], round=2)
    )
    close(diagnostics["relative_loss"], [1.0, 1.0])


def test_first_losses_are_kept_by_client_index():
    rule = AdaFedAdam()
    state = rule.init(Setup(["a", "b", "c", "d"], torch.ones(4), torch.zeros(2)))
    state, _, _ = rule.aggregate(state, two_clients(losses=[2.0, 3.0], client_indices=[1, 3]))
    assert state["first_losses"].tolist() == [0.0, 2.0, 0.0, 3.0]
    # Client 3 is back with a third of its loss; client 0 is new, so I = 1.
    state, _, diagnostics = rule.aggregate(
        state, two_clients(losses=[5.0, 1.0], client_indices=[0, 3])
    )
    assert state["first_losses"].tolist() == [5.0, 2.0, 0.0, 3.0]
    close(diagnostics["weight"], [0.5, 0.5])  # 1*1 : 3*1/3


@EXAMPLES
@given(data=st.data(), weights=st.sampled_from(["paper", "code"]))
def test_rounds_stay_finite_and_the_unit_of_the_updates_cancels(data, weights):
    rule = AdaFedAdam(weights=weights)
    number, positive = st.floats(-3, 3, width=32, allow_subnormal=False), st.floats(0, 20)
    start = rule.init(Setup(["a", "b", "c"], torch.ones(3), torch.zeros(2)))
    states = {1.0: start, 64.0: start}
    for _ in range(3):
        deltas = torch.tensor(
            [[data.draw(number), data.draw(number)] for _ in range(3)], dtype=torch.float64
        )
        losses, norms = ([data.draw(positive) for _ in range(3)] for _ in range(2))
        steps = []
        for c, state in states.items():  # c times the learning rate moves clients c times as far
            reports = Reports(
                ids=["a", "b", "c"],
                deltas=c * deltas,
                losses=losses,
                sizes=[1, 2, 3],
                lr=0.01 * c,
                extras={"gradient_norms": torch.tensor(norms, dtype=torch.float64)},
            )
            states[c], step, diagnostics = rule.aggregate(state, reports)
            steps.append(step)
            assert torch.isfinite(step).all()
            assert all(
                torch.isfinite(value).all()
                for value in (*states[c].values(), *diagnostics.values())
            )
            assert float(diagnostics["weight"].sum()) == pytest.approx(1)
        torch.testing.assert_close(steps[1], steps[0], rtol=1e-6, atol=1e-12)
