"""Methods in order, once for each theory of justice, by the measure the paper uses for it (Carey & Wu, FAccT 2025)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from udjfl.metrics import METRICS, Metric
from udjfl.significance import Summary

THEORY_METRIC = {"rawls": "psi", "egalitarian": "std", "utilitarian": "global_accuracy", "desert": "pearson_r"}


@dataclass(frozen=True)
class Ranked:
    """One method's place by one measure.

    `entry` is its position in what was ranked. `rank` counts from 1, equal values share the better place, and it is None for
    a method without a value.
    """

    entry: int
    rank: int | None
    value: Summary


def metric_of(theory: str) -> Metric:
    """What a theory sets out to improve."""
    return next(metric for metric in METRICS if metric.key == THEORY_METRIC[theory])


def ranked(theory: str, entries: Sequence[Mapping[str, Summary]]) -> list[Ranked]:
    """Best first, by the mean over seeds; those without a value last. Equal means keep the order they came in."""
    metric = metric_of(theory)
    values = [entry[metric.key] for entry in entries]
    means = [None if value.mean is None else metric.better * value.mean for value in values]
    known = {place: mean for place, mean in enumerate(means) if mean is not None}
    places = {place: 1 + sum(other > mean for other in known.values()) for place, mean in known.items()}
    order = sorted(range(len(entries)), key=lambda place: places.get(place, len(entries) + 1))
    return [Ranked(place, places.get(place), values[place]) for place in order]
