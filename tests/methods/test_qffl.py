"""q-FFL: by hand, its place in UDJ-FL's family, powers, parameters, and where it converges."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from method_helpers import EXAMPLES, close, random_reports, step_of, two_clients
from scipy.optimize import minimize_scalar

from udjfl.errors import ReportError
from udjfl.methods import UDJ, FedAvg, Reports
from udjfl.methods.qffl import QFFL

# Delta_k = F^q D_k and h_k = q F^(q-1) |D_k|^2 + L F^q, with D_k = L delta_k.
BY_HAND = [
    # L = 2: D = (2, 0), (0, 4).  Delta = 1*2 and 2*4;  h = 1*4 + 2*1 = 6 and 1*16 + 2*2 = 20; sum
    #                             26.
    ({"q": 1, "lipschitz": "paper"}, (2 / 26, 8 / 26)),
    # L = 4/5, calibrated: D = (4/5, 0), (0, 8/5).  Delta = 20/25 and 2*8/5 = 80/25;
    #                      h = 16/25 + 20/25 = 36/25 and 64/25 + 40/25 = 104/25; sum 140/25.
    ({"q": 1}, (1 / 7, 4 / 7)),
    # L = 1: D = (1, 0), (0, 2).  Delta = 1 and 4*2;  h = 2*1 + 1 = 3 and 2*2*4 + 4 = 20; sum 23.
    ({"q": 2, "lipschitz": 1.0}, (1 / 23, 8 / 23)),
    # p = 1/4, 3/4 in both sums of the first case: 1/4*2 and 3/4*8 over 1/4*6 + 3/4*20 = 66/4.
    ({"q": 1, "lipschitz": "paper", "weights": "size"}, (2 / 66, 24 / 66)),
]


@pytest.mark.parametrize(("params", "expected"), BY_HAND)
def test_by_hand(params, expected):
    close(step_of(QFFL(**params), two_clients()), expected)


def test_diagnostics_by_hand():
    # Weights 1 : 2. q L |delta|^2 / F = 2*1/1 and 2*4/2. The deltas' factors are 2/26 and 4/26.
    diagnostics = QFFL(q=1, lipschitz="paper").aggregate({}, two_clients())[2]
    close(diagnostics["weight"], (1 / 3, 2 / 3))
    close(diagnostics["curvature"], (2.0, 4.0))
    close(diagnostics["step_scale"], 6 / 26)


@pytest.mark.parametrize("weights", ["uniform", "size"])
@pytest.mark.parametrize("lipschitz", ["paper", "calibrated", 1e-3, 1e3])
def test_q_zero_is_the_average_whatever_the_step_and_the_losses(weights, lipschitz):
    rule = QFFL(q=0, lipschitz=lipschitz, weights=weights)
    close(step_of(rule, random_reports()), step_of(FedAvg(weights=weights), random_reports()))
    close(
        step_of(rule, random_reports(losses=[0.0, 1e-30, 5.0, 1e9])),
        step_of(FedAvg(weights=weights), random_reports()),
    )


@pytest.mark.parametrize("q", [0.0, 0.1, 1.0, 2.0, 5.0])
@pytest.mark.parametrize(("lipschitz", "step"), [("paper", "paper"), ("calibrated", "calibrated")])
def test_it_is_the_point_of_udj_with_gamma_zero_and_exponent_one_plus_q(q, lipschitz, step):
    for momentum in (0.0, 0.9):
        reports = random_reports(momentum=momentum)
        point = UDJ(beta=1 + q, gamma=0.0, step=step, cap=1.0)
        close(step_of(QFFL(q=q, lipschitz=lipschitz), reports), step_of(point, reports))
    assert QFFL().lipschitz == UDJ(theory="rawls").step


def test_it_has_no_cap_where_udj_has_one():
    # Losses 10 : 1 : 1 : 1 and q = 1: 10/13 of the weight here; UDJ-FL's default lowers 10 to the 3
    # of the others.
    reports = random_reports(losses=[10.0, 1.0, 1.0, 1.0])
    close(QFFL(q=1).aggregate({}, reports)[2]["weight"], [10 / 13, *[1 / 13] * 3])
    point = UDJ(beta=2.0, gamma=0.0)
    close(point.aggregate({}, reports)[2]["weight"], [3 / 6, *[1 / 6] * 3])


def test_equal_clients_shorten_the_average_by_the_curvature():
    # F = 2, |delta|^2 = 4, L = 1/lr = 2, q = 3: the average (1, 1) over 1 + 3*2*4/2 = 13.
    reports = two_clients(
        deltas=torch.tensor([[2.0, 0.0], [0.0, 2.0]], dtype=torch.float64), losses=[2.0, 2.0]
    )
    close(step_of(QFFL(q=3, lipschitz="paper"), reports), (1 / 13, 1 / 13))


def test_large_q_follows_the_largest_loss_with_a_vanishing_step():
    # In direction only. r_b = q L |delta|^2 / F = 1000*2*4/2 = 4000, and b's weight is 2^1000 times
    # a's.
    _, step, diagnostics = QFFL(q=1000, lipschitz="paper").aggregate({}, two_clients())
    close(diagnostics["weight"][1], 1.0)
    close(step[1], 2 / 4001)
    assert step[0] < 1e-290


@pytest.mark.parametrize("q", [10.0, 15.0, 1e4])
@pytest.mark.parametrize("losses", [[1e30, 1e29], [1e-9, 1e-8], [3e38, 1.0]])
def test_no_power_overflows(q, losses):
    step = step_of(QFFL(q=q), two_clients(losses=losses))
    assert torch.isfinite(step).all()
    assert step.any()


@pytest.mark.parametrize("q", [0.001, 0.5, 1.0, 5.0])
def test_a_loss_of_zero_counts_as_1e_minus_10(q):
    close(
        step_of(QFFL(q=q), two_clients(losses=[0.0, 2.0])),
        step_of(QFFL(q=q), two_clients(losses=[1e-10, 2.0])),
    )
    assert torch.isfinite(step_of(QFFL(q=q), two_clients(losses=[0.0, 0.0]))).all()


def test_only_calibrated_reads_steps_and_momentum():
    other = {"steps": [50, 70], "momentum": 0.9}
    for lipschitz in ("paper", "calibrated", 3.0):
        rule = QFFL(lipschitz=lipschitz)
        unchanged = torch.equal(step_of(rule, two_clients()), step_of(rule, two_clients(**other)))
        assert unchanged == (lipschitz != "calibrated")


def test_calibrated_does_not_collapse_where_the_published_step_does():
    # 38 steps with momentum 0.9 at lr 0.1 that moved 3 along the same line: the published L is 10.
    # They count as 38 - 9 (1 - 0.9^38) = 29.1642, so calibrated is 0.1 / 2.91642.
    reports = Reports(ids=["a"], deltas=[[3.0]], losses=[0.5], lr=0.1, momentum=0.9, steps=[38])
    # 3 / (1 + 5*10*9/0.5) = 3/901, and 3 / (1 + 5*9/29.1642/0.5) = 3 / (1 + 90/29.1642).
    assert step_of(QFFL(q=5, lipschitz="paper"), reports).item() == pytest.approx(3 / 901, rel=1e-6)
    assert step_of(QFFL(q=5), reports).item() == pytest.approx(3 / (1 + 90 / 29.1642), rel=1e-5)


def test_sizes_are_needed_only_for_weights_by_size():
    close(step_of(QFFL(), two_clients(sizes=None)), step_of(QFFL(), two_clients()))
    with pytest.raises(ReportError, match="sizes was left out"):
        QFFL(weights="size").aggregate({}, two_clients(sizes=None))


def test_numbers_may_come_as_text():
    assert QFFL(q="2", lipschitz="0.5").params == {"q": 2.0, "lipschitz": 0.5, "weights": "uniform"}


def test_one_client_of_many_may_report_alone():
    # Its place among all does not matter: nothing is kept. 1*2/(1*4 + 2) of delta 1.
    alone = Reports(
        ids=["a"],
        deltas=torch.ones(1, 1, dtype=torch.float64),
        losses=[1.0],
        client_indices=[7],
        lr=0.5,
    )
    close(step_of(QFFL(q=1, lipschitz="paper"), alone), [2 / 6])


@EXAMPLES
@given(
    rows=st.lists(
        st.tuples(st.floats(-3, 3), st.floats(-3, 3), st.floats(0, 50)), min_size=1, max_size=6
    ),
    q=st.floats(0, 20),
    scale=st.floats(0.01, 100),
)
def test_properties(rows, q, scale):
    deltas = torch.tensor([row[:2] for row in rows], dtype=torch.float64)
    losses = torch.tensor([row[2] for row in rows], dtype=torch.float64)
    ids = [f"c{i}" for i in range(len(rows))]
    _, step, diagnostics = QFFL(q=q, lipschitz=2.0).aggregate({}, Reports(ids, deltas, losses))
    assert step.shape == (2,)
    assert torch.isfinite(step).all()
    # Between no step and an average.
    assert 0 < diagnostics["step_scale"] <= 1 + 1e-12
    reverse = Reports(ids[::-1], deltas.flip(0), losses.flip(0))
    assert torch.equal(QFFL(q=q, lipschitz=2.0).aggregate({}, reverse)[1], step)
    # |D|^2 / L has no unit of the model: longer deltas with an L shorter by the square give the
    # same step, scaled.
    scaled = step_of(QFFL(q=q, lipschitz=2.0 / scale**2), Reports(ids, scale * deltas, losses))
    torch.testing.assert_close(scaled, scale * step, rtol=1e-9, atol=1e-12)


def test_it_minimises_its_objective_and_the_largest_loss_falls_as_q_grows():
    # F_a = x^2/2 + 1/10 and F_b = (x - 3)^2/2 + 1; clients take one plain step. At q = 0 the
    # minimum is the middle, 3/2.
    def losses(x: float) -> np.ndarray:
        return np.array([x**2 / 2 + 0.1, (x - 3) ** 2 / 2 + 1])

    largest = []
    for q in (0.0, 0.5, 1.0, 5.0):
        x, lr = 0.0, 0.2
        for _ in range(600):
            deltas = torch.tensor([[lr * x], [lr * (x - 3)]], dtype=torch.float64)
            x -= step_of(
                QFFL(q=q), Reports(["a", "b"], deltas, losses(x), lr=lr, steps=[1, 1])
            ).item()
        best = minimize_scalar(
            lambda x, q=q: (losses(x) ** (q + 1)).sum(), bounds=(0, 3), method="bounded"
        ).x
        assert x == pytest.approx(best, abs=1e-3)
        largest.append(losses(x).max())
    assert largest == sorted(largest, reverse=True)
    assert largest[0] - largest[-1] > 0.3
