"""Verdicts: each kind by hand, and that harm is never called a success."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paired_runs import CLIENTS, UNCERTAINTIES, make_runs

from udjfl.methods import THEORIES
from udjfl.metrics import Outcome
from udjfl.statistics import PairedTest, seeds_needed
from udjfl.tasks import SCORES
from udjfl.verdicts import (
    KINDS,
    PairedRuns,
    Promise,
    Verdict,
    collect_evidence,
    judge,
    left_out_reason,
)
from udjfl.verdicts.judge import decide, find_payers


def verdict(theory: str, runs: PairedRuns, budget: float = 2.0) -> Verdict:
    """Judge one method alone: nothing to correct for."""
    (one,) = judge([collect_evidence(theory, runs, budget)])
    return one


# --- Rawls: gains of client-5, the most uncertain, and of the others


@pytest.mark.parametrize(
    ("gains", "kind"),
    [
        ((0, 0, 0, 0, 4), "kept"),
        # Mean (4 * -2 + 6) / 5 = -0.4: not over the budget, but four clients pay.
        ((-2, -2, -2, -2, 6), "kept at a price"),
        # Mean (4 * -4 + 6) / 5 = -2, exactly the budget; then a little more.
        ((-4, -4, -4, -4, 6), "kept at a price"),
        ((-4.1, -4, -4, -4, 6), "over budget"),
        # Psi rises by 4 either way.
        ((-4, -4, -4, -4, 0), "levelled down"),
        ((-6, -6, -6, -6, -2), "levelled down"),
        ((1, -6, -6, -6, -2), "levelled down"),  # somebody gains, but not whom Rawls has in mind
        ((0, 0, 0, 0, -4), "opposite"),
        ((4, 4, 4, 4, 0), "opposite"),
        ((0, 0, 0, 0, 0), "not decided"),
    ],
)
def test_rawls_by_hand(gains: Sequence[float], kind: str) -> None:
    assert verdict("rawls", make_runs(gains)).kind == kind


def test_a_rise_that_seeds_do_not_agree_on_is_not_decided() -> None:
    """Client-5 gains 1, give or take 3.2: mean 1, s = sqrt(10 / 4) * 2 = 3.16 over five seeds."""
    runs = make_runs((0, 0, 0, 0, 0), wiggle=0.0)
    gains = (5.0, -3.0, 3.0, -1.0, 1.0)
    outcomes = [
        replace(o, accuracies=(*o.accuracies[:4], o.accuracies[4] + gain))
        for o, gain in zip(runs.outcomes, gains, strict=True)
    ]
    found = verdict("rawls", replace(runs, outcomes=tuple(outcomes)))
    assert found.kind == "not decided"
    # The effect is 1 / 3.1623 = 0.316: 81 pairs for a power of 80%, by any table.
    assert found.numbers["seeds_needed"] == 81
    assert "5 seeds do not decide this, about 81 would" in found.sentence
    assert found.numbers["measure"]["difference"] == pytest.approx(1.0)


def test_who_is_least_advantaged_can_be_chosen() -> None:
    # Client-1 has the lowest score under FedAvg here, client-5 the highest uncertainty.
    runs = make_runs((5, 0, 0, 0, 0), fedavg=(60.0, 90.0, 84.0, 74.0, 68.0))
    assert verdict("rawls", runs).kind == "opposite"
    for choice in ("fedavg", {**dict.fromkeys(CLIENTS, -80.0), "client-1": -50.0}):
        evidence = collect_evidence("rawls", runs, least_advantaged_by=choice)  # type: ignore[arg-type]
        assert evidence.beneficiaries == ("client-1",)
        assert judge([evidence])[0].kind == "kept"


# --- egalitarian: the spread, and the lower half, client-4 and client-5


@pytest.mark.parametrize(
    ("gains", "kind"),
    [
        ((0, 0, 0, 2, 3), "kept"),
        ((-1, -1, -1, 2, 3), "kept at a price"),
        ((-3, -3, -3, 0, 0), "levelled down"),
        ((-8, -6, -6, -1, -1), "levelled down"),
        ((-6, -5, -5, 1, 2), "over budget"),  # mean -2.6
        ((1, 1, 1, -2, -3), "opposite"),
        ((0, 0, 0, 0, 0), "not decided"),
    ],
)
@pytest.mark.parametrize("test_sizes", [None, (10**6,) * 5])
def test_egalitarian_by_hand(
    gains: Sequence[float], kind: str, test_sizes: Sequence[int] | None
) -> None:
    assert verdict("egalitarian", make_runs(gains, test_sizes=test_sizes)).kind == kind


def test_a_lower_half_that_gains_less_than_the_upper_loses_is_levelled_down() -> None:
    """Its gain is not significant, and most of the closing comes from above."""
    runs = make_runs((-2, -2, -2, 0, 0), wiggle=0.0)
    lower = (2.0, -1.5, 1.5, -1.0, 0.5)  # mean 0.3, and its interval holds 0
    outcomes = [
        replace(o, accuracies=(*o.accuracies[:3], *(a + gain for a in o.accuracies[3:])))
        for o, gain in zip(runs.outcomes, lower, strict=True)
    ]
    evidence = collect_evidence("egalitarian", replace(runs, outcomes=tuple(outcomes)))
    assert evidence.gain.difference == pytest.approx(0.3)
    assert evidence.others is not None
    assert evidence.others.difference == pytest.approx(-2.0)
    assert decide(evidence, 0.01) == "levelled down"
    # The same with an upper half that stays: nobody is levelled.
    stays = [
        replace(o, accuracies=(*r.accuracies[:3], *o.accuracies[3:]))
        for o, r in zip(outcomes, runs.references, strict=True)
    ]
    evidence = collect_evidence("egalitarian", replace(runs, outcomes=tuple(stays)))
    assert decide(evidence, 0.01) == "kept"


def test_a_spread_that_test_noise_explains_is_at_its_ceiling() -> None:
    """Variance 0.4 is below the noise of 80 examples: 80 * 20 / 80 = 20."""
    runs = make_runs(
        (0.5, 0, 0, 0, -0.5), fedavg=(80.5, 80.0, 80.0, 80.0, 79.5), test_sizes=(80,) * 5
    )
    found = verdict("egalitarian", runs)
    assert found.numbers["corrected_std"]["before"] == 0.0
    assert found.numbers["std"]["before"] > 0.0
    assert found.kind == "at its ceiling"


# --- utilitarian: the shared test, or the mean where there is none


@pytest.mark.parametrize(
    ("gains", "shared", "kind"),
    [
        ((1, 1, 1, 1, 1), (95.0, 96.0), "kept"),
        ((1, 1, 1, -3, 0), (95.0, 96.0), "kept at a price"),
        ((1, 1, 1, -8, -8), (95.0, 96.0), "over budget"),
        ((-1, -1, -1, -1, -1), (95.0, 96.0), "levelled down"),  # no client gains
        ((1, 1, 1, 1, 1), (95.0, 94.0), "opposite"),
        ((1, 1, 1, 1, 1), (None, None), "kept"),
        ((-1, -1, -1, -1, -1), (None, None), "opposite"),
    ],
)
def test_utilitarian_by_hand(gains: Sequence[float], shared: Any, kind: str) -> None:
    assert verdict("utilitarian", make_runs(gains, shared=shared, shared_wiggle=1.0)).kind == kind


def test_an_accuracy_that_can_hardly_rise_is_at_its_ceiling() -> None:
    runs = make_runs((0, 0, 0, 0, 0), shared=(99.7, 99.7), shared_wiggle=0.5)
    assert verdict("utilitarian", runs).kind == "at its ceiling"


def test_a_score_that_is_no_percentage_has_no_ceiling() -> None:
    """It is scaled so that FedAvg's mean is 100, which says nothing of how far it can rise."""
    runs = make_runs((0, 0, 0, 0, 0), shared=(100.0, 100.0), shared_wiggle=0.5)
    runs = replace(runs, score=SCORES["rmse"].kind)
    assert verdict("utilitarian", runs).kind == "not decided"


# --- desert: the slope, r, and client-1, the least uncertain

LOOSE = (90.0, 94.0, 80.0, 84.0, 68.0)  # r = -0.86: below the ceiling


@pytest.mark.parametrize(
    ("gains", "fedavg", "kind"),
    [
        ((2, 1, 0, -0.5, -1), LOOSE, "kept at a price"),
        ((4, 2, 1, 0.5, 0.25), LOOSE, "kept"),
        # The slope is as much steeper, but client-1 has nothing of it.
        ((0, -1, -2, -3, -4), LOOSE, "levelled down"),
        ((-1, -2, -3, -4, -5), LOOSE, "levelled down"),
        ((2, -2, -4, -5, -6), LOOSE, "over budget"),
        ((-2, -1, 0, 1, 2), LOOSE, "opposite"),
    ],
)
def test_desert_by_hand(gains: Sequence[float], fedavg: Sequence[float], kind: str) -> None:
    assert verdict("desert", make_runs(gains, fedavg=fedavg)).kind == kind


def test_a_steeper_slope_that_loses_r_is_the_opposite() -> None:
    """From a line to a step: client-1 rises, and accuracy follows uncertainty less closely."""
    line = (90.0, 85.0, 80.0, 75.0, 70.0)  # r = -1
    found = verdict("desert", make_runs((9, -3, 0, 3, -9), fedavg=line))
    assert found.numbers["slope"]["difference"] < 0
    assert found.numbers["pearson_r"]["difference"] > 0
    assert found.kind == "opposite"
    assert "accuracy follows uncertainty less closely" in found.sentence


def test_a_rise_of_r_is_corrected_over_the_table() -> None:
    """With p = 0.03 it is lost alone, and not shown to be lost as one of three."""
    evidence = collect_evidence("desert", make_runs((4, 2, 1, 0.5, 0.25)))
    r = replace(
        evidence.beside["pearson_r"], after=-0.6, test=PairedTest(0.1, (0.01, 0.2), 0.03, 5)
    )
    evidence = replace(evidence, beside={**evidence.beside, "pearson_r": r})
    assert judge([evidence])[0].kind == "opposite"
    assert {found.kind for found in judge([evidence] * 3)} == {"kept"}


def test_r_that_stays_at_its_ceiling_is_not_lost() -> None:
    line = (90.0, 85.0, 80.0, 75.0, 70.0)  # r = -1; after the gains -0.99
    found = verdict("desert", make_runs((3, 1, 1, -1, -1), fedavg=line))
    assert found.numbers["slope"]["difference"] < 0
    assert -1 < found.numbers["pearson_r"]["after"] < -0.95
    assert found.kind == "kept at a price"


def test_r_that_can_hardly_fall_is_at_its_ceiling_and_slope_and_gap_are_shown() -> None:
    runs = make_runs((0, 0, 0, 0, 0))
    # The slope wiggles from seed to seed: client-1 gains 0.4, -0.4, 0.2, -0.2, 0 more.
    outcomes = [
        replace(o, accuracies=(o.accuracies[0] + shift, *o.accuracies[1:]))
        for o, shift in zip(runs.outcomes, (0.4, -0.4, 0.2, -0.2, 0.1), strict=True)
    ]
    found = verdict("desert", replace(runs, outcomes=tuple(outcomes)))
    assert found.kind == "at its ceiling"
    assert found.sentence.startswith("at its ceiling: under FedAvg r is already -0.99 ")
    # Deviations of u: -0.2 ... 0.2, sum of squares 0.1; products -2.4 - 0.8 ... = -6.8: -68.
    assert found.numbers["slope"]["before"] == pytest.approx(-68.0)
    assert found.numbers["gap"]["before"] == pytest.approx(94.0 - 68.0)
    assert "The slope stays at -68.0 points per unit of uncertainty" in found.sentence
    assert "the gap stays at 26.0" in found.sentence


def test_a_steeper_slope_is_kept_even_if_r_is_at_its_ceiling() -> None:
    found = verdict("desert", make_runs((4, 2, 1, 0.5, 0.25)))
    assert found.numbers["pearson_r"]["before"] < -0.95
    assert found.kind == "kept"


# --- seeds, corrections, budgets


@pytest.mark.parametrize("seeds", [1, 2, 4])
def test_under_five_seeds_nothing_is_decided(seeds: int) -> None:
    for gains in ((0, 0, 0, 0, 10), (-20, -20, -20, -20, -10), (0, 0, 0, 0, -10)):
        found = verdict("rawls", make_runs(gains, seeds=seeds))
        assert found.kind == "not decided"
        assert "nothing, at least 5 are needed" in found.sentence


def test_runs_that_do_not_exist_are_not_decided() -> None:
    for theory in THEORIES:
        found = verdict(theory, PairedRuns(CLIENTS))
        assert found.kind == "not decided"
        assert found.sentence.endswith("has no value to compare.")


def test_one_client_and_unknown_uncertainties_are_not_decided() -> None:
    alone = make_runs((2,), fedavg=(80.0,), uncertainties=(0.1,))
    unknown = make_runs((2, 2), fedavg=(80.0, 70.0), uncertainties=(math.nan, math.nan))
    for theory in ("rawls", "desert"):
        assert verdict(theory, alone).kind == "not decided"
        assert verdict(theory, unknown).kind == "not decided"
    assert verdict("egalitarian", alone).kind == "at its ceiling"  # STD is 0


def test_the_measures_of_a_table_are_corrected_together() -> None:
    """A p of 0.02 alone is one of four that are at least 0.05 together."""
    strong, weak = make_runs((0, 0, 0, 0, 4)), make_runs((0, 0, 0, 0, 0), wiggle=0.0)
    outcomes = [
        replace(o, accuracies=(*o.accuracies[:4], o.accuracies[4] + gain))
        for o, gain in zip(weak.outcomes, (2.0, 1.0, 0.6, 2.4, 0.5), strict=True)
    ]
    # Mean 1.3, s = sqrt(2.92 / 4) = 0.854: t = 3.40, p = 0.027 with 4 degrees of freedom.
    weak = replace(weak, outcomes=tuple(outcomes))
    evidence = collect_evidence("rawls", weak)
    assert evidence.measure.test.p == pytest.approx(0.027, abs=5e-4)
    assert judge([evidence])[0].kind == "kept"
    together = judge([evidence, evidence, collect_evidence("rawls", strong)])
    assert [found.kind for found in together] == ["not decided", "not decided", "kept"]
    assert together[0].numbers["measure"]["p_holm"] == pytest.approx(2 * 0.027, abs=1e-3)
    # More seeds are needed at the level that is left: 0.025 instead of 0.05.
    alone, corrected = judge([evidence])[0], together[0]
    assert alone.numbers["seeds_needed"] < corrected.numbers["seeds_needed"]


def test_seeds_needed_are_those_at_the_corrected_level_also_where_p_ends_at_one() -> None:
    """Of four tests with p = 0.5 or so each needs a level of 0.05 / 4, / 3, ... not of 0.05 / 2."""
    weak = make_runs((0, 0, 0, 0, 0), wiggle=0.0)
    outcomes = [
        replace(o, accuracies=(*o.accuracies[:4], o.accuracies[4] + gain))
        for o, gain in zip(weak.outcomes, (5.0, -3.0, 3.0, -1.0, 1.0), strict=True)
    ]
    evidence = collect_evidence("rawls", replace(weak, outcomes=tuple(outcomes)))
    assert 0.4 < (evidence.measure.test.p or 0) < 0.6
    together = judge([evidence] * 4)
    needed = [found.numbers["seeds_needed"] for found in together]
    differences = evidence.measure.differences
    assert needed == [seeds_needed(differences, 0.05 / factor) for factor in (4, 3, 2, 1)]


def test_a_difference_that_is_always_the_same_has_no_p() -> None:
    found = verdict("rawls", make_runs((0, 0, 0, 0, -4), wiggle=0.0))
    assert (found.kind, found.numbers["measure"]["p"]) == ("opposite", None)
    assert found.numbers["measure"]["p_holm"] is None
    assert "always the same on 5 seeds" in found.sentence
    assert "p = 0" not in found.sentence


def test_a_method_has_the_budget_that_it_names() -> None:
    runs = make_runs((-2, -2, -2, -2, 6))  # mean -0.4
    assert verdict("rawls", runs, budget=0.3).kind == "over budget"
    assert verdict("rawls", runs, budget=0.5).kind == "kept at a price"
    assert verdict("rawls", runs, budget=0.3).numbers["budget"] == 0.3


def test_a_mean_that_is_certainly_beyond_the_budget_needs_no_decided_measure() -> None:
    """More seeds could not make it a success."""
    assert verdict("rawls", make_runs((-9, -9, -9, -9, -9))).kind == "over budget"
    assert verdict("egalitarian", make_runs((-9, -9, -9, -9, -9))).kind == "over budget"


def test_payers_lose_significantly_after_a_correction_over_clients() -> None:
    evidence = collect_evidence("rawls", make_runs((-2, -5, 0, 0, 6)))
    assert list(find_payers(evidence).items()) == [
        ("client-2", pytest.approx(-5.0)),
        ("client-1", pytest.approx(-2.0)),
    ]


# --- promises to single clients


def test_a_client_significantly_below_its_limit_is_over_budget() -> None:
    runs = make_runs((-3, 0, 0, 0, 6))  # the mean gains 0.6
    assert judge([collect_evidence("rawls", runs)])[0].kind == "kept at a price"
    kept = collect_evidence("rawls", runs, promise=Promise(client_budget=3.5))
    assert judge([kept])[0].kind == "kept at a price"
    (broken,) = judge([collect_evidence("rawls", runs, promise=Promise(client_budget=2.0))])
    assert broken.kind == "over budget"
    assert "below its limit: client-1 (-1.0)" in broken.sentence
    assert broken.numbers["limits"]["broken"] == {"client-1": pytest.approx(-1.0)}


def test_a_broken_limit_needs_no_decided_measure() -> None:
    runs = make_runs((-5, 0, 0, 0, -1.25))  # Psi stays at 0
    (found,) = judge([collect_evidence("rawls", runs, promise=Promise(client_budget=2.0))])
    assert found.kind == "over budget"


def test_a_limit_that_may_be_broken_by_chance_is_said() -> None:
    runs = make_runs((-2.05, 0, 0, 0, 6))  # give or take 0.16
    (found,) = judge([collect_evidence("rawls", runs, promise=Promise(client_budget=2.0))])
    assert found.kind == "kept at a price"
    assert "below its limit, not significantly: client-1 (-0.1)" in found.sentence


# --- harm is never a success


@st.composite
def harmful_runs(draw: Any) -> PairedRuns:
    """Draw runs where no client is better off than under FedAvg, on any seed."""
    n, seeds = draw(st.integers(1, 6)), draw(st.integers(1, 7))
    hundredths = st.integers(0, 10_000)
    losses = st.one_of(st.just(0), st.integers(0, 300), st.integers(0, 3_000))
    u = draw(st.lists(st.integers(1, 9), min_size=n, max_size=n))
    sizes = draw(st.one_of(st.none(), st.lists(st.integers(1, 500), min_size=n, max_size=n)))
    # The same losses on each seed, up to one hundredth: tests then decide easily.
    typical = [draw(losses) for _ in range(n)]
    outcomes, references = [], []
    for _ in range(seeds):
        before = [draw(hundredths) for _ in range(n)]
        after = [
            max(0, b - max(0, loss + draw(st.integers(-1, 1)) if loss else 0))
            for b, loss in zip(before, typical, strict=True)
        ]
        shared = draw(hundredths) / 100
        old, new = [a / 100 for a in before], [a / 100 for a in after]
        references.append(Outcome(old, u, old, shared, sizes))
        outcomes.append(Outcome(new, u, old, min(100.0, shared + draw(st.integers(0, 9))), sizes))
    return PairedRuns(
        CLIENTS[:n] if n <= 5 else (*CLIENTS, "x"), tuple(outcomes), tuple(references)
    )


@settings(deadline=None)
@given(harmful_runs(), st.sampled_from([*THEORIES]), st.sampled_from([0.0, 2.0, 100.0]))
def test_harm_is_never_called_a_success(runs: PairedRuns, theory: str, budget: float) -> None:
    found = verdict(theory, runs, budget)
    assert found.kind not in ("kept", "kept at a price")
    assert found.kind in KINDS
    assert found.sentence.startswith(f"{found.kind}: ")
    json.dumps(found.as_dict(), allow_nan=False)


@settings(deadline=None)
@given(
    st.lists(st.integers(-800, 0), min_size=5, max_size=5),
    st.sampled_from([*THEORIES]),
    st.sampled_from([1e-3, 0.1, 1.0]),
)
def test_steady_harm_is_never_called_a_success(
    losses: list[int], theory: str, wiggle: float
) -> None:
    """Tests decide here, as the losses are nearly the same on every seed."""
    gains = [loss / 100 - 0.2 * wiggle for loss in losses]
    runs = make_runs(gains, wiggle, shared=(95.0, 96.0), shared_wiggle=wiggle)
    assert all(
        new <= old
        for o, r in zip(runs.outcomes, runs.references, strict=True)
        for new, old in zip(o.accuracies, r.accuracies, strict=True)
    )
    found = verdict(theory, runs, budget=50.0)
    assert found.kind not in ("kept", "kept at a price")


# --- rankings


def test_who_is_left_out_of_rankings() -> None:
    assert left_out_reason(79.5, 81.0) is None
    assert left_out_reason(79.0, 81.0) is None  # exactly the margin
    assert left_out_reason(78.0, 81.0) == "its mean is 3.0 below FedAvg's, budget 2"
    assert left_out_reason(78.0, 81.0, 4.0) is None
    assert left_out_reason(90.0, 81.0) is None
    assert left_out_reason(None, 81.0) is None
    assert left_out_reason(11.5, 11.0, n_classes=10) == "at chance, a mean of 11.5% with 10 classes"
    assert left_out_reason(12.5, 11.0, n_classes=10) is None


def test_uncertainties_rise_in_these_cases() -> None:
    assert list(UNCERTAINTIES) == sorted(UNCERTAINTIES)
