"""The table of metrics: which are chosen, what they need, and scores where lower is better."""

from __future__ import annotations

import math

import pytest

from udjfl.errors import SettingsError
from udjfl.metrics import METRICS
from udjfl.metrics.base import (
    NO_ALONE,
    NO_GROUPS,
    NO_TEST_SIZES,
    NO_UNCERTAINTY,
    Metric,
    Outcome,
    choose_metrics,
    compute_metrics,
    register_metric,
    table_metrics,
)

USUAL = tuple(metric.key for metric in METRICS.values() if metric.in_table)


def make_metric(**changes: object) -> Metric:
    given: dict[str, object] = {"key": "of_test", "title": "Of test", "better": 1, "unit": "%"}
    given |= {"compute": lambda outcome: sum(outcome.accuracies), "description": "", **changes}
    return Metric(**given)  # type: ignore[arg-type]


# --- scores of which lower is better


def test_turned_scores_by_hand() -> None:
    """Two clients, losses instead of accuracies, in units of a hundredth."""
    outcome = Outcome([1.0, 3.0], [0.1, 0.2], [2.0, 5.0], 4.0, [7, 9], [6.0, math.nan], better=-1)
    turned = outcome.as_benefits(100.0)
    assert turned.accuracies == (-100.0, -300.0)
    assert turned.reference_accuracies == (-200.0, -500.0)
    assert turned.global_accuracy == -400.0
    assert turned.alone is not None
    assert turned.alone[0] == -600.0
    assert math.isnan(turned.alone[1])
    assert (turned.better, turned.test_sizes, turned.uncertainties) == (1, (7.0, 9.0), (0.1, 0.2))


def test_a_factor_alone_scales() -> None:
    scaled = Outcome([1.0, 3.0], [0.1, 0.2]).as_benefits(10.0)
    assert scaled.accuracies == (10.0, 30.0)
    assert (scaled.reference_accuracies, scaled.alone, scaled.global_accuracy) == (None, None, None)
    assert Outcome([], [], better=-1).as_benefits().accuracies == ()


def test_scores_that_need_no_turning_stay_the_same() -> None:
    outcome = Outcome([1.0], [0.1])
    assert outcome.as_benefits() is outcome
    assert Outcome([1.0], [0.1], better=-1).as_benefits().accuracies == (-1.0,)


def test_benefits_have_the_sign_of_better() -> None:
    lower = Outcome([1.0], [0.1], [2.0], alone=[3.0], better=-1)
    assert (lower.benefits, lower.reference_benefits, lower.benefits_alone) == (
        (-1.0,),
        (-2.0,),
        (-3.0,),
    )
    higher = Outcome([1.0], [0.1], [2.0], alone=[3.0])
    assert (higher.benefits, higher.reference_benefits, higher.benefits_alone) == (
        (1.0,),
        (2.0,),
        (3.0,),
    )
    assert not Outcome([1.0], [0.1]).reference_benefits
    assert not Outcome([1.0], [0.1]).benefits_alone


def test_only_a_level_turns_with_the_score() -> None:
    level, spread = make_metric(is_level=True), make_metric(better=-1)
    assert (level.better_for(1), level.better_for(-1), level.better_for(0)) == (1, -1, 0)
    assert (spread.better_for(1), spread.better_for(-1)) == (-1, -1)


# --- what a metric needs


@pytest.mark.parametrize(
    ("need", "column", "reason"),
    [
        ("needs_test_sizes", "test_sizes", NO_TEST_SIZES),
        ("needs_alone", "alone", NO_ALONE),
        ("needs_groups", "group_gaps", NO_GROUPS),
    ],
)
def test_a_metric_names_what_the_run_lacks(need: str, column: str, reason: str) -> None:
    metric = make_metric(**{need: True})
    assert metric.evaluate(Outcome([1.0], [0.1])) == (None, reason)
    assert metric.evaluate(Outcome([1.0], [0.1], **{column: [2.0]})) == (1.0, None)  # type: ignore[arg-type]
    assert make_metric().missing(Outcome([1.0], [0.1])) is None


def test_clients_whose_number_is_unknown_are_left_out() -> None:
    nan = math.nan
    outcome = Outcome([1.0, 20.0, 300.0], [nan, 0.1, 0.2], alone=[1.0, nan, 2.0])
    assert make_metric(needs_uncertainties=True).evaluate(outcome) == (320.0, None)
    assert make_metric(needs_alone=True).evaluate(outcome) == (301.0, None)
    both = make_metric(needs_uncertainties=True, needs_alone=True)
    assert both.evaluate(outcome) == (300.0, None)
    unknown = Outcome([1.0], [nan], alone=[nan])
    assert make_metric(needs_uncertainties=True).evaluate(unknown) == (None, NO_UNCERTAINTY)
    assert make_metric(needs_alone=True).evaluate(unknown) == (None, NO_ALONE)


def test_a_reason_or_a_number_that_is_none() -> None:
    outcome = Outcome([1.0], [0.1])
    assert make_metric(undefined_reason=lambda _: "why").evaluate(outcome) == (None, "why")
    assert make_metric(undefined_reason=lambda _: None).evaluate(outcome) == (1.0, None)
    for value in (None, math.nan, math.inf):
        metric = make_metric(compute=lambda _, value=value: value)
        assert metric.evaluate(outcome) == (None, "Of test is not defined for this run.")


def test_intervals_end_at_the_ends_of_the_scale() -> None:
    assert make_metric(bounds=(0.0, 1.0)).clip((-1.0, 2.0)) == (0.0, 1.0)
    assert make_metric(bounds=(0.0, None)).clip((-1.0, 2.0)) == (0.0, 2.0)
    assert make_metric(bounds=(None, 1.0)).clip((-1.0, 2.0)) == (-1.0, 1.0)
    assert make_metric().clip((-1.0, 2.0)) == (-1.0, 2.0)
    assert make_metric(short="S").heading == "S"
    assert make_metric().heading == "Of test"


def test_metrics_that_need_more_are_left_out_without_a_reason() -> None:
    values, reasons = compute_metrics(Outcome([90.0, 80.0], [0.1, 0.2]))
    assert not {key for key in values if METRICS[key].needs_reference}
    assert not {key for key in values if METRICS[key].needs_test_sizes}
    assert set(reasons) <= set(values)
    assert set(reasons) == {key for key, value in values.items() if value is None}


# --- which metrics are chosen


def test_chosen_metrics() -> None:
    assert choose_metrics(None) is None
    assert choose_metrics("") is None
    assert choose_metrics("gini") == ("gini",)
    assert choose_metrics("worst-tenth, gini,gini") == ("worst_tenth", "gini")
    assert choose_metrics("default") == USUAL == tuple(m.key for m in table_metrics())
    assert choose_metrics("all") == tuple(METRICS)
    assert choose_metrics("gini,default") == ("gini", *USUAL)


def test_unknown_metrics_are_all_named() -> None:
    with pytest.raises(SettingsError) as caught:
        choose_metrics("ginni,gini,defalt,al")
    text = str(caught.value)
    assert "there is no 'ginni'" in text
    assert "Did you mean 'gini'" in text
    assert "there is no 'defalt'" in text
    assert "Did you mean 'default'" in text
    assert "there is no 'al'" in text
    assert "Did you mean 'all'" in text


def test_a_key_with_another_meaning_is_refused() -> None:
    with pytest.raises(SettingsError, match="'client_accuracy' has another meaning in results"):
        register_metric(make_metric(key="client_accuracy"))
    assert "client_accuracy" not in METRICS


def test_measures_of_inequality_are_shown_on_request() -> None:
    highest = {"jain": 1.0, "gini": 1.0, "cv": None, "entropy": None, "cosine": 1.0}
    for key, end in highest.items():
        metric = METRICS[key]
        assert (metric.in_table, metric.on_request, metric.unit) == (False, True, "")
        assert (metric.bounds, metric.digits) == ((0.0, end), 4)
        assert metric.better == (-1 if key in ("gini", "cv") else 1)
        assert metric.evaluate(Outcome([-1.0, 2.0], [0.1, 0.2]))[1] is not None
