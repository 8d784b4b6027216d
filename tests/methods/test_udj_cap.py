"""The cap on one client's share: by hand, its limits, and clients that lie or have odd data."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from method_helpers import EXAMPLES, close, diagnostics_of, make_reports, random_reports, step_of

from udjfl.methods import UDJ, Reports
from udjfl.methods._udj_math import largest_share, log_cap

THEORIES = ("rawls", "egalitarian", "utilitarian", "desert")
OURS = ("safe", "calibrated", "normalised")


def four_clients(**changes: Any) -> Reports:
    """Return reports of four clients whose updates are the rows of the identity."""
    fields: dict[str, Any] = {
        "losses": [1.0] * 4,
        "uncertainties": [0.3, 0.4, 0.5, 0.6],
        "steps": [1] * 4,
    }
    return make_reports(torch.eye(4), **{**fields, **changes})


# --- by hand ---


@pytest.mark.parametrize(
    ("c", "limit", "expected"),
    [
        # Only the largest counts for the cap: limit / (1 - limit) times the sum of the others.
        ((8, 1, 1, 2), 0.5, 4),
        ((8, 1, 1, 2), 0.8, 16),
        ((1, 8, 2), 2 / 3, 6),
        ((5, 5), 0.5, 5),
        # 1e30 is to be lowered to 2: lost to rounding if the others came from total - largest.
        ((1, 1e30, 1), 0.5, 2),
        ((1e-300, 1e300), 0.5, 1e-300),
        # Nothing to cap: no limit, one client, or nobody else has any weight.
        ((8, 1, 1, 2), 1.0, math.inf),
        ((8,), 0.5, math.inf),
        ((8, 0, 0), 0.5, math.inf),
    ],
)
def test_the_largest_coefficient_by_hand(c, limit, expected):
    found = log_cap(torch.tensor(c, dtype=torch.float64).log(), limit)
    assert found == pytest.approx(math.log(expected) if expected < math.inf else math.inf)


@pytest.mark.parametrize(
    ("cap", "n", "expected"),
    [(0.5, 1, 1.0), (0.5, 2, 1.0), (0.5, 3, 2 / 3), (0.5, 4, 0.5), (0.9, 3, 0.9), (1.0, 9, 1.0)],
)
def test_few_clients_may_have_two_equal_shares(cap, n, expected):
    assert largest_share(cap, n) == expected


WEIGHTS = [
    # Egalitarian: u = 8, 1, 1, 2; the first is lowered to the 4 of the others.
    ({"theory": "egalitarian"}, {"uncertainties": [8.0, 1, 1, 2]}, (4 / 8, 1 / 8, 1 / 8, 2 / 8)),
    (
        {"theory": "egalitarian", "cap": 0.6},
        {"uncertainties": [8.0, 1, 1, 2]},
        (0.6, 0.1, 0.1, 0.2),
    ),
    ({"theory": "egalitarian", "cap": 1.0}, {"uncertainties": [8.0, 1, 1, 2]}, (8, 1, 1, 2)),
    # Utilitarian: 1/u = 8, 1, 1, 2.
    (
        {"theory": "utilitarian"},
        {"uncertainties": [1 / 8, 1, 1, 1 / 2]},
        (4 / 8, 1 / 8, 1 / 8, 2 / 8),
    ),
    # Rawls, exponent 6: u H^5 = 32, 1, 1, 1.
    (
        {"theory": "rawls"},
        {"uncertainties": [1.0] * 4, "losses": [2.0, 1, 1, 1]},
        (3 / 6, 1 / 6, 1 / 6, 1 / 6),
    ),
    # Desert, beta 1/4 each: H^(-5/4) = 32 for H = 1/16, else 1.
    (
        {"theory": "desert"},
        {"uncertainties": [1.0] * 4, "losses": [1 / 16, 1, 1, 1]},
        (3 / 6, 1 / 6, 1 / 6, 1 / 6),
    ),
    # Below the cap nothing changes.
    ({"theory": "egalitarian"}, {"uncertainties": [3.0, 1, 1, 2]}, (3, 1, 1, 2)),
]


@pytest.mark.parametrize(("params", "fields", "expected"), WEIGHTS)
def test_weights_by_hand(params, fields, expected):
    total = sum(expected)
    found = diagnostics_of(UDJ(**params), four_clients(**fields))["weight"]
    close(found, [share / total for share in expected])


def test_three_clients_by_hand():
    # 2/3 of three: 9 is lowered to 2 (1 + 1).
    reports = make_reports(
        torch.eye(3), losses=[1.0] * 3, uncertainties=[9.0, 1.0, 1.0], steps=[1] * 3
    )
    close(step_of(UDJ(theory="egalitarian"), reports), (4 / 6, 1 / 6, 1 / 6))


def test_two_clients_have_no_cap():
    reports = make_reports(torch.eye(2), losses=[1.0] * 2, uncertainties=[99.0, 1.0], steps=[1] * 2)
    close(step_of(UDJ(theory="egalitarian"), reports), (0.99, 0.01))


@pytest.mark.parametrize("step", ["paper", "authors"])
def test_the_published_rules_have_no_cap_unless_it_is_chosen(step):
    assert UDJ(theory="rawls", step=step).largest_share(4) == 1
    assert UDJ(theory="rawls", step=step, cap=0.7).largest_share(4) == 0.7
    reports = four_clients(losses=[2.0, 1, 1, 1], uncertainties=[1.0] * 4)
    rule = UDJ(theory="rawls", step=step)
    close(diagnostics_of(rule, reports)["weight"], (32 / 35, 1 / 35, 1 / 35, 1 / 35))
    assert rule.warning(reports.ids, diagnostics_of(rule, reports)) is None
    chosen = UDJ(theory="rawls", step=step, cap=0.5)
    close(diagnostics_of(chosen, reports)["weight"], (3 / 6, 1 / 6, 1 / 6, 1 / 6))


def test_clients_whose_loss_does_not_enter_leave_nothing_to_cap():
    # Exponent 0 for all but one, by choice: nobody else's weight could be raised.
    rule = UDJ(beta=(1.0, 0.0, 0.0, 0.0), gamma=0.0)
    diagnostics = diagnostics_of(rule, four_clients())
    close(diagnostics["weight"], (1, 0, 0, 0))
    assert diagnostics["capped"].tolist() == [0] * 4


# --- the warning ---


@pytest.mark.parametrize(
    ("params", "sentence"),
    [
        ({}, "UDJ-FL rawls: c2 would have more than 50% of the step and is held to that."),
        (
            {"cap": 0.75},
            "UDJ-FL rawls (cap=0.75): c2 would have more than 75% of the step and is held to that.",
        ),
        ({"cap": 1.0}, None),
    ],
)
def test_a_warning_says_who_is_capped(params, sentence):
    rule = UDJ(theory="rawls", **params)
    reports = four_clients(losses=[1.0, 1.0, 9.0, 1.0])
    diagnostics = diagnostics_of(rule, reports)
    assert diagnostics["capped"].tolist() == [0, 0, float(sentence is not None), 0]
    assert sentences_of(rule, reports, diagnostics) == ([] if sentence is None else [sentence])


def sentences_of(rule, reports, diagnostics):
    return [str(warning) for warning in rule.warning(reports.ids, diagnostics) or ()]


def test_a_warning_names_floor_and_cap():
    # u = 1e-9 counts as 0.006, so 1/u is 167 beside 2.5, 2 and 1.7.
    rule, reports = UDJ(theory="utilitarian"), four_clients(uncertainties=[1e-9, 0.4, 0.5, 0.6])
    assert sentences_of(rule, reports, diagnostics_of(rule, reports)) == [
        "UDJ-FL utilitarian: the uncertainty of c0 is below a hundredth of the largest and counts "
        "as that hundredth.",
        "UDJ-FL utilitarian: c0 would have more than 50% of the step and is held to that.",
    ]


def test_a_client_a_billionth_below_the_cap_is_not_held_to_it():
    # Egalitarian: weights as u, the first (1 - 4e-9) / (2 - 4e-9) = 1/2 - 1e-9.
    rule, third = UDJ(theory="egalitarian"), 1 / 3
    reports = four_clients(uncertainties=[1 - 4e-9, third, third, third])
    assert diagnostics_of(rule, reports)["capped"].tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("n", [1, 2])
def test_there_is_no_warning_where_there_is_no_cap(n):
    # One client has all weight, or one of two nearly all: that is no news.
    rule = UDJ(theory="rawls", beta=100.0)
    reports = random_reports(n, losses=[5.0, 0.1][:n])
    assert diagnostics_of(rule, reports)["weight"].max() > 1 - 1e-12
    assert rule.warning(reports.ids, diagnostics_of(rule, reports)) is None


def test_a_budget_records_the_cap_without_a_warning():
    # Its direction may well be one client, so the cap is part of the rule.
    rule = UDJ(theory="rawls", budget=0.0, limit=10.0)
    scores = {"scores": torch.full((4,), 0.9), "score_sizes": torch.full((4,), 50.0)}
    reports = four_clients(sizes=[1] * 4, extras=scores)
    diagnostics = diagnostics_of(rule, reports)
    assert diagnostics["capped"].sum() == 1
    assert rule.warning(reports.ids, diagnostics) is None


# --- lies and odd data ---

HONEST = [0.3, 0.4, 0.5, 0.6, 0.7]
LOSSES = [0.4, 0.5, 0.6, 0.7, 0.8]


def weights(theory: str, step: str, claim: float, loss: float, **params: Any) -> torch.Tensor:
    """Return the weights where the first of five clients claims this uncertainty and loss."""
    reports = random_reports(
        5, uncertainties=[claim, *HONEST[1:]], losses=[loss, *LOSSES[1:]], momentum=0.9
    )
    return diagnostics_of(UDJ(theory=theory, step=step, **params), reports)["weight"]


@pytest.mark.parametrize("theory", THEORIES)
@pytest.mark.parametrize("step", OURS)
@pytest.mark.parametrize("factor", [0.1, 10.0, 1e-30, 1e30, 1e-300])
def test_a_lie_about_the_uncertainty_moves_the_model_only_so_far(theory, step, factor):
    found = weights(theory, step, HONEST[0] * factor, LOSSES[0])
    assert float(found.sum()) == pytest.approx(1)
    assert float(found[0]) <= 0.5 * (1 + 1e-12)
    # And the others do not vanish beside each other: an honest one has the cap at most, too.
    assert float(found[1:].max()) <= 0.5 * (1 + 1e-12)


@pytest.mark.parametrize(
    ("theory", "factor"),
    [("egalitarian", 1e30), ("utilitarian", 1e-30), ("rawls", 1e30), ("desert", 0.1)],
)
def test_without_the_cap_the_same_lie_wins(theory, factor):
    free = weights(theory, "calibrated", HONEST[0] * factor, LOSSES[0], cap=1.0)
    assert free[0] > 0.8
    close(weights(theory, "calibrated", HONEST[0] * factor, LOSSES[0])[0], 0.5)


@pytest.mark.parametrize("theory", THEORIES)
@pytest.mark.parametrize("step", OURS)
def test_data_of_one_class_or_nearly_constant_move_the_model_only_so_far(theory, step):
    """A model of such data has neither uncertainty nor loss: desert would follow it alone."""
    found = weights(theory, step, 1e-7, 1e-9)
    assert float(found[0]) <= 0.5 * (1 + 1e-12)
    if theory == "desert":
        assert weights(theory, step, 1e-7, 1e-9, cap=1.0)[0] > 1 - 1e-9


def test_the_influence_of_a_liar_is_at_most_its_share():
    """Egalitarian: the others keep their shares of the rest, so the model moves by a half at most.

    Without the liar the step is m, the mean of the others; with it 1/2 (its update) + 1/2 m.
    """
    reports = random_reports(5, uncertainties=[1e30, *HONEST[1:]])
    others = torch.tensor(HONEST[1:], dtype=torch.float64)
    mean = (others / others.sum()) @ reports.deltas[1:]
    close(step_of(UDJ(theory="egalitarian"), reports), (reports.deltas[0] + mean) / 2, rtol=1e-9)


CLAIMS = st.one_of(st.floats(1e-4, 10), st.sampled_from([1e-300, 1e-30, 1e30, 1e300]))
ANY_LOSS = st.one_of(st.floats(0, 20), st.sampled_from([0.0, 1e-12, 1e9]))


@EXAMPLES
@given(
    clients=st.lists(st.tuples(CLAIMS, ANY_LOSS), min_size=1, max_size=9),
    cap=st.sampled_from([None, 0.5, 0.65, 1.0]),
    beta=st.sampled_from([0.0, 5.0, 1e5]),
)
def test_nobody_is_above_the_cap_whatever_clients_claim(clients, cap, beta):
    n = len(clients)
    claims, losses = (list(column) for column in zip(*clients, strict=True))
    reports = random_reports(n, uncertainties=claims, losses=losses, momentum=0.9)
    share = max(0.5 if cap is None else cap, min(1.0, 2 / n))
    rules = [UDJ(theory=theory, cap=cap) for theory in THEORIES]
    rules += [UDJ(theory=theory, cap=cap, beta=beta) for theory in ("rawls", "utilitarian")]
    for rule in rules:
        step, diagnostics = step_of(rule, reports), diagnostics_of(rule, reports)
        assert torch.isfinite(step).all(), rule
        assert float(diagnostics["weight"].sum()) == pytest.approx(1), rule
        assert float(diagnostics["weight"].max()) <= share * (1 + 1e-12), rule
        assert 0 < float(diagnostics["step_scale"]) <= 1 + 1e-12, rule
