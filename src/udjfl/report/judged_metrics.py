"""Metrics in the words, unit, direction and scale of the score that is judged.

Metrics are declared for accuracies. Tables and figures show what `for_score` makes of them, so that
nothing else has to know what is judged.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from udjfl.metrics import METRICS, Metric
from udjfl.tasks import ACCURACY, ScoreKind

ACCURACY_WORD = re.compile(r"\b([Aa])ccuracy\b")


def for_score(metric: Metric, score: ScoreKind) -> Metric:
    """Return a metric as it is of a score."""
    if score == ACCURACY or metric.needs_groups:  # gaps between groups are of accuracy
        return metric
    is_difference = metric.unit.startswith("points")
    unit = score.unit if metric.is_level else metric.unit
    better = metric.better_for(score.better)
    return replace(
        metric,
        title=_reword(metric.title, score),
        description=_reword(metric.description, score),
        unit=unit.replace("points", score.difference_unit),
        better=1 if better > 0 else -1 if better < 0 else 0,
        bounds=(score.lowest, score.highest) if metric.is_level else metric.bounds,
        digits=score.digits if metric.is_level or is_difference else metric.digits,
    )


def metrics_for(score: ScoreKind, keys: Iterable[str] | None = None) -> dict[str, Metric]:
    """Return these metrics, or all, by their keys, as they are of a score."""
    return {key: for_score(METRICS[key], score) for key in (METRICS if keys is None else keys)}


def remark_on_direction(score: ScoreKind) -> str:
    """Say how measures of gains and slopes count a score of which less is better."""
    if score.better > 0:
        return ""
    return f"In Psi, gains, slope, gap and r a lower {score.title} counts as more."


def _reword(text: str, score: ScoreKind) -> str:
    text = text if score.percent else text.replace("Points of accuracy", "Accuracy")
    return ACCURACY_WORD.sub(lambda found: score.heading if found[1] == "A" else score.title, text)
