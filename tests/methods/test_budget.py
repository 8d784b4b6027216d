"""Budgets: directions, prices, what is known of clients, the cap, and parameters, by hand.

Updates are the rows of the identity, so that a step is the clients' weights.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from method_helpers import EXAMPLES, close, make_reports
from torch import Tensor

from udjfl.errors import ReportError, SettingsError
from udjfl.methods import UDJ, Diagnostics, Reports, Setup, State, method
from udjfl.methods._udj_math import largest_share
from udjfl.methods.budget import (
    LARGEST_PRICE,
    BudgetLimits,
    budgeted_step,
    initial_state,
    least_advantaged,
    score_variance,
)

THEORIES = ("rawls", "egalitarian", "utilitarian", "desert")
NAN = math.nan


def scored(scores: list[float], round: int = 1, n: float = 100, **changes: Any) -> Reports:
    """Return reports with these scores of n examples each; all sizes and uncertainties are 1."""
    count = len(scores)
    fields: dict[str, Any] = {"sizes": [1] * count, "uncertainties": [1.0] * count, **changes}
    extras = {
        "scores": torch.tensor(scores, dtype=torch.float64),
        "score_sizes": torch.full((count,), float(n)),
    }
    return make_reports(torch.eye(count), extras=extras, round=round, **fields)


def start(n: int, reference: Any = None, alone: Any = None) -> State:
    """Return the state of n clients before round 1."""
    tables = [
        None if t is None else torch.tensor(t, dtype=torch.float64) for t in (reference, alone)
    ]
    ids = [f"c{i}" for i in range(n)]
    return initial_state(
        Setup(ids, torch.ones(n), torch.zeros(n), reference=tables[0], alone=tables[1])
    )


def one_round(
    state: State,
    reports: Reports,
    theory: str = "rawls",
    cap: float = 1.0,
    advantage: str = "uncertainty",
    **limits: Any,
) -> tuple[State, Tensor, Diagnostics]:
    """Play one round; unless a limit is given, the mean score may fall to 0."""
    values: dict[str, Any] = {"mean": 1.0, "caution": 0.0, **limits}
    largest = largest_share(cap, len(reports))
    return budgeted_step(state, reports, theory, advantage, BudgetLimits(**values), largest)


# --- directions ---


def direction_of(theory: str, reports: Reports, **others: Any) -> Tensor:
    return one_round(start(len(reports)), reports, theory, **others)[2]["direction"]


DIRECTIONS = [
    # Two clients. Uncertainties 1, 3; sizes 1, 3; scores 0.6, 0.8.
    # All on the more uncertain.
    ("rawls", [0.6, 0.8], [1, 3], [1.0, 3.0], (0, 1)),
    # Tilts 5 (0.7 - 0.6) = 1/2 and -1/2: 1/4 e^(1/2) : 3/4 e^(-1/2) = e : 3.
    ("egalitarian", [0.6, 0.8], [1, 3], [1.0, 3.0], (math.e / (math.e + 3), 3 / (math.e + 3))),
    # n/u = 1 and 1: alike.
    ("utilitarian", [0.6, 0.8], [1, 3], [1.0, 3.0], (1 / 2, 1 / 2)),
    # n/u^2 = 1 and 3/9.
    ("desert", [0.6, 0.8], [1, 3], [1.0, 3.0], (3 / 4, 1 / 4)),
    # Three clients. Uncertainties 1, 3, 2; sizes 1, 3, 1; scores 0.6, 0.8, 0.7.
    ("rawls", [0.6, 0.8, 0.7], [1, 3, 1], [1.0, 3.0, 2.0], (0, 1, 0)),
    # Tilts 1/2, -1/2, 0.
    (
        "egalitarian",
        [0.6, 0.8, 0.7],
        [1, 3, 1],
        [1.0, 3.0, 2.0],
        [
            w / (math.exp(0.5) + 3 * math.exp(-0.5) + 1)
            for w in (math.exp(0.5), 3 * math.exp(-0.5), 1)
        ],
    ),
    # n/u = 1, 1, 1/2.
    ("utilitarian", [0.6, 0.8, 0.7], [1, 3, 1], [1.0, 3.0, 2.0], (2 / 5, 2 / 5, 1 / 5)),
    # n/u^2 = 1, 3/9, 1/4, or 12 : 4 : 3.
    ("desert", [0.6, 0.8, 0.7], [1, 3, 1], [1.0, 3.0, 2.0], (12 / 19, 4 / 19, 3 / 19)),
    # A tiny uncertainty counts as a hundredth of the largest, so 100 : 1, and squared 10^4 : 1.
    ("utilitarian", [0.5, 0.5], [1, 1], [1e-9, 1.0], (100 / 101, 1 / 101)),
    ("desert", [0.5, 0.5], [1, 1], [1e-9, 1.0], (10_000 / 10_001, 1 / 10_001)),
]


@pytest.mark.parametrize(("theory", "scores", "sizes", "uncertainties", "expected"), DIRECTIONS)
def test_directions_by_hand(theory, scores, sizes, uncertainties, expected):
    reports = scored(scores, sizes=sizes, uncertainties=uncertainties)
    close(direction_of(theory, reports), expected)


@pytest.mark.parametrize(
    ("advantage", "expected"),
    # Most uncertain is the first, lowest alone the second, lowest under FedAvg the third.
    [("uncertainty", (1, 0, 0)), ("alone", (0, 1, 0)), ("fedavg", (0, 0, 1))],
)
def test_the_least_advantaged_by_choice(advantage, expected):
    state = start(3, reference=[[0.9, 0.8, 0.7]], alone=[0.8, 0.6, 0.7])
    reports = scored([0.5, 0.5, 0.5], uncertainties=[3.0, 1.0, 2.0])
    close(one_round(state, reports, advantage=advantage)[2]["direction"], expected)


def test_of_equally_disadvantaged_clients_the_first_counts():
    close(direction_of("rawls", scored([0.5] * 3, uncertainties=[1.0, 2.0, 2.0])), (0, 1, 0))


def test_of_many_alike_the_first_are_the_least_advantaged():
    assert least_advantaged(torch.ones(40)).tolist() == [0, 1, 2, 3]


def test_a_client_of_whom_nothing_is_known_is_not_the_least_advantaged():
    # Of scores alone, which count the other way: 0.5, unknown and 0.7.
    assert least_advantaged(torch.tensor([-0.5, NAN, -0.7])).tolist() == [0]


@pytest.mark.parametrize(("n", "count"), [(1, 1), (20, 1), (21, 2), (30, 3), (39, 3)])
def test_of_more_than_twenty_clients_the_least_advantaged_are_a_tenth(n, count):
    # The last clients are the most uncertain; they share alike, whatever their sizes.
    reports = scored(
        [0.5] * n,
        ids=[f"c{i:02}" for i in range(n)],
        sizes=list(range(1, n + 1)),
        uncertainties=[1.0 + i for i in range(n)],
    )
    close(direction_of("rawls", reports), [0.0] * (n - count) + [1 / count] * count)


def test_tilts_add_up_and_end_at_five():
    # Scores 0.2 and 0.8: tilts 5 (0.5 - 0.2) = 1.5 and -1.5, then 3 and -3, 4.5, and 5 at last.
    state, expected = start(2), [1.5, 3.0, 4.5, 5.0, 5.0]
    for round, tilt in enumerate(expected, start=1):
        state, _, diagnostics = one_round(state, scored([0.2, 0.8], round), "egalitarian")
        close(state["tilts"], (tilt, -tilt))
        close(diagnostics["direction"][0], 1 / (1 + math.exp(-2 * tilt)))


def test_tilts_of_absent_clients_stay():
    state, _, _ = one_round(start(3), scored([0.4, 0.5, 0.6]), "egalitarian")
    close(state["tilts"], (0.5, 0.0, -0.5), atol=1e-15)
    # Only c0 reports: 0.4 is smoothed with 0.4, and the mean over all three is still 0.5.
    state, _, _ = one_round(state, scored([0.4], 2, client_indices=[0]), "egalitarian")
    close(state["tilts"], (1.0, 0.0, -0.5), atol=1e-15)


# --- the price of the mean ---


def test_two_clients_by_hand():
    # Sizes 1, 3; b is the least advantaged: d = (0, 1). FedAvg has the mean 0.8, so 0.78 is to be
    # kept, and the mean is 0.8: the price 1 falls by 5 * 0.02 to 0.9.
    # v = (0.9/4, 1 + 0.9 * 3/4) = (0.225, 1.675); sum 1.9.
    reports = scored([0.9, 0.7], sizes=[1, 3], uncertainties=[1.0, 3.0])
    state, step, diagnostics = one_round(start(2, [[0.85, 0.75]]), reports, mean=0.02)
    close(step, (0.225 / 1.9, 1.675 / 1.9))
    close(diagnostics["weight"], (0.225 / 1.9, 1.675 / 1.9))
    close(diagnostics["price"], 0.9)
    close(diagnostics["violation"], -0.02)
    assert diagnostics["client_price"].tolist() == [0, 0]
    close(state["price"], 0.9)


def test_three_clients_by_hand():
    # Egalitarian, sizes alike, scores 0.6, 0.8, 0.7: d as above with tilts 1/2, -1/2, 0. FedAvg has
    # the mean 0.9, less 0.05 is 0.85, and the mean is 0.7: the price is 1 + 5 * 0.15 = 1.75.
    weights = torch.tensor([0.5, -0.5, 0.0], dtype=torch.float64).exp()
    expected = (weights / weights.sum() + 1.75 / 3) / 2.75
    reports = scored([0.6, 0.8, 0.7])
    _, step, diagnostics = one_round(start(3, [[0.9] * 3]), reports, "egalitarian", mean=0.05)
    close(diagnostics["price"], 1.75)
    close(step, expected)


def test_a_price_rises_while_the_limit_is_violated_and_falls_while_there_is_slack():
    # 0.78 to keep. Score 0.7: +5 * 0.08 each. Then 0.86 and more, smoothed 0.78 (0), 0.82, 0.84.
    state, prices = start(2, [[0.8, 0.8]]), []
    for round, score in enumerate([0.7, 0.7, 0.86, 0.86, 0.86], start=1):
        state, _, _ = one_round(state, scored([score, score], round), mean=0.02)
        prices.append(float(state["price"]))
    assert prices == pytest.approx([1.4, 1.8, 1.8, 1.6, 1.3])


def test_a_price_stays_within_zero_and_the_largest():
    state = start(2, [[0.9, 0.9]])
    down, _, diagnostics = one_round(state, scored([1.0, 1.0]), mean=0.5)  # -0.6 * 5
    assert float(down["price"]) == 0
    assert float(diagnostics["violation"]) == pytest.approx(-0.6)
    prices = []
    for round in range(1, 7):  # 0.88 - 0, times 5: 4.4 a round
        state, _, _ = one_round(state, scored([0.0, 0.0], round), mean=0.02)
        prices.append(float(state["price"]))
    assert prices == pytest.approx([5.4, 9.8, 14.2, 18.6, 20.0, 20.0])


def test_a_limit_that_cannot_be_met_ends_near_fedavg_and_the_run_says_so():
    rule = UDJ(theory="rawls", budget=2.0, cap=1.0)
    setup = Setup("ab", torch.ones(2), torch.zeros(2), reference=torch.tensor([[0.9, 0.9]]))
    state = rule.init(setup)
    sentences = []
    for round in range(1, 7):
        reports = scored([0.0, 0.0], round, ids=["a", "b"], sizes=[1, 3], uncertainties=[2.0, 1.0])
        state, step, diagnostics = rule.aggregate(state, reports)
        sentences.append(rule.warning(reports.ids, diagnostics))
    # d = (1, 0) and 20 times FedAvg's (1/4, 3/4): 6/21 and 15/21.
    close(step, (6 / 21, 15 / 21))
    assert sentences[:4] == [None] * 4
    assert sentences[-1] == [
        "UDJ-FL rawls (cap=1, budget=2): the limit on the mean score cannot be met, so the step is "
        "nearly FedAvg's."
    ]


def test_without_a_violated_limit_the_price_vanishes_and_the_theory_is_alone():
    # The mean may fall by all: 0.9 - 1 - 0.9 = -1, so the price is 0 at once.
    _, step, diagnostics = one_round(start(3, [[0.9] * 3]), scored([0.9] * 3), mean=1.0)
    assert float(diagnostics["price"]) == 0
    close(step, (1, 0, 0), atol=1e-90)


def test_an_absolute_limit_needs_no_reference():
    # 0.8 to keep, the mean is 0.7: 1 + 5 * 0.1.
    state, _, _ = one_round(start(2), scored([0.6, 0.8]), mean=0.02, absolute=0.8)
    close(state["price"], 1.5)


def test_an_absolute_limit_counts_also_where_there_is_a_reference():
    state, _, _ = one_round(start(2, [[0.1, NAN]]), scored([0.6, 0.8]), mean=0.02, absolute=0.8)
    close(state["price"], 1.5)


# --- caution ---


def test_caution_by_hand():
    # Scores 1/2 of 50 examples: e^2 = (1/4 / 50 + 1/4 / 50) / 2^2 = 0.0025, so 2 e = 0.1.
    # Absolute: 0.5 + 0.1 - 0.5, times 5.
    halves = scored([0.5, 0.5], n=50)
    state, _, _ = one_round(start(2), halves, mean=0.0, absolute=0.5, caution=2.0)
    close(state["price"], 1.5)
    # From FedAvg, with a budget of 0.15: 0.5 - 0.15 + 0.1 - 0.5 = -0.05.
    state, _, _ = one_round(start(2, [[0.5, 0.5]]), halves, mean=0.15, caution=2.0)
    close(state["price"], 0.75)


def test_caution_of_a_regression_by_hand():
    # R^2 of 1/2 and -1/2 of 50 examples: e^2 = (2 / 4 / 50 + 2 * 9 / 4 / 50) / 2^2 = 0.025.
    # Absolute: 0 + 2 e - 0, times 5.
    reports = scored([0.5, -0.5], n=50, is_regression=True)
    state, _, _ = one_round(start(2), reports, mean=0.0, absolute=0.0, caution=2.0)
    close(state["price"], 1 + 5 * 2 * math.sqrt(0.025))


def test_the_variance_of_a_score_by_hand():
    # 1/2 (1 - 1/2) / 8 of an accuracy; 2 (1 - 1/2)^2 / 8 of R^2.
    half, eight = (torch.tensor([x], dtype=torch.float64) for x in (0.5, 8.0))
    assert score_variance(half, eight, is_regression=False).tolist() == [1 / 32]
    assert score_variance(half, eight, is_regression=True).tolist() == [1 / 16]


def test_caution_asks_for_no_more_than_fedavg_has():
    # 2 e = 0.1 is more than the budget of 0.02: FedAvg's own mean is to be kept, and it is.
    state, _, _ = one_round(
        start(2, [[0.5, 0.5]]), scored([0.5, 0.5], n=50), mean=0.02, caution=2.0
    )
    close(state["price"], 1.0)


def test_a_budget_below_what_caution_asks_for_is_told_with_the_numbers() -> None:
    """Two clients with 50 of 100 right: e = sqrt(2 * 0.25 / 100) / 2 = 3.54 points, z e = 7.07."""
    rule = method("rawls", budget=2.0)
    state, _, _ = rule.aggregate(start(2, reference=[[0.5, 0.5]]), scored([0.5, 0.5]))
    (note,) = rule.final_notes(state)
    assert note.startswith("budget=2: the scores of 200 examples cannot tell 2 points from chance")
    assert "(about 7.1 would be needed)" in note
    assert "every budget below 7.1 does the same" in note
    for quiet in ({"budget": 7.2}, {"budget": 2.0, "caution": 0.0}, {"budget": 2.0, "limit": 50.0}):
        other = method("rawls", **quiet)
        after, _, _ = other.aggregate(start(2, reference=[[0.5, 0.5]]), scored([0.5, 0.5]))
        assert other.final_notes(after) == []
    # A later round with surer scores: from there on the budget has an effect.
    state, _, _ = rule.aggregate(state, scored([0.5, 0.5], round=2, n=10_000))
    assert rule.final_notes(state) == []
    assert rule.final_notes(start(2)) == []  # no round at all
    assert method("rawls").final_notes({}) == []  # no budget


def test_a_state_of_version_0_1_0_goes_on_without_the_margin() -> None:
    rule = method("rawls", budget=2.0)
    state = start(2, reference=[[0.5, 0.5]])
    del state["least_margin"]
    assert rule.final_notes(state) == []
    state, _, _ = rule.aggregate(state, scored([0.5, 0.5]))
    assert rule.final_notes(state)
    assert state["least_margin"].dtype == torch.float64


def test_a_budget_as_large_as_what_caution_asks_for_is_not_swallowed() -> None:
    rule = method("rawls", budget=50.0)
    state = {**start(2), "least_margin": torch.tensor(0.5, dtype=torch.float64)}
    assert rule.final_notes(state) == []


def test_caution_is_about_all_clients_known_so_far():
    # Round 2: one of two clients reports, and e is still of both.
    state, _, _ = one_round(start(2), scored([0.5, 0.5], n=50), absolute=0.5, mean=0.0)
    close(state["price"], 1.0)
    reports = scored([0.5], 2, n=50, client_indices=[1])
    state, _, _ = one_round(state, reports, absolute=0.5, mean=0.0, caution=2.0)
    close(state["price"], 1.5)


def test_sure_scores_need_no_caution():
    state, _, _ = one_round(start(2), scored([1.0, 0.0], n=1), absolute=0.5, mean=0.0, caution=9.0)
    close(state["price"], 1.0)


# --- what is known of clients ---


def test_scores_are_smoothed_by_half():
    state, seen = start(1), []
    for round, score in enumerate([0.8, 0.6, 0.6], start=1):
        state, _, _ = one_round(state, scored([score], round))
        seen.append(float(state["scores"][0]))
    assert seen == pytest.approx([0.8, 0.7, 0.65])


def test_the_reference_is_smoothed_alike_and_its_last_round_stays():
    # 0.4, then 0.8: 0.6; from there on the last row: 0.7, 0.75.
    state, seen = start(1, [[0.4], [0.8]]), []
    for round in range(1, 5):
        state, _, _ = one_round(state, scored([0.5], round))
        seen.append(float(state["reference_scores"][0]))
    assert seen == pytest.approx([0.4, 0.6, 0.7, 0.75])
    # Reports that count rounds from 0 are compared with the first row too.
    state, _, _ = one_round(start(1, [[0.4], [0.8]]), scored([0.5], round=0))
    close(state["reference_scores"], [0.4])


def test_before_round_one_nothing_is_known_and_all_in_double_precision():
    state = start(2)
    assert state["reference"].shape == (0, 2)
    assert all(value.dtype == torch.float64 for value in state.values())
    for name in ("scores", "score_sizes", "reference_scores", "uncertainties", "alone"):
        assert state[name].isnan().tolist() == [True, True], name


def test_a_client_without_a_reference_is_left_out_of_both_means():
    # Over c0 alone: 0.8 - 0.02 - 0.7 = 0.08.
    state, _, _ = one_round(start(2, [[0.8, NAN]]), scored([0.7, 0.0]), mean=0.02)
    close(state["price"], 1.4)


def test_an_unknown_reference_leaves_the_prices_as_they_are():
    state, _, diagnostics = one_round(
        start(2, [[NAN, NAN]]), scored([0.1, 0.9]), mean=0.02, client=0.0
    )
    assert float(state["price"]) == 1
    assert float(diagnostics["violation"]) == 0
    assert diagnostics["violation"].dtype == torch.float64
    assert state["client_prices"].tolist() == [0, 0]


def test_a_reference_known_before_stays_known():
    state, _, _ = one_round(start(1, [[0.6], [NAN]]), scored([0.5]))
    state, _, _ = one_round(state, scored([0.5], 2))
    close(state["reference_scores"], [0.6])


def test_the_mean_is_over_all_clients_that_have_reported():
    # c2 has not reported yet: (0.6 + 0.8)/2 against 0.9 - 0.1. Then c0 has (0.6 + 1)/2 = 0.8: no
    # violation.
    state = start(3, [[0.9] * 3])
    state, _, diagnostics = one_round(state, scored([0.6, 0.8], client_indices=[0, 1]), mean=0.1)
    close(diagnostics["violation"], 0.1)
    state, _, diagnostics = one_round(state, scored([1.0], 2, client_indices=[0]), mean=0.1)
    close(diagnostics["violation"], 0.0, atol=1e-15)
    assert torch.isnan(state["scores"]).tolist() == [False, False, True]


def test_while_the_least_advantaged_are_absent_the_direction_is_fedavgs():
    everyone = scored([0.5] * 3, sizes=[1, 3, 4], uncertainties=[1.0, 2.0, 3.0])
    state, _, diagnostics = one_round(start(3), everyone)
    close(diagnostics["direction"], (0, 0, 1))
    some = scored([0.5] * 2, 2, sizes=[1, 3], uncertainties=[1.0, 2.0], client_indices=[0, 1])
    state, _, diagnostics = one_round(state, some)
    close(diagnostics["direction"], (1 / 4, 3 / 4))
    # Before it has ever reported, nobody knows: of those that have, c1 is the most uncertain.
    _, _, diagnostics = one_round(start(3), some)
    close(diagnostics["direction"], (0, 1))


def test_if_nobody_is_known_to_be_least_advantaged_the_direction_is_fedavgs():
    reports = scored([0.5, 0.5], sizes=[1, 3])
    _, _, diagnostics = one_round(start(2, [[NAN, NAN]]), reports, advantage="fedavg")
    close(diagnostics["direction"], (1 / 4, 3 / 4))


# --- prices of single clients ---


def test_client_budgets_by_hand():
    # Floors 0.9 - 0.1 = 0.8 and 0.5 - 0.1 = 0.4; c0 is 0.1 below, c1 above: prices 0.5 and 0.
    # The mean is 0.65, to be kept is 0.7 - 0.05: its price stays 1. With d = (0, 1)
    # v = 0 + 1/2 + 1/2 and 1 + 1/2 + 0.
    reports = scored([0.7, 0.6], uncertainties=[1.0, 2.0])
    state, step, diagnostics = one_round(start(2, [[0.9, 0.5]]), reports, mean=0.05, client=0.1)
    close(state["client_prices"], (0.5, 0.0))
    close(diagnostics["client_price"], (0.5, 0.0))
    close(step, (1 / 2.5, 1.5 / 2.5))
    # Next, c0 has (0.7 + 1)/2 = 0.85, which is 0.05 above: 0.5 - 0.25.
    state, _, _ = one_round(state, scored([1.0, 0.6], 2), client=0.1)
    close(state["client_prices"], (0.25, 0.0))


def test_a_floor_of_clients_alone_by_hand():
    state, _, _ = one_round(start(2, alone=[0.8, 0.4]), scored([0.7, 0.6]), alone=True)
    close(state["client_prices"], (0.5, 0.0))


@pytest.mark.parametrize("limits", [{}, {"client": 0.9}])
def test_the_price_of_a_client_far_above_its_floor_or_without_one_falls_by_five(limits):
    # The floor 0.1 - 0.9 is 1.8 below the score.
    prices = torch.tensor([15.0], dtype=torch.float64)
    state = {**start(1, [[0.1]]), "client_prices": prices}
    state, _, _ = one_round(state, scored([1.0]), **limits)
    close(state["client_prices"], [10.0])


def test_scores_alone_are_those_that_the_rule_is_held_to_or_chooses_by():
    state = start(2, alone=[0.6, 0.7])
    for params in ({"floor": "alone"}, {"advantage": "alone"}):
        rule = UDJ(theory="rawls", budget=2, **params)
        assert rule.scores_alone(state).tolist() == [0.6, 0.7]
    assert UDJ(theory="rawls", budget=2).scores_alone(state) is None


def test_of_two_floors_the_higher_counts():
    # Floors 0.8 and 0.75 from FedAvg, 0.7 and 0.85 alone; scores 0.7: 0.1 and 0.15 below.
    start_state = start(2, [[0.9, 0.85]], alone=[0.7, 0.85])
    state, _, _ = one_round(start_state, scored([0.7, 0.7]), client=0.1, alone=True)
    close(state["client_prices"], (0.5, 0.75))
    # Where one of the two is unknown, the other counts; where both are, there is no price.
    start_state = start(2, [[NAN, NAN]], alone=[0.8, NAN])
    state, _, _ = one_round(start_state, scored([0.7, 0.7]), client=0.1, alone=True)
    close(state["client_prices"], (0.5, 0.0))


def test_a_floor_that_cannot_be_met_ends_at_the_largest_price_and_the_run_says_so():
    # 1 - 0 below, times 5: at 20 after four rounds.
    rule = UDJ(theory="desert", budget=100.0, client_budget=0.0, cap=1.0)
    setup = Setup("ab", torch.ones(2), torch.zeros(2), reference=torch.tensor([[1.0, 0.5]]))
    state = rule.init(setup)
    for round in range(1, 5):
        reports = scored([0.0, 0.9], round, ids=["a", "b"])
        state, step, diagnostics = rule.aggregate(state, reports)
        sentences = rule.warning(reports.ids, diagnostics) or []
        assert len(sentences) == (round == 4)
    close(state["client_prices"], (20.0, 0.0))
    close(step, (20.5 / 21, 0.5 / 21))
    assert str(sentences[0]).endswith(": the limit on the score of a cannot be met.")


def test_the_price_of_an_absent_client_waits_for_it():
    state, _, _ = one_round(start(2, [[0.9, 0.9]]), scored([0.7, 0.7]), client=0.1)
    close(state["client_prices"], (0.5, 0.5))
    state, _, _ = one_round(state, scored([0.7], 2, client_indices=[0]), client=0.1)
    close(state["client_prices"], (1.0, 0.5))


# --- the cap ---


def test_the_cap_by_hand():
    # Price 0 and d = (1, 0, 0, 0): one half, and the others share the rest by size, 1 : 2 : 3.
    reports = scored([0.9] * 4, sizes=[9, 1, 2, 3], uncertainties=[2.0, 1.0, 1.0, 1.0])
    state = start(4, [[0.9] * 4])
    _, step, diagnostics = one_round(state, reports, cap=0.5, mean=1.0)
    close(step, (6 / 12, 1 / 12, 2 / 12, 3 / 12))
    assert diagnostics["capped"].tolist() == [1, 0, 0, 0]
    # With cap 0.8, and with none.
    close(one_round(state, reports, cap=0.8, mean=1.0)[1], (24 / 30, 1 / 30, 2 / 30, 3 / 30))
    close(one_round(state, reports, cap=1.0, mean=1.0)[1], (1, 0, 0, 0), atol=1e-90)


def test_the_rest_goes_to_the_others_in_proportion_to_their_prices():
    # Price 0, d = (1, 0, 0, 0), prices of c1 and c2 0.1 and 0.3: 1 is lowered to 0.4.
    state = start(4, alone=[0.0, 0.92, 0.96, 0.0])
    reports = scored([0.9] * 4, uncertainties=[2.0, 1.0, 1.0, 1.0])
    _, step, diagnostics = one_round(state, reports, cap=0.5, mean=0.0, absolute=0.1, alone=True)
    close(diagnostics["client_price"], (0.0, 0.1, 0.3, 0.0))
    close(step, (4 / 8, 1 / 8, 3 / 8, 0), atol=1e-90)


@pytest.mark.parametrize(("n", "share"), [(1, 1.0), (2, 1.0), (3, 2 / 3), (4, 0.5), (9, 0.5)])
def test_of_fewer_than_four_clients_one_may_have_more(n, share):
    reports = scored([0.9] * n, uncertainties=[2.0, *[1.0] * (n - 1)])
    _, step, _ = one_round(start(n), reports, cap=0.5, mean=0.0, absolute=0.1)
    close(step[0], share)


def test_a_client_with_just_the_largest_share_is_not_held_to_it():
    # The limit is just met, so the price stays 1: v = (1 + 1) (1/2, 1/4, 1/4).
    limits = BudgetLimits(mean=0.0, absolute=0.5, caution=0.0)
    reports = scored([0.5] * 3, sizes=[2, 1, 1])
    _, step, diagnostics = budgeted_step(
        start(3), reports, "utilitarian", "uncertainty", limits, largest=0.5
    )
    close(step, (0.5, 0.25, 0.25))
    assert diagnostics["capped"].tolist() == [0, 0, 0]


def test_below_the_cap_nothing_changes():
    # Price 2 over four clients: 1 + 2/4 of 3 is exactly one half.
    reports = scored([0.5] * 4, uncertainties=[2.0, 1.0, 1.0, 1.0])
    state = start(4, [[0.7] * 4])
    capped, free = (one_round(state, reports, cap=cap, mean=0.0)[1] for cap in (0.5, 1.0))
    close(capped, free)
    close(free, (3 / 6, 1 / 6, 1 / 6, 1 / 6))


# --- lies and extremes ---

CLAIMS = st.sampled_from([1e-300, 1e-9, 0.03, 0.3, 1.0, 3.0, 10.0, 1e30, 1e300])
SCORES = st.sampled_from([0.0, 1.0, 0.5, 0.7, 0.99])


@EXAMPLES
@given(
    clients=st.lists(st.tuples(CLAIMS, SCORES, st.integers(1, 10**6)), min_size=1, max_size=25),
    rounds=st.integers(1, 8),
    cap=st.sampled_from([0.5, 0.7, 1.0]),
    reference=st.sampled_from([0.0, 0.8, 1.0]),
)
def test_weights_are_shares_and_nobody_is_above_the_cap_whatever_clients_claim(
    clients, rounds, cap, reference
):
    n = len(clients)
    claims, scores, sizes = (list(column) for column in zip(*clients, strict=True))
    share = max(cap, min(1.0, 2 / n))
    limits = {"mean": 0.02, "client": 0.01, "alone": True, "caution": 2.0}
    for theory in THEORIES:
        state = start(n, [[reference] * n], alone=[reference] * n)
        for round in range(1, rounds + 1):
            reports = scored(scores, round, sizes=sizes, uncertainties=claims)
            state, step, diagnostics = one_round(state, reports, theory, cap, **limits)
            weights = diagnostics["weight"]
            assert torch.isfinite(step).all(), theory
            assert float(weights.sum()) == pytest.approx(1, rel=1e-12)
            assert float(weights.min()) >= 0
            assert float(weights.max()) <= share * (1 + 1e-12)
            for name in ("price", "client_prices"):
                assert 0 <= float(state[name].min()) <= float(state[name].max()) <= LARGEST_PRICE


@EXAMPLES
@given(data=st.data(), theory=st.sampled_from(THEORIES))
def test_the_order_of_clients_changes_no_bit_over_several_rounds(data, theory):
    n = 6
    column = st.lists(st.floats(0.05, 1), min_size=n, max_size=n)
    states = [start(n, [[0.8] * n])] * 2
    for round in (1, 2, 3):
        scores, claims = data.draw(column), data.draw(column)
        order = data.draw(st.permutations(range(n)))
        fields = {"ids": [f"c{i}" for i in range(n)], "uncertainties": claims, "sizes": [3.0] * n}
        reports = scored(scores, round, **fields)
        picked = {name: [values[i] for i in order] for name, values in fields.items()}
        shuffled = make_reports(
            torch.eye(n)[list(order)],
            extras={name: value[list(order)] for name, value in reports.extras.items()},
            round=round,
            client_indices=list(order),
            **picked,
        )
        (state, step, _), (other_state, other_step, _) = (
            one_round(state, r, theory, 0.5, mean=0.02, client=0.05)
            for state, r in zip(states, (reports, shuffled), strict=True)
        )
        assert torch.equal(step, other_step)
        states = [state, other_state]
        for name in ("price", "client_prices", "tilts", "scores", "uncertainties"):
            assert torch.equal(state[name], other_state[name]), name


def test_a_liar_about_its_score_has_a_bounded_effect_on_the_mean():
    # One of five claims 0 where it has 0.8: the mean is 0.16 lower, and the price rises by 0.8 a
    # round until the step is nearly FedAvg's. It cannot take more than that from the others.
    state = start(5, [[0.8] * 5])
    for round in range(1, 31):
        reports = scored([0.0, 0.8, 0.8, 0.8, 0.8], round, uncertainties=[1, 1, 1, 1, 2])
        state, step, _ = one_round(state, reports, cap=0.5, mean=0.0)
    close(state["price"], LARGEST_PRICE)
    close(step, [4 / 21] * 4 + [5 / 21])


# --- the method ---


def test_the_text_of_a_method_with_a_budget():
    rule = method("udj", theory="rawls", budget="2", client_budget="0.5", floor="alone")
    assert isinstance(rule, UDJ)
    assert rule.limits == BudgetLimits(mean=0.02, client=0.005, alone=True, caution=2.0)
    assert rule.label == "UDJ-FL rawls (budget=2, client_budget=0.5, floor=alone)"
    assert method("rawls", budget=2.0).label == "UDJ-FL rawls (budget=2)"
    assert UDJ(theory="rawls").limits is None
    assert UDJ(theory="rawls", budget=0.0, limit=80.0, caution=0.0).limits == BudgetLimits(
        mean=0.0, absolute=0.8, caution=0.0
    )


@pytest.mark.parametrize(
    ("params", "reference", "alone"),
    [
        ({}, True, False),
        ({"limit": 80.0}, False, False),
        ({"limit": 80.0, "client_budget": 1.0}, True, False),
        ({"limit": 80.0, "advantage": "fedavg"}, True, False),
        ({"advantage": "alone"}, True, True),
        ({"limit": 80.0, "floor": "alone"}, False, True),
    ],
)
def test_what_a_budget_is_measured_from_is_declared_and_asked_for(params, reference, alone):
    rule = UDJ(theory="rawls", budget=2.0, **params)
    assert (rule.needs_reference, rule.needs_alone) == (reference, alone)
    setup = Setup("ab", torch.ones(2), torch.zeros(2))
    tables = {"reference": torch.tensor([[0.5, 0.5]]), "alone": torch.tensor([0.5, 0.5])}
    needed = [name for name, need in (("reference", reference), ("alone", alone)) if need]
    for left_out in needed:
        given = {name: tables[name] for name in needed if name != left_out}
        message = {"reference": "budget: is measured from FedAvg", "alone": "set holdout"}[left_out]
        with pytest.raises(SettingsError, match=message):
            rule.init(Setup(setup.ids, setup.sizes, setup.model, **given))
    rule.init(Setup(setup.ids, setup.sizes, setup.model, **{name: tables[name] for name in needed}))


def test_without_a_budget_nothing_is_measured_from_anything():
    for theory in THEORIES:
        rule = UDJ(theory=theory)
        assert not rule.needs_reference
        assert not rule.needs_alone
        assert rule.init(Setup("ab", torch.ones(2), torch.zeros(2))) == {}


def test_a_budget_needs_scores_of_every_client():
    rule = UDJ(theory="rawls", budget=0.0, limit=80.0)
    assert rule.needs == {"scores", "score_sizes", "sizes", "uncertainties"}
    state = rule.init(Setup("ab", torch.ones(2), torch.zeros(2)))
    with pytest.raises(ReportError, match="score_sizes was left out"):
        rule.aggregate(state, make_reports(torch.eye(2), sizes=[1, 1], uncertainties=[1, 1]))


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"theory": "rawls", "budget": -1}, "budget: must be at least 0"),
        ({"theory": "rawls", "budget": 101}, "budget: must be at most 100"),
        ({"theory": "rawls", "budget": "two"}, "budget: "),
        ({"theory": "rawls", "budget": math.inf}, "budget: "),
        (
            {"theory": "rawls", "budget": 2, "client_budget": -1},
            "client_budget: must be at least 0",
        ),
        ({"theory": "rawls", "budget": 2, "limit": 0}, "limit: must be more than 0"),
        ({"theory": "rawls", "budget": 2, "limit": 100}, "limit: must be less than 100"),
        ({"theory": "rawls", "budget": 2, "floor": "fedavg"}, "floor: .*alone"),
        ({"theory": "rawls", "budget": 2, "caution": 11}, "caution: must be at most 10"),
        ({"theory": "rawls", "budget": 2, "advantage": "loss"}, "advantage: .*fedavg"),
        ({"theory": "rawls", "budget": 2, "cap": 0.4}, "cap: must be at least 0.5"),
        ({"theory": "rawls", "cap": 1.1}, "cap: must be at most 1"),
        ({"budget": 2}, "a budget needs a theory, as in theory=rawls"),
        ({"budget": 0}, "a budget needs a theory, as in theory=rawls"),
        ({"budget": 2, "beta": 1, "gamma": 1}, "a budget needs a theory"),
        ({"theory": "rawls", "budget": 2, "beta": 1}, "beta has no effect with a budget"),
        ({"theory": "rawls", "budget": 2, "gamma": 1}, "gamma has no effect with a budget"),
        ({"theory": "rawls", "budget": 2, "r": 1}, "r has no effect with a budget"),
        ({"theory": "rawls", "budget": 2, "step": "paper"}, "step has no effect with a budget"),
        ({"theory": "desert", "budget": 2, "advantage": "alone"}, "advantage is a choice of rawls"),
        ({"theory": "rawls", "client_budget": 2}, "client_budget applies to a budget; give one"),
        ({"theory": "rawls", "floor": "alone"}, "floor applies to a budget; give one"),
        ({"theory": "rawls", "limit": 80}, "limit applies to a budget; give one"),
        ({"theory": "rawls", "advantage": "alone"}, "advantage applies to a budget; give one"),
        (
            {"theory": "rawls", "caution": 1},
            "caution applies to a budget; give one, as in budget=2",
        ),
    ],
)
def test_parameters_without_meaning_are_refused(params, message):
    with pytest.raises(SettingsError, match=f"^udj: {message}"):
        method("udj", **params)
