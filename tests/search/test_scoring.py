"""Scores on held-out data, worked out by hand for two clients, and the choice between them."""

from __future__ import annotations

import math

import pytest

from udjfl.methods import FedAvg
from udjfl.search.point_runs import point_name
from udjfl.search.run_table import PointRun, RunTable
from udjfl.search.scoring import CandidateScore, SearchLimits, choose, score
from udjfl.search.spaces import Candidate, udj_defaults
from udjfl.tasks import SCORES

OWN, WITH_BUDGET = udj_defaults("rawls", 2.0)
OTHER = OWN.neighbours()[0]
NO_LIMIT = SearchLimits(100.0, {})


def table_of(*runs: tuple[float, float], candidate: Candidate = OTHER) -> RunTable:
    """FedAvg has 90 and 70 on every seed; the second client is the more uncertain."""
    table = RunTable(("a", "b"))
    for seed, accuracies in enumerate(runs):
        table.add(
            {
                (point_name(FedAvg()), seed): PointRun((90.0, 70.0), (0.1, 0.3), 88.0, (50, 50)),
                (candidate.name, seed): PointRun(accuracies, (0.1, 0.3), 87.0, (50, 50)),
            }
        )
    return table


def test_a_score_by_hand() -> None:
    # Seed 0: b gains 4 and a loses 2, Psi 6, mean +1. Seed 1: b gains 2, a loses 4: 6 and -1.
    made = score(OTHER, "rawls", table_of((88.0, 74.0), (86.0, 72.0)), [0, 1], NO_LIMIT)
    assert made.moved == (6.0, 6.0)
    assert (made.value, made.error, made.mean, made.gain) == (6.0, 0.0, 0.0, 3.0)
    assert made.shared == -1.0
    assert made.clients == {"a": 87.0, "b": 73.0}
    assert (made.violation, made.broken) == (0, {})


def test_the_measure_of_each_theory_is_higher_if_better() -> None:
    table = table_of((88.0, 74.0))
    # The gap falls from 20 to 14: STD by 3; the slope rises from -100 to -70, which is no desert.
    values = {t: score(OTHER, t, table, [0], NO_LIMIT).value for t in ("utilitarian", "desert")}
    assert values["utilitarian"] == -1.0
    assert values["desert"] == pytest.approx(-30.0)
    assert score(OTHER, "egalitarian", table, [0], NO_LIMIT).value > 0


def test_limits() -> None:
    table = table_of((84.0, 72.0))  # the mean falls by 2
    assert score(OTHER, "rawls", table, [0], SearchLimits(2.0, {})).violation == 0
    assert score(OTHER, "rawls", table, [0], SearchLimits(1.5, {})).broken == {"budget": 0.5}
    limits = SearchLimits(2.0, {"a": 84.0, "b": 75.0})
    assert score(OTHER, "rawls", table, [0], limits).violation == 3.0


def test_near_the_budget_is_within_it_by_less_than_a_standard_error() -> None:
    # Means fall by 1 and by 3: by 2, with a standard error of sqrt(2) / sqrt(2) = 1.
    table = table_of((88.0, 70.0), (86.0, 68.0))

    def scored(budget: float) -> tuple[bool, float]:
        made = score(OTHER, "rawls", table, [0, 1], SearchLimits(budget, {}))
        return made.near, made.violation

    assert scored(3.01) == (False, 0)
    assert scored(3.0) == (False, 0)
    assert scored(2.99) == (True, 0)
    assert scored(1.5) == (False, 0.5)
    # The error of one seed is not known.
    assert not score(OTHER, "rawls", table, [0], SearchLimits(1.0, {})).near


def test_what_is_near_the_budget_is_chosen_only_if_all_are() -> None:
    near = CandidateScore(OTHER, (9.0, 9.0), gain=1.0, near=True)
    clear = CandidateScore(OTHER, (3.0, 3.0), gain=-1.0)
    assert choose([near, clear], []) is clear
    beyond = CandidateScore(OTHER, (9.5, 9.5), gain=1.0, broken={"budget": 0.1})
    assert choose([beyond, near], []) is near
    default = CandidateScore(WITH_BUDGET, (3.0, 3.0), gain=1.0, near=True)
    assert choose([clear, default], [WITH_BUDGET.name]) is clear
    equal = CandidateScore(OTHER, (3.0, 3.0), gain=1.0, near=True)
    assert choose([equal, default], [WITH_BUDGET.name]) is default


def test_of_a_loss_less_is_better_and_changes_are_hundredths_of_the_mean() -> None:
    table = RunTable(("a", "b"), score=SCORES["log-loss"].kind)
    table.add(
        {
            (point_name(FedAvg()), 0): PointRun((0.2, 0.6), (0.1, 0.3), 0.4, (50, 50)),
            (OTHER.name, 0): PointRun((0.24, 0.5), (0.1, 0.3), 0.44, (50, 50)),
        }
    )
    # FedAvg's mean is 0.4, so 0.004 is a hundredth: b gains 25, a loses 10, the mean gains 7.5.
    made = score(OTHER, "rawls", table, [0], NO_LIMIT)
    assert made.value == pytest.approx(35.0)
    assert (made.gain, made.mean, made.shared) == pytest.approx((25.0, 7.5, -10.0))
    assert made.clients == {"a": 0.24, "b": 0.5}
    limits = SearchLimits(0.0, {"a": 0.22, "b": 0.55})  # a loss of at most 0.22, and 0.55
    broken = score(OTHER, "rawls", table, [0], limits).broken
    assert broken == {"a has 0.2400": pytest.approx(5.0)}


def test_without_a_reference_there_is_no_score() -> None:
    table = RunTable(("a", "b"), score=SCORES["log-loss"].kind)
    run = PointRun((0.24, 0.5), (0.1, 0.3), 0.44, (50, 50))
    table.add({(point_name(FedAvg()), 0): PointRun(failed="diverged"), (OTHER.name, 0): run})
    assert score(OTHER, "rawls", table, [0], NO_LIMIT).failed == "diverged"


def test_a_point_that_failed_on_a_seed_has_no_score() -> None:
    table = table_of((88.0, 74.0))
    table.add({(OWN.name, 0): PointRun(failed="diverged")})
    made = score(OWN, "rawls", table, [0], NO_LIMIT)
    assert (made.failed, made.value, made.violation) == ("diverged", -math.inf, math.inf)
    assert made.as_dict()["measure"] is None


def test_within_the_limits_comes_first_then_no_harm_then_the_measure() -> None:
    good = CandidateScore(OTHER, (3.0,), gain=1.0)
    harm = CandidateScore(OTHER, (9.0,), gain=-1.0)
    beyond = CandidateScore(OTHER, (9.0,), gain=1.0, broken={"budget": 0.1})
    assert sorted([beyond, harm, good], key=lambda each: each.rank) == [good, harm, beyond]


def test_the_default_stays_unless_the_best_is_clearly_better() -> None:
    default = CandidateScore(WITH_BUDGET, (1.0, 5.0, 3.0), gain=1.0)
    # Ahead by 1, 1 and -1: 0.33 with a standard error of 0.67. By 3, 2 and 1: 2 with 0.58.
    close, ahead = (
        CandidateScore(OTHER, moved, gain=1.0) for moved in ((2.0, 6.0, 2.0), (4.0, 7.0, 4.0))
    )
    names = [WITH_BUDGET.name, OWN.name]
    assert choose([close, default], names) is default
    assert choose([ahead, default], names) is ahead


def test_a_default_that_breaks_a_limit_is_no_alternative() -> None:
    default = CandidateScore(OWN, (50.0,), gain=1.0, broken={"budget": 1.0})
    small = CandidateScore(OTHER, (0.1,), gain=1.0)
    assert choose([small, default], [OWN.name]) is small
