"""AdaFed: by hand, slopes by losses, dependent gradients, zero losses, and where it rests."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from method_helpers import EXAMPLES, close, diagnostics_of, make_reports, step_of

from udjfl.methods.adafed import AdaFed
from udjfl.methods.base import Reports

close = partial(close, rtol=1e-9, atol=1e-9)

STEPS = ("scaled", "mean", "paper")


def reports_of(deltas: Any, losses: Any, **changes: Any) -> Reports:
    return make_reports(deltas, losses=losses, **changes)


def random_reports(n: int = 4, d: int = 9, seed: int = 0) -> Reports:
    rng = np.random.default_rng(seed)
    return reports_of(rng.normal(size=(n, d)), rng.uniform(0.1, 3, size=n))


# g = (1, 0) and (1, 2), f = 1 and 4.


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        # gamma 1/2: phi = 1, 2. v with <g, v> = phi is (1, 1/2), |v|^2 = 5/4, d = (4/5, 2/5).
        ({"gamma": 0.5, "step": "paper"}, (4 / 5, 2 / 5)),
        # times the mean of phi, 3/2.
        ({"gamma": 0.5, "step": "scaled"}, (6 / 5, 3 / 5)),
        # the mean update is (1, 1), of length sqrt 2; d has length sqrt(4/5), so times sqrt(5/2).
        ({"gamma": 0.5, "step": "mean"}, (0.8 * math.sqrt(2.5), 0.4 * math.sqrt(2.5))),
        # gamma 0: phi = 1, 1. v = (1, 0) = d.
        ({"gamma": 0.0, "step": "paper"}, (1.0, 0.0)),
        # gamma 1: phi = 1, 4. v = (1, 3/2), |v|^2 = 13/4.
        ({"gamma": 1.0, "step": "paper"}, (4 / 13, 6 / 13)),
        ({"gamma": 1.0, "step": "paper", "server_lr": 13.0}, (4.0, 6.0)),
        # unit updates (1, 0) and (1, 2)/sqrt 5: v = (1, (2 sqrt 5 - 1)/2) for gamma 1/2.
        ({"gamma": 0.5, "step": "paper", "normalise": True}, None),
    ],
)
def test_by_hand(params, expected):
    if expected is None:
        v = np.array([1.0, (2 * math.sqrt(5) - 1) / 2])
        expected = v / (v @ v)
    close(
        step_of(AdaFed(ridge=0.0, **params), reports_of([[1.0, 0.0], [1.0, 2.0]], [1.0, 4.0])),
        expected,
    )


def test_the_ridge_by_hand():
    # G G' = [[1, 0], [0, 3]], ridge 1/2 of the mean 2: [[2, 0], [0, 4]]. phi = 1, 1: a = 1/2, 1/4,
    # <phi, a> = 3/4.
    reports = reports_of([[1.0, 0.0], [0.0, math.sqrt(3)]], [5.0, 5.0])
    close(step_of(AdaFed(ridge=0.5), reports), (2 / 3, math.sqrt(3) / 3))
    # A ridge without end: the average with weights phi. f = 1, 3: sum phi g / sum phi^2 = (1, 3
    # sqrt 3) / 10, times 2.
    reports = reports_of([[1.0, 0.0], [0.0, math.sqrt(3)]], [1.0, 3.0])
    close(step_of(AdaFed(ridge=1e12), reports), (0.2, 0.6 * math.sqrt(3)))


def test_diagnostics_by_hand():
    # d = (4/5, 2/5) = 3/5 g_a + 1/5 g_b: <g_a, d> = 4/5, <g_b, d> = 8/5, |d|^2 = 4/5.
    diagnostics = diagnostics_of(
        AdaFed(gamma=0.5, step="paper", ridge=0.0), reports_of([[1.0, 0.0], [1.0, 2.0]], [1.0, 4.0])
    )
    close(diagnostics["coefficient"], (3 / 5, 1 / 5))
    close(diagnostics["weight"], (3 / 5, 2 / 5))
    close(diagnostics["slope"], (math.sqrt(4 / 5), 2 * math.sqrt(4 / 5)))
    close(diagnostics["step_length"], math.sqrt(4 / 5))


@EXAMPLES
@given(
    gamma=st.floats(0, 3), n=st.integers(1, 6), seed=st.integers(0, 1000), normalise=st.booleans()
)
def test_slopes_are_as_the_losses(gamma, n, seed, normalise):
    """<g_k, d> = f_k^gamma |d|^2 for each client; at any other length of step, in that ratio."""
    reports = random_reports(n, seed=seed)
    g = reports.deltas / reports.deltas.norm(dim=1, keepdim=True) if normalise else reports.deltas
    for step in STEPS:
        d = step_of(AdaFed(gamma=gamma, step=step, ridge=0.0, normalise=normalise), reports)
        ratio = (g @ d) / reports.losses**gamma
        close(ratio / ratio[0], torch.ones(n), rtol=1e-5)
        assert (ratio > 0).all()
        if step == "paper":
            close(ratio, (d @ d).expand(n), rtol=1e-5)


def test_one_client_alone():
    # d = g / f^gamma; the other two steps are g itself.
    reports = reports_of([[3.0, -4.0]], [2.0])
    close(step_of(AdaFed(gamma=2.0, step="paper"), reports), (0.75, -1.0))
    for step in ("scaled", "mean"):
        close(step_of(AdaFed(gamma=2.0, step=step), reports), (3.0, -4.0))


@pytest.mark.parametrize("step", ["scaled", "mean"])
@pytest.mark.parametrize("scale", [1e-3, 1e3])
def test_units_cancel(step, scale):
    reports = random_reports()
    expected = step_of(AdaFed(step=step), reports)
    close(step_of(AdaFed(step=step), reports_of(reports.deltas, scale * reports.losses)), expected)
    close(
        step_of(AdaFed(step=step), reports_of(scale * reports.deltas, reports.losses)),
        scale * expected,
    )


@EXAMPLES
@given(
    data=st.data(),
    n=st.integers(1, 7),
    d=st.integers(1, 4),
    gamma=st.sampled_from([0.0, 1.0, 10.0, 100.0]),
)
def test_finite_for_any_numbers(data, n, d, gamma):
    """Also with more clients than parameters, duplicates, zero losses and zero updates."""
    number = st.sampled_from([-2.0, -1.0, 0.0, 1e-20, 0.5, 3.0])
    deltas = data.draw(st.lists(st.lists(number, min_size=d, max_size=d), min_size=n, max_size=n))
    losses = data.draw(
        st.lists(st.sampled_from([0.0, 1e-300, 1e-6, 1.0, 50.0]), min_size=n, max_size=n)
    )
    reports = reports_of(torch.tensor(deltas), losses)
    longest = reports.deltas.norm(dim=1).max()
    for ridge in (0.0, 0.01):
        for step in STEPS:
            _, found, diagnostics = AdaFed(gamma=gamma, ridge=ridge, step=step).aggregate(
                {}, reports
            )
            assert torch.isfinite(found).all()
            assert found.to(torch.float32).isfinite().all()
            assert all(torch.isfinite(value).all() for value in diagnostics.values())
            if step != "paper":  # whatever the system, no longer than an update
                assert found.norm() <= 1.1 * longest


@pytest.mark.parametrize("ridge", [0.0, 0.01])
def test_one_gradient_and_two_losses_ask_for_the_impossible(ridge):
    reports = reports_of([[1.0, 0.0], [1.0, 0.0]], [1.0, 2.0])
    step = step_of(AdaFed(ridge=ridge), reports)
    assert 0 <= float(step[0]) < 1
    assert (float(step[0]) > 0.01) == (ridge > 0)  # as published it stalls; with a ridge it goes on


def test_a_ridge_keeps_similar_clients_moving():
    # Updates that differ by a thousandth, losses by a tenth.
    rng = np.random.default_rng(0)
    reports = reports_of(np.array([1.0] * 8) + 1e-3 * rng.normal(size=(4, 8)), [1.0, 1.1, 0.9, 1.0])
    mean = float(reports.deltas.mean(dim=0).norm())
    assert step_of(AdaFed(ridge=0.0), reports).norm() < 0.05 * mean
    assert step_of(AdaFed(), reports).norm() > 0.25 * mean


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("ridge", [0.0, 0.01])
def test_opposite_clients_find_no_step(step, ridge):
    assert (
        step_of(
            AdaFed(step=step, ridge=ridge), reports_of([[1.0, 0.0], [-1.0, 0.0]], [1.0, 1.0])
        ).norm()
        < 1e-9
    )


def test_clients_alike_step_as_one():
    for rule in (
        AdaFed(),
        AdaFed(ridge=0.0),
        AdaFed(step="mean"),
        AdaFed(normalise=True, step="mean"),
    ):
        close(step_of(rule, reports_of([[3.0, 4.0]] * 5, [2.0] * 5)), (3.0, 4.0), rtol=1e-6)


def test_a_client_at_zero_loss_is_only_kept_from_rising():
    # phi = 0, 1: d is the part of g_b at right angles to g_a; (1, 2) less (1, 0).
    reports = reports_of([[1.0, 0.0], [1.0, 2.0]], [0.0, 4.0])
    close(step_of(AdaFed(ridge=0.0, step="mean"), reports), (0.0, math.sqrt(2)))
    close(diagnostics_of(AdaFed(ridge=0.0), reports)["slope"][0], 0.0)


def test_all_at_zero_loss_do_not_step_but_with_gamma_zero_they_do():
    reports = reports_of([[1.0, 0.0], [0.0, 1.0]], [0.0, 0.0])
    for step in STEPS:
        assert step_of(AdaFed(step=step), reports).tolist() == [0, 0]
        close(step_of(AdaFed(gamma=0.0, step=step), reports), (0.5, 0.5), rtol=0.02)


def test_the_published_step_has_a_largest_factor():
    reports = reports_of([[1.0, 0.0]], [1e-9])
    close(step_of(AdaFed(step="paper", gamma=2.0), reports), (1e6, 0.0))


@pytest.mark.parametrize("normalise", [False, True])
def test_a_client_without_update_is_left_out(normalise):
    rule = AdaFed(normalise=normalise)
    with_still = reports_of([[1.0, 0.0], [0.0, 0.0], [1.0, 2.0]], [1.0, 9.0, 4.0])
    close(
        step_of(rule, with_still),
        step_of(rule, reports_of([[1.0, 0.0], [1.0, 2.0]], [1.0, 4.0])),
        rtol=1e-12,
    )
    assert diagnostics_of(rule, with_still)["weight"][1] == 0


def test_zero_updates_give_no_step():
    for step in STEPS:
        assert step_of(
            AdaFed(step=step), reports_of([[0.0, 0.0]] * 3, [1.0, 2.0, 0.0])
        ).tolist() == [0, 0]


def test_comes_to_rest_at_a_pareto_point():
    """With a ridge, at the minimum of sum f^(1+gamma); as published, anywhere in between.

    The losses are |theta - c|^2 / 2 + 1.
    """
    centres = torch.tensor([[0.0, 0.0], [4.0, 0.0]], dtype=torch.float64)
    rest = {}
    for ridge in (0.0, 0.1):
        model = torch.tensor([1.0, 3.0], dtype=torch.float64)
        for _ in range(500):
            losses = (model - centres).square().sum(dim=1) / 2 + 1
            model = model - step_of(
                AdaFed(ridge=ridge), reports_of(0.1 * (model - centres).numpy(), losses)
            )
        assert abs(float(model[1])) < 1e-3
        rest[ridge] = float(model[0])
    assert rest[0.1] == pytest.approx(2, abs=0.01)  # by symmetry
    assert 0 < rest[0.0] < 2


def test_only_the_clients_that_report_count():
    some = reports_of([[1.0, 0.0], [1.0, 2.0]], [1.0, 4.0], client_indices=[3, 8], round=4)
    assert torch.equal(
        step_of(AdaFed(), some), step_of(AdaFed(), reports_of([[1.0, 0.0], [1.0, 2.0]], [1.0, 4.0]))
    )


def test_a_ridge_may_send_a_client_with_a_small_loss_uphill():
    """The example in the docstring: updates nearly cancel; as published, all go downhill."""
    reports = reports_of([[1.0, 0.0], [-1.0, 0.05]], [2.0, 0.1])
    close(diagnostics_of(AdaFed(), reports)["slope"], (0.223, -0.174), atol=1e-3)
    close(diagnostics_of(AdaFed(ridge=0.0), reports)["slope"], (0.0476, 0.0024), atol=1e-4)


def test_a_client_without_an_update_has_no_part_in_the_step() -> None:
    reports = make_reports([[1.0, 0.0], [0.0, 0.0], [0.0, 2.0]], losses=[1.0, 5.0, 2.0])
    _, step, said = AdaFed().aggregate({}, reports)
    assert said["coefficient"][1] == said["slope"][1] == said["weight"][1] == 0
    assert (said["coefficient"][[0, 2]] > 0).all()
    without = make_reports([[1.0, 0.0], [0.0, 2.0]], losses=[1.0, 2.0])
    close(step, AdaFed().aggregate({}, without)[1])


@pytest.mark.parametrize("step", ["mean", "scaled"])
def test_opposite_clients_make_no_step_and_say_so(step: str) -> None:
    reports = make_reports([[1.0, 0.0], [-1.0, 0.0]], losses=[1.0, 1.0])
    _, moved, said = AdaFed(step=step).aggregate({}, reports)
    assert moved.tolist() == [0.0, 0.0]
    assert said["slope"].tolist() == said["weight"].tolist() == [0.0, 0.0]
    if step == "mean":
        assert said["coefficient"].tolist() == [0.0, 0.0]


def test_the_ridge_is_in_double_precision() -> None:
    """Two orthogonal clients of length 1 and 2: a_i = phi_i / (|g_i|^2 + ridge * mean |g|^2)."""
    ridge, phi = 1 / 3, [0.5, 1.0]  # times the mean it has no end in binary
    reports = make_reports([[1.0, 0.0], [0.0, 2.0]], losses=[1.0, 2.0])
    a = [phi[0] / (1 + ridge * 2.5), phi[1] / (4 + ridge * 2.5)]
    scale = 0.75 / (phi[0] * a[0] + phi[1] * a[1])
    _, step, _ = AdaFed(ridge=ridge).aggregate({}, reports)
    close(step, [scale * a[0], 2 * scale * a[1]], rtol=1e-11)
