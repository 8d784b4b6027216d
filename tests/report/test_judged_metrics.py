"""Metrics in the words, unit, direction and scale of the score that is judged."""

from __future__ import annotations

import pytest

from udjfl.metrics import METRICS
from udjfl.report.cells import format_number, interval_text, with_arrow
from udjfl.report.judged_metrics import for_score, metrics_for, remark_on_direction
from udjfl.statistics import Summary
from udjfl.tasks import ACCURACY, SCORES, ScoreKind

LOG_LOSS, AUROC, R2 = (SCORES[name].kind for name in ("log-loss", "auroc", "r2"))


def test_of_accuracies_they_are_as_declared() -> None:
    assert metrics_for(ACCURACY) == dict(METRICS)


@pytest.mark.parametrize(
    ("key", "score", "title", "unit", "arrow"),
    [
        ("mean_accuracy", LOG_LOSS, "Mean log loss", "", "Mean ↓"),
        ("mean_accuracy", AUROC, "Mean AUROC", "%", "Mean ↑"),
        ("worst_accuracy", LOG_LOSS, "Worst client", "", "Worst ↓"),
        ("psi", LOG_LOSS, "Psi", "log loss", "Psi ↑"),
        ("psi", AUROC, "Psi", "points", "Psi ↑"),
        ("slope", LOG_LOSS, "Slope", "log loss per unit", "Slope ↓"),
        ("share_better_alone", LOG_LOSS, "Better off alone", "%", "Better off alone ↓"),
        ("group_gap", LOG_LOSS, "Gap between groups", "points", "Group ↓\ngap"),
    ],
)
def test_words_unit_and_direction(
    key: str, score: ScoreKind, title: str, unit: str, arrow: str
) -> None:
    metric = for_score(METRICS[key], score)
    assert (metric.title, metric.unit, with_arrow(metric)) == (title, unit, arrow)


@pytest.mark.parametrize("name", [name for name in SCORES if "accuracy" not in name])
def test_no_other_score_is_called_accuracy(name: str) -> None:
    for metric in metrics_for(SCORES[name].kind).values():
        assert "ccurac" not in metric.title + metric.description


def test_numbers_have_the_decimals_and_the_scale_of_the_score() -> None:
    wide = Summary(0.1, (-0.1, 0.3), (0.0, 0.2), 2)
    loss = for_score(METRICS["mean_accuracy"], LOG_LOSS)
    assert format_number(0.12345, loss) == "0.1235"
    assert interval_text(loss, wide) == "0 to 0.3000"
    # R2 can be far below 0, and a mean of accuracies cannot.
    negative = Summary(-20.0, (-30.0, -10.0), (-20.0, -20.0), 2)
    assert interval_text(for_score(METRICS["mean_accuracy"], R2), negative) == "±10.00"
    assert format_number(0.5, for_score(METRICS["pearson_r"], LOG_LOSS)) == "+0.50"


def test_what_lower_is_better_means_for_gains_is_said() -> None:
    assert remark_on_direction(AUROC) == ""
    assert "a lower log loss counts as more" in remark_on_direction(LOG_LOSS)
