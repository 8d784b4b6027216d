"""UDJ-FL: by hand, step rules against slow formulas, identities, parameters, floor, diagnostics."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any, get_args

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from method_helpers import close, diagnostics_of, random_reports, step_of, two_clients
from udj_theory import curvature_as_printed, curvature_bound

from udjfl.errors import SettingsError
from udjfl.methods import UDJ, FedAvg, Reports, Setup, method
from udjfl.methods._udj_math import lipschitz
from udjfl.methods.udj import StepRule

STEP_RULES = get_args(StepRule)
DEFINED_AT_ONE = [
    rule for rule in STEP_RULES if rule != "authors"
]  # which divides by zero at exponent 1
THEORIES = ("rawls", "egalitarian", "utilitarian", "desert")
DEFINED = [
    (t, step)
    for t in THEORIES
    for step in (STEP_RULES if t in ("rawls", "desert") else DEFINED_AT_ONE)
]
EXAMPLES = settings(max_examples=40, deadline=None, derandomize=True)


# --- hand-worked: the paper's rule as printed, e the exponent, w = u^gamma with u = (1/4, 3/4) ---
#
#   Delta_i = e w H^(e-1) D_i      h_i = e w (L H^(e-1) + (e-1) H^(e-2) |D_i|^2)      D_i = L
# delta_i   step = sum Delta_i / sum h_i
#
# With L = 2: D = (2, 0) and (0, 4), |D|^2 = 4 and 16. With L = 4/5, calibrated: D = (4/5, 0) and
# (0, 8/5), |D|^2 = 16/25 and 64/25. Of two clients none is capped.

RAWLS = [
    # beta 1: e = 2, H = 1, 2.  Delta = 2/4*1*2 = 1 and 6/4*2*4 = 12;  h = 1/2 (2 + 4) = 3 and 3/2
    #                           (4 + 16) = 30; sum 33.
    ("paper", 1.0, (1 / 33, 12 / 33)),
    ("safe", 1.0, (1 / 33, 12 / 33)),
    ("authors", 1.0, (1 / 33, 12 / 33)),
    # Delta = 1/2*1*4/5 = 10/25 and 3/2*2*8/5 = 120/25;  h = 1/2 (20/25 + 16/25) = 18/25 and
    #                                                    3/2 (40/25 + 64/25) = 156/25; sum 174/25.
    ("calibrated", 1.0, (10 / 174, 120 / 174)),
    # weights 1/2*1 : 3/2*2 = 1 : 6.
    ("normalised", 1.0, (1 / 7, 12 / 7)),
    # beta 5, the paper's: e = 6, H^5 = 1, 32, H^4 = 1, 16.  Delta = 3/2*2 = 3 and 9/2*32*4 = 576;
    # h = 3/2 (2 + 5*4) = 33 and 9/2 (64 + 5*16*16) = 6048; sum 6081.
    ("paper", None, (3 / 6081, 576 / 6081)),
    # Delta = 3/2*4/5 = 6/5 and 9/2*32*8/5 = 1152/5;  h = 3/2 (4/5 + 5*16/25) = 30/5 and
    #                                   9/2 (32*4/5 + 5*16*64/25) = 9/2 * 1152/5 = 5184/5; 5214/5.
    ("calibrated", None, (6 / 5214, 1152 / 5214)),
    # weights 1/4*1 : 3/4*32 = 1 : 96.
    ("normalised", None, (1 / 97, 192 / 97)),
]


@pytest.mark.parametrize(("step", "beta", "expected"), RAWLS)
def test_rawls_by_hand(step, beta, expected):
    close(step_of(UDJ(theory="rawls", beta=beta, step=step), two_clients()), expected)


@pytest.mark.parametrize("step", DEFINED_AT_ONE)
def test_egalitarian_by_hand(step):
    # e = 1: the average with weights u = 1/4, 3/4, so 1/4*1 and 3/4*2. No loss enters, nor any L.
    close(step_of(UDJ(theory="egalitarian", step=step), two_clients()), (0.25, 1.5))
    close(
        step_of(UDJ(theory="egalitarian", step=step), two_clients(losses=[7.0, 0.01])), (0.25, 1.5)
    )


@pytest.mark.parametrize("step", DEFINED_AT_ONE)
def test_utilitarian_by_hand(step):
    # e = 1: the average with weights 1/u = 4 : 4/3 = 3 : 1, so 3/4*1 and 1/4*2.
    close(step_of(UDJ(theory="utilitarian", step=step), two_clients()), (0.75, 0.5))


def test_utilitarian_by_hand_with_beta_above_its_limit():
    # beta 1: e = 2, w = 4, 4/3.  Delta = 8*1*2 = 16 and 8/3*2*4 = 64/3;  h = 8 (2 + 4) = 48 and 8/3
    # (4 + 16) = 160/3. Sum 304/3, so 48/304 and 64/304.
    close(
        step_of(UDJ(theory="utilitarian", beta=1.0, step="paper"), two_clients()), (3 / 19, 4 / 19)
    )


# Desert: beta = (1/u) / sum = (1, 1/3) / (4/3) = 3/4, 1/4; e = -3/4, -1/4; w = 1. Losses 1 and 16
# keep it rational: H^(e-1) = 1 and 16^(-5/4) = 1/32;  H^(e-2) = 1 and 16^(-9/4) = 1/512.
DESERT = [
    # |e| and |e-1|: Delta = 3/4*2 = 3/2 and 1/4*1/32*4 = 1/32;
    # h = 3/4 (2 + 7/4*4) = 27/4 and 1/4 (1/16 + 5/4*16/512) = 13/512; sum 3469/512.
    ("safe", (768 / 3469, 16 / 3469)),
    # Delta = -3/2 and -1/32;  h = -3/4 (2 - 7) = 15/4 and -1/4 (1/16 - 5/128) = -3/512; sum
    #                          1917/512. Uphill.
    ("paper", (-768 / 1917, -16 / 1917)),
    # As printed, and the denominator times sign(e-1) = -1.
    ("authors", (768 / 1917, 16 / 1917)),
    # Delta = 3/4*4/5 = 3/5 and 1/4*1/32*8/5 = 1/80;
    # h = 3/4 (4/5 + 7/4*16/25) = 36/25 and 1/4 (4/5*1/32 + 5/4*64/25*1/512) = 1/4 (1/40 + 1/160)
    # = 1/128; sum (4608 + 25)/3200.
    ("calibrated", (1920 / 4633, 40 / 4633)),
    # weights 3/4 : 1/128 = 96 : 1.
    ("normalised", (96 / 97, 2 / 97)),
]


@pytest.mark.parametrize(("step", "expected"), DESERT)
def test_desert_by_hand(step, expected):
    close(step_of(UDJ(theory="desert", step=step), two_clients(losses=[1.0, 16.0])), expected)


def test_desert_as_printed_raises_the_loss_and_safe_lowers_it():
    # One client with H(x) = x^2/2 at x = 2: H = 2, gradient 2; one plain step with lr 1/2 gives
    # delta 1, L = 2, |D|^2 = 4. beta = 1, e = -1.  Printed: -H^-2 D / (-(L H^-2 - 2 H^-3 |D|^2)) =
    # (-1/2) / (-(1/2 - 1)) = -1: x = 3, H = 4.5. Safe: (1/2) / (1/2 + 1) = 1/3: x = 5/3, H = 25/18.
    x = 2.0
    reports = Reports(ids=["a"], deltas=[[1.0]], losses=[x**2 / 2], uncertainties=[0.3], lr=0.5)
    after = {
        step: x - step_of(UDJ(theory="desert", step=step), reports).item()
        for step in ("paper", "safe")
    }
    assert after == pytest.approx({"paper": 3.0, "safe": 5 / 3})
    assert after["safe"] ** 2 / 2 < x**2 / 2 < after["paper"] ** 2 / 2


def test_authors_sign_repairs_a_large_update_and_breaks_a_small_one():
    # One client, desert, e = -1, lr 1/2: the factor of delta is -1 / -(1 - 2 |D|^2/(L H)) as
    # printed, and minus that. H = 2, delta 1: 1 - 2*4/4 = -1, so -1 printed and 1. H = 2, delta
    # 1/2: 1 - 2*1/4 = 1/2, so 2 printed and -2.
    for delta, factor in ((1.0, 1.0), (0.5, -2.0)):
        reports = Reports(ids=["a"], deltas=[[delta]], losses=[2.0], uncertainties=[0.3], lr=0.5)
        assert step_of(UDJ(theory="desert", step="authors"), reports).item() == pytest.approx(
            factor * delta
        )
        assert step_of(UDJ(theory="desert", step="paper"), reports).item() == pytest.approx(
            -factor * delta
        )


@pytest.mark.parametrize("theory", ["egalitarian", "utilitarian"])
def test_authors_rule_refuses_exponent_one(theory):
    # Their sign(e-1) is 0 there: 0 in the denominator.
    with pytest.raises(SettingsError, match=r"step='authors'.*zero.*calibrated"):
        method(theory, step="authors")
    # Where only some clients' exponents are 1, the others have a denominator.
    assert UDJ(beta=(1.0, 2.0), gamma=1.0, step="authors").exponent(2.0) == 2


def test_calibrated_takes_the_mean_number_of_steps():
    # Without momentum doubling every client's steps halves L, as doubling lr does; which client
    # took them does not matter.
    rule = UDJ(theory="rawls", beta=2.0)
    expected = step_of(rule, two_clients(momentum=0.0, steps=[2, 6]))
    close(step_of(rule, two_clients(momentum=0.0, lr=1.0)), expected)
    close(step_of(rule, two_clients(momentum=0.0, steps=[7, 1])), expected)
    # With momentum 1/2 two steps count as 5/4, twice as long each: L = 1 / (lr * 5/2), which is
    # that of two plain steps with lr * 5/4.
    close(step_of(rule, two_clients(momentum=0.0, lr=0.625)), step_of(rule, two_clients()))
    # One step is what the paper's L = 1/lr is right for, whatever the momentum: it starts at zero.
    for momentum in (0.0, 0.9):
        one = two_clients(steps=[1, 1], momentum=momentum)
        close(step_of(rule, one), step_of(UDJ(theory="rawls", beta=2.0, step="safe"), one))


@pytest.mark.parametrize("steps", [1, 2, 3, 15, 38])
@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
def test_calibrated_makes_the_update_of_a_constant_gradient_that_gradient(steps, momentum):
    # The loss 3x has the gradient 3 everywhere; torch's SGD takes the steps.
    x = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.SGD([x], lr=0.1, momentum=momentum)
    for _ in range(steps):
        optimiser.zero_grad()
        (3 * x).sum().backward()
        optimiser.step()
    close(-lipschitz("calibrated", 0.1, momentum, steps) * x.detach(), [3.0])


def test_only_calibrated_reads_steps_and_momentum():
    other = two_clients(steps=[50, 70], momentum=0.9)
    for step in STEP_RULES:
        rule = UDJ(theory="rawls", step=step)
        assert torch.equal(step_of(rule, two_clients()), step_of(rule, other)) == (
            step != "calibrated"
        ), step


def test_sizes_do_not_enter():
    for theory in THEORIES:
        rule = UDJ(theory=theory)
        assert torch.equal(step_of(rule, two_clients()), step_of(rule, two_clients(sizes=None)))


# --- step rules against the slow formulas ---


def slow_step(
    reports: Reports, p: torch.Tensor, gamma: float, lipschitz: float, rule: str
) -> torch.Tensor:
    """Compute the step client by client, with the powers written out."""
    u = reports.uncertainties / reports.uncertainties.sum()
    numerator, denominator = torch.zeros(reports.deltas.shape[1], dtype=torch.float64), 0.0
    for i in range(len(reports)):
        e, h, weight = float(p[i]), float(reports.losses[i]), float(u[i]) ** gamma
        gradient = lipschitz * reports.deltas[i].double()
        squared = float(gradient @ gradient)
        if rule in ("paper", "authors"):
            sign = math.copysign(1, e - 1) if rule == "authors" else 1.0
            numerator += e * weight * h ** (e - 1) * gradient
            denominator += sign * float(curvature_as_printed(h, squared, lipschitz, e, weight))
        else:
            curved = 0.0 if rule == "normalised" else squared
            numerator += abs(e) * weight * h ** (e - 1) * gradient
            denominator += float(curvature_bound(h, curved, lipschitz, e, weight))
    return numerator / denominator


@pytest.mark.parametrize("step", STEP_RULES)
@pytest.mark.parametrize(
    ("params", "exponents"),
    [
        ({"theory": "rawls", "beta": 5.0}, [6.0] * 4),
        ({"theory": "rawls", "beta": 0.5, "gamma": 3.7}, [1.5] * 4),
        ({"theory": "utilitarian", "beta": 0.1, "gamma": -2.5}, [1.1] * 4),
        ({"theory": "desert", "beta": (0.1, 0.2, 0.3, 0.4)}, [-0.1, -0.2, -0.3, -0.4]),
        ({"theory": "desert", "beta": 2.0, "gamma": -1.0}, [-2.0] * 4),
        ({"beta": 0.5, "gamma": 0.5}, [0.5] * 4),
        ({"beta": 2.0, "gamma": 1.0, "r": -1.5}, [-3.0] * 4),
        ({"theory": "rawls", "beta": (0.25, 1.0, 2.0, 3.0), "r": 2.0}, [0.5, 2.0, 4.0, 6.0]),
        ({"beta": (-0.5, 1.5, 2.0, -3.0), "gamma": 1.0}, [-0.5, 1.5, 2.0, -3.0]),
    ],
)
def test_step_rules_are_the_slow_formulas(step, params, exponents):
    reports = random_reports(momentum=0.9, steps=[2, 3, 7, 8], lr=0.2)
    gamma = params.get("gamma", {"rawls": 1.0, "desert": 0.0}.get(params.get("theory")))
    # Mean steps 20/4 = 5, which count as 5 - 0.9 (1 - 0.9^5) / 0.1 = 5 - 3.68559.
    L = (1 - 0.9) / (0.2 * 1.31441) if step == "calibrated" else 1 / 0.2
    p = torch.tensor(exponents, dtype=torch.float64)
    rule = UDJ(**params, step=step, cap=1.0)
    close(rule.exponents(reports), p)
    close(step_of(rule, reports), slow_step(reports, p, gamma, L, step), rtol=1e-10)


@pytest.mark.parametrize("theory", THEORIES)
@pytest.mark.parametrize("step", ["safe", "calibrated", "normalised"])
def test_bounded_rules_never_step_past_a_weighted_average(theory, step):
    # Every curvature term is at least 0, so the factors of the deltas sum to at most 1.
    for seed in range(5):
        diagnostics = diagnostics_of(UDJ(theory=theory, step=step), random_reports(seed=seed))
        assert 0 < diagnostics["step_scale"] <= 1 + 1e-12


# --- q-FedAvg ---


def q_fedavg(deltas: Any, losses: Any, q: Any, lr: Any) -> list[Any]:
    """Li et al. (2020), Algorithm 2, letter by letter; exact when given fractions."""
    L = 1 / lr
    numerator, denominator = [0] * len(deltas[0]), 0
    for delta, F in zip(deltas, losses, strict=True):
        gradient = [L * value for value in delta]
        numerator = [total + F**q * value for total, value in zip(numerator, gradient, strict=True)]
        denominator += q * F ** (q - 1) * sum(value * value for value in gradient) + L * F**q
    return [total / denominator for total in numerator]


@pytest.mark.parametrize("q", [0.0, 0.001, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 15.0])
@pytest.mark.parametrize("lr", [0.001, 0.1, 1.0])
def test_gamma_zero_is_q_fedavg(q, lr):
    reports = random_reports(lr=lr)
    expected = q_fedavg(reports.deltas.tolist(), reports.losses.tolist(), q, lr)
    close(step_of(UDJ(theory="rawls", beta=q, gamma=0.0, step="paper"), reports), expected)
    close(step_of(UDJ(beta=1 + q, gamma=0.0, step="paper"), reports), expected)
    close(step_of(UDJ(beta=1 + q, gamma=0.0, step="safe", cap=1.0), reports), expected)


@EXAMPLES
@given(
    losses=st.lists(st.floats(1e-6, 50), min_size=2, max_size=2),
    deltas=st.lists(st.floats(-3, 3, allow_subnormal=False), min_size=2, max_size=2),
    q=st.floats(0, 10),
)
def test_gamma_zero_is_q_fedavg_for_any_numbers(losses, deltas, q):
    reports = two_clients(deltas=np.array(deltas)[:, None], losses=losses, lr=0.1)
    (expected,) = q_fedavg([[delta] for delta in deltas], losses, q, 0.1)
    assert step_of(
        UDJ(theory="rawls", beta=q, gamma=0.0, step="paper"), reports
    ).item() == pytest.approx(expected, rel=1e-9, abs=1e-15)


@pytest.mark.parametrize("q", [100, 1000])
@pytest.mark.parametrize(
    "losses", [(1_000_000, 999_999), (1_000_000, 1), (3, 3), (Fraction(1, 1000), Fraction(1, 500))]
)
def test_large_q_does_not_overflow(q, losses):
    # 1e6^1000 is far beyond float64; in fractions the published formula is exact.
    deltas = [[Fraction(1), Fraction(-2)], [Fraction(1, 2), Fraction(3)]]
    expected = [
        float(v) for v in q_fedavg(deltas, [Fraction(F) for F in losses], q, Fraction(1, 8))
    ]
    floats = [float(F) for F in losses]
    reports = two_clients(deltas=np.array(deltas, dtype=float), losses=floats, lr=0.125)
    close(
        step_of(UDJ(theory="rawls", beta=float(q), gamma=0.0, step="paper"), reports),
        expected,
        rtol=1e-9,
    )


@pytest.mark.parametrize("loss", [0.0, 1e-300, 1e-12])
def test_a_loss_of_almost_nothing_counts_as_1e_minus_10(loss):
    # With q < 1, F^(q-1) is infinite at F = 0; q-FedAvg's reference code stays away from 0 by the
    # same amount.
    reports = two_clients(losses=[loss, 2.0])
    expected = q_fedavg([[1.0, 0.0], [0.0, 2.0]], [1e-10, 2.0], 0.1, 0.5)
    close(step_of(UDJ(theory="rawls", beta=0.1, gamma=0.0, step="paper"), reports), expected)


@pytest.mark.parametrize("step", STEP_RULES)
@pytest.mark.parametrize("theory", ["rawls", "desert"])
def test_all_losses_zero_is_finite(theory, step):
    assert torch.isfinite(
        step_of(UDJ(theory=theory, step=step), two_clients(losses=[0.0, 0.0]))
    ).all()


# --- weighted average, scale of the uncertainties, limits ---


@pytest.mark.parametrize("gamma", [-2.5, -1.0, 0.0, 0.3, 1.0, 4.0])
@pytest.mark.parametrize("step", DEFINED_AT_ONE)
def test_exponent_one_is_the_average_with_weights_u_to_the_gamma(gamma, step):
    reports = random_reports()
    weights = reports.uncertainties**gamma
    expected = (weights / weights.sum()) @ reports.deltas
    close(step_of(UDJ(beta=1.0, gamma=gamma, step=step, cap=1.0), reports), expected)
    rawls = UDJ(theory="rawls", beta=0.0, gamma=gamma, step=step, cap=1.0)
    close(step_of(rawls, reports), expected)


def test_exponent_one_and_gamma_zero_is_uniform_fedavg():
    reports = random_reports()
    uniform = FedAvg(weights="uniform").aggregate({}, reports)[1]
    close(step_of(UDJ(beta=1.0, gamma=0.0), reports), uniform)


@pytest.mark.parametrize("step", STEP_RULES)
@pytest.mark.parametrize(
    "params",
    [
        {"theory": "rawls"},
        {"theory": "utilitarian", "beta": 0.1},
        {"theory": "desert"},
        {"beta": 3.0, "gamma": -2.5},
    ],
)
def test_a_common_scale_of_the_uncertainties_cancels(step, params):
    reports = random_reports()
    rule = UDJ(**params, step=step)
    for scale in (1e-8, 0.3, 1e6):
        scaled = random_reports(uncertainties=scale * reports.uncertainties)
        close(step_of(rule, scaled), step_of(rule, reports), rtol=1e-10)


def test_for_large_beta_the_largest_loss_wins_whatever_its_uncertainty():
    # c_a : c_b = 1/1001 * 2^1000 : 1000/1001 * 1.
    reports = two_clients(losses=[2.0, 1.0], uncertainties=[0.001, 1.0])
    assert diagnostics_of(UDJ(theory="rawls", beta=1000.0), reports)[
        "weight"
    ].tolist() == pytest.approx([1, 1000 / 2**1000])


def test_utilitarian_is_continuous_at_its_limit():
    at_limit = step_of(UDJ(theory="utilitarian"), two_clients())
    close(step_of(UDJ(theory="utilitarian", beta=1e-9), two_clients()), at_limit, rtol=1e-7)


# --- parameters ---


@pytest.mark.parametrize("theory", THEORIES)
def test_named_constructors_are_the_theories(theory):
    named = getattr(UDJ, theory)()
    assert torch.equal(step_of(named, two_clients()), step_of(method(theory), two_clients()))
    assert named == method(theory) == method("udj", theory=theory)


def test_named_constructors_pass_their_arguments_on():
    reports = two_clients()
    assert step_of(UDJ.rawls(beta=1.0, gamma=0.0, step="paper"), reports).tolist() == pytest.approx(
        q_fedavg([[1.0, 0.0], [0.0, 2.0]], [1.0, 2.0], 1.0, 0.5)
    )
    for point in (
        {"theory": "egalitarian", "gamma": 2.0, "step": "safe"},
        {"theory": "utilitarian", "beta": 0.1, "gamma": -2.0, "step": "safe"},
        {"theory": "desert", "beta": (0.1, 0.2), "gamma": 1.0, "step": "safe"},
    ):
        arguments = {name: value for name, value in point.items() if name != "theory"}
        assert getattr(UDJ, point["theory"])(**arguments) == UDJ(**point)


@pytest.mark.parametrize(
    ("theory", "expected"),
    # desert: 1/u = 1, 1/3.
    [
        ("rawls", (6, 6)),
        ("egalitarian", (1, 1)),
        ("utilitarian", (1, 1)),
        ("desert", (-0.75, -0.25)),
    ],
)
def test_exponents_of_the_paper(theory, expected):
    close(UDJ(theory=theory).exponents(two_clients()), expected)


@pytest.mark.parametrize(
    "beta",
    [(1.0, 2.0), [1, 2], "1,2", " 1 , 2 ", {"a": 1, "b": 2}, {"b": "2", "a": "1", "elsewhere": 9}],
)
def test_beta_per_client(beta):
    # Rawls: exponents 1 + beta = 2 and 3.
    rule = UDJ.rawls(beta=beta)
    close(rule.exponents(two_clients()), (2.0, 3.0))
    # By name or by index, not by the order in which the clients happen to report.
    swapped = Reports(
        ids=["b", "a"], deltas=[[0.0, 2.0], [1.0, 0.0]], losses=[2.0, 1.0], uncertainties=[3.0, 1.0]
    )
    close(rule.exponents(swapped), (2.0, 3.0))


def test_beta_as_text_is_one_number():
    assert method("rawls", beta="2").params["beta"] == 2.0


def test_beta_per_client_with_partial_participation():
    # Clients 0 and 2 of three report: the first and the third beta are theirs.
    reports = two_clients(client_indices=[0, 2])
    close(UDJ.rawls(beta=(1, 50, 3)).exponents(reports), (2.0, 4.0))
    close(UDJ.rawls(beta={"a": 1, "b": 3, "c": 50}).exponents(reports), (2.0, 4.0))


def test_desert_exponents_are_over_the_clients_that_report():
    # Whichever other clients there are: 1/u = 1, 1/3 over these two.
    close(UDJ.desert().exponents(two_clients(client_indices=[3, 8])), (-0.75, -0.25))


@pytest.mark.parametrize("beta", [(1.0,), (1.0, 2.0)])
def test_too_few_betas_are_refused(beta):
    with pytest.raises(SettingsError, match=rf"beta.*{len(beta)} values"):
        method("rawls", beta=beta).aggregate({}, two_clients(client_indices=[0, 2]))


@pytest.mark.parametrize("beta", [(1.0, 2.0), (1.0, 2.0, 3.0, 4.0)])
def test_a_wrong_number_of_betas_is_found_before_the_first_round(beta):
    with pytest.raises(SettingsError, match="beta"):
        method("rawls", beta=beta).init(Setup(["a", "b", "c"], torch.ones(3), torch.zeros(10)))


def test_a_client_without_beta_is_named():
    with pytest.raises(SettingsError, match=r"beta.*'b'"):
        method("rawls", beta={"a": 1.0}).aggregate({}, two_clients())


@pytest.mark.parametrize("theory", ["rawls", "utilitarian"])
@pytest.mark.parametrize("beta", [-1, -1e-9, "-1", (1.0, -1.0), "1,-1", {"a": 1.0, "b": -1.0}])
def test_negative_beta_is_refused(theory, beta):
    with pytest.raises(SettingsError, match=rf"beta.*{theory} needs beta >= 0"):
        method(theory, beta=beta)


def test_a_beta_beyond_a_million_is_refused():
    for beta in (1e6, -1e6, (1.0, 1e6)):
        assert UDJ(beta=beta, gamma=0.0).beta == beta
    for beta in (1e7, -1e7, (1.0, 1e7), {"a": 1.0, "b": -1e7}):
        with pytest.raises(SettingsError, match=r"beta is .*between -1e\+06 and 1e\+06"):
            UDJ(beta=beta, gamma=0.0)


def test_parameters_that_have_a_meaning_beside_others():
    beside_theory = UDJ.parameters_beside({"theory": "rawls"})
    assert {"beta", "gamma", "step", "cap"} <= beside_theory
    assert UDJ.parameters_beside({"theory": "rawls", "budget": 2}).isdisjoint({"beta", "gamma"})


def test_without_a_budget_no_reference_is_needed():
    assert UDJ.rawls().needs_reference is False


def test_names_of_a_point_are_those_of_its_theory():
    assert (UDJ.rawls().short, UDJ.rawls().theories) == ("Rawls", ("rawls",))
    by_hand = UDJ(beta=2.0, gamma=1.0)
    assert (by_hand.short, by_hand.theories) == ("UDJ-FL", ())
    assert by_hand.label == "UDJ-FL (beta=2, gamma=1)"
    # Clients may have any name.
    assert UDJ.rawls(beta={"UDJ-FL": 1.0}).label == "UDJ-FL rawls (beta={'UDJ-FL': 1.0})"


@pytest.mark.parametrize("params", [{}, {"beta": 1.0}, {"gamma": 1.0}, {"r": 1.0, "gamma": 1.0}])
def test_a_point_by_hand_needs_beta_and_gamma(params):
    with pytest.raises(SettingsError, match=r"theory.*both beta and gamma"):
        method("udj", **params)


@pytest.mark.parametrize(
    "params", [{"beta": math.nan}, {"beta": math.inf}, {"beta": (1, math.nan)}, {"gamma": math.inf}]
)
def test_parameters_are_finite(params):
    with pytest.raises(SettingsError, match="finite"):
        method("rawls", **params)


def test_exponent_zero_for_every_client_is_refused():
    with pytest.raises(SettingsError, match=r"beta.*exponent.*0"):
        method("udj", beta=0.0, gamma=1.0).aggregate({}, two_clients())


def test_exponent_zero_for_one_client_leaves_it_out():
    # H^0 is constant: that client's loss is not in the objective.
    close(step_of(UDJ(beta=(0.0, 1.0), gamma=1.0), two_clients()), (0.0, 2.0))


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: UDJ(theory="rawl"),
        lambda: UDJ.rawls(beta=-1.0),
        lambda: UDJ(**{"theory": "rawls", "bta": 1.0}),
    ],
)
def test_the_class_itself_refuses_wrong_parameters(wrong):
    with pytest.raises(SettingsError):
        wrong()


# --- the floor ---


def test_tiny_uncertainty_is_floored_where_its_inverse_enters():
    # gamma -1: u = 1e-9 counts as 1/100 of the largest, so 100 : 1.
    diagnostics = diagnostics_of(UDJ(theory="utilitarian"), two_clients(uncertainties=[1e-9, 1.0]))
    close(diagnostics["weight"], (100 / 101, 1 / 101))
    assert diagnostics["floored"].tolist() == [1, 0]


def test_tiny_uncertainty_is_floored_in_desert():
    # beta = (1/u) / sum, with u = 1/100, 1.
    reports = two_clients(uncertainties=[1e-9, 1.0])
    close(UDJ(theory="desert").exponents(reports), (-100 / 101, -1 / 101))
    assert diagnostics_of(UDJ(theory="desert"), reports)["floored"].tolist() == [1, 0]


def test_floor_of_gamma_minus_one_in_desert_with_beta_by_hand():
    reports = two_clients(uncertainties=[1e-9, 1.0], losses=[1.0, 1.0])
    # beta by hand and gamma 0: the uncertainties do not enter, so there is nothing to floor.
    assert diagnostics_of(UDJ(theory="desert", beta=1.0), reports)["floored"].tolist() == [0, 0]
    diagnostics = diagnostics_of(UDJ(theory="desert", beta=1.0, gamma=-1.0), reports)
    close(diagnostics["weight"], (100 / 101, 1 / 101))
    assert diagnostics["floored"].tolist() == [1, 0]


@pytest.mark.parametrize("theory", ["utilitarian", "desert"])
@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_the_floor_has_no_scale(theory, scale):
    rule = UDJ(theory=theory)
    reports, scaled = (two_clients(uncertainties=[s * 1e-9, s * 0.5]) for s in (1.0, scale))
    close(step_of(rule, scaled), step_of(rule, reports), rtol=1e-10)
    assert torch.equal(
        diagnostics_of(rule, scaled)["floored"], diagnostics_of(rule, reports)["floored"]
    )


@pytest.mark.parametrize("theory", ["utilitarian", "desert"])
def test_uncertainties_above_the_floor_are_unchanged(theory):
    diagnostics = diagnostics_of(UDJ(theory=theory), two_clients(uncertainties=[0.02, 1.0]))
    assert diagnostics["floored"].tolist() == [0, 0]
    if theory == "utilitarian":
        close(diagnostics["weight"], (50 / 51, 1 / 51))


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0])
def test_no_floor_for_gamma_of_zero_or_more(gamma):
    diagnostics = diagnostics_of(UDJ(beta=1.0, gamma=gamma), two_clients(uncertainties=[1e-8, 1.0]))
    assert diagnostics["floored"].tolist() == [0, 0]
    close(diagnostics["weight"], (1e-8**gamma / (1e-8**gamma + 1), 1 / (1e-8**gamma + 1)))


def test_a_warning_names_the_clients_at_the_floor():
    rule, reports = UDJ(theory="desert"), two_clients(uncertainties=[1e-9, 1.0])
    (sentence,) = rule.warning(reports.ids, diagnostics_of(rule, reports))
    assert sentence.startswith("UDJ-FL desert: the uncertainty of a is below a hundredth")
    both = {"floored": torch.tensor([1.0, 1.0])}
    assert "the uncertainty of a, b is below" in rule.warning(reports.ids, both)[0]
    assert rule.warning(reports.ids, diagnostics_of(rule, two_clients())) is None


# --- diagnostics ---


@pytest.mark.parametrize(("theory", "step"), DEFINED)
def test_shares_sum_to_one(theory, step):
    for dtype in (torch.float32, torch.float64):
        reports = random_reports()
        diagnostics = diagnostics_of(
            UDJ(theory=theory, step=step), random_reports(deltas=reports.deltas.to(dtype))
        )
        assert diagnostics["weight"].sum().item() == pytest.approx(1)
        assert diagnostics["weight"].min() >= 0
        assert diagnostics["step_share"].sum().item() == pytest.approx(1, abs=1e-6)


def test_diagnostics_by_hand():
    # Rawls, beta 1, as in the table above: step (1, 12)/33 = 1/33 delta_a + 6/33 delta_b.
    diagnostics = diagnostics_of(UDJ(theory="rawls", beta=1.0, step="paper"), two_clients())
    close(diagnostics["weight"], (1 / 7, 6 / 7))
    close(diagnostics["step_share"], (1 / 145, 144 / 145))  # 1^2 : 12^2
    close(diagnostics["curvature"], (2.0, 4.0))  # (e-1) |D|^2 / (L H) = 4/2 and 16/4
    close(diagnostics["step_scale"], 7 / 33)
    # Calibrated, L = 4/5: (16/25) / (4/5) and (64/25) / (8/5).
    close(diagnostics_of(UDJ(theory="rawls", beta=1.0), two_clients())["curvature"], (0.8, 1.6))


def test_curvature_is_the_term_the_rule_divides_by():
    # Desert as above, e-1 = -7/4 and -5/4; |D|^2/(L H) = 4/2 and 16/32. As printed negative, in the
    # bound positive.
    reports = two_clients(losses=[1.0, 16.0])
    for step in ("paper", "authors"):
        close(diagnostics_of(UDJ(theory="desert", step=step), reports)["curvature"], (-3.5, -0.625))
    close(diagnostics_of(UDJ(theory="desert", step="safe"), reports)["curvature"], (3.5, 0.625))
    # L = 4/5: 7/4 (16/25) / (4/5) = 7/4 * 4/5 and 5/4 (64/25) / (64/5) = 5/4 * 1/5.
    close(
        diagnostics_of(UDJ(theory="desert", step="calibrated"), reports)["curvature"],
        (7 / 5, 1 / 4),
    )


def test_no_step_has_no_shares():
    diagnostics = diagnostics_of(UDJ(theory="rawls"), two_clients(deltas=[[0.0, 0.0], [0.0, 0.0]]))
    assert diagnostics["step_share"].tolist() == [0, 0]
