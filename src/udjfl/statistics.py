"""How sure several seeds make us of a metric: intervals, and paired tests against the reference.

A metric that has no value on some seed is None there, as in `udjfl.metrics`; it is left out, never replaced.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from udjfl.errors import DataError
from udjfl.metrics import METRICS, ROUNDING, Metric, finite_numbers


@dataclass(frozen=True)
class Summary:
    """One metric over seeds."""

    mean: float | None
    """Mean of the defined values; None if there are none."""
    ci95: tuple[float, float] | None
    """95% Student-t interval for the mean; None with fewer than two defined values."""
    values: tuple[float | None, ...]
    """One per seed, in the order given, undefined ones included."""
    n: int
    """How many values are defined."""


def summarise(values: Sequence[float | None]) -> Summary:
    """Mean and 95% interval over seeds: mean +- t(0.975, n-1) s / sqrt(n), with s the standard deviation at ddof = 1.

    Undefined values (None) are left out of the mean but stay in `values`. Seeds are a sample of all seeds one could
    draw, hence ddof = 1 here and not 0 as over clients. An interval of width 0 means all seeds agree.

    >>> summarise([1.0, None, 3.0]).mean
    2.0
    >>> [round(end, 2) for end in summarise([1.0, None, 3.0]).ci95]  # s = sqrt(2), t(0.975, 1) = 12.706: 2 +- 12.706
    [-10.71, 14.71]
    """
    kept = finite_numbers("values", [value for value in values if value is not None])
    centre = statistics.mean(kept) if kept else None
    every = tuple(None if value is None else float(value) for value in values)
    return Summary(mean=centre, ci95=_t_interval(kept), values=every, n=len(kept))


@dataclass(frozen=True)
class Paired:
    """A method against the reference, seed by seed."""

    difference: float | None
    """Mean of (value - reference value); None if no seed has both."""
    ci95: tuple[float, float] | None
    """95% Student-t interval for that mean; None with fewer than two seeds."""
    p: float | None
    """Two-sided p of the paired t-test. None with n < 2: too few seeds to test. None with n >= 2: every difference is
    zero, so there is nothing to test. 0.0: every seed has the same nonzero difference, so the t statistic is infinite;
    with few seeds read that as "always the same", not as certainty. Differences within rounding count as the same."""
    n: int
    """How many seeds have both values."""


def paired(values: Sequence[float | None], reference_values: Sequence[float | None]) -> Paired:
    """Paired t-test over seeds: t = mean(d) / (s / sqrt(n)), d = value - reference, s at ddof = 1. See `Paired`.

    Both sequences are in the same order of seeds; a seed where either is None is dropped. The sign says who is higher,
    the metric's `better` says whether that is good; 0 means no difference on average.

    >>> result = paired([90.0, 92.0, 94.0], [89.0, 90.0, 91.0])  # d = 1, 2, 3: t = 2 / (1 / sqrt(3)) = 3.46
    >>> result.difference, round(result.p, 3), result.n
    (2.0, 0.074, 3)
    """
    if len(values) != len(reference_values):
        raise DataError(
            f"values has {len(values)} and reference_values {len(reference_values)}; give one per seed."
        )
    both = [
        (v, w)
        for v, w in zip(values, reference_values, strict=True)
        if v is not None and w is not None
    ]
    ours = finite_numbers("values", [value for value, _ in both])
    theirs = finite_numbers("reference_values", [value for _, value in both])
    differences = [value - other for value, other in zip(ours, theirs, strict=True)]
    centre = statistics.mean(differences) if differences else None
    return Paired(
        difference=centre, ci95=_t_interval(differences), p=_paired_p(ours, theirs), n=len(both)
    )


def _paired_p(ours: list[float], theirs: list[float]) -> float | None:
    differences = [value - other for value, other in zip(ours, theirs, strict=True)]
    scale = max((abs(number) for number in ours + theirs), default=0.0)
    if (
        len(differences) < 2
        or max(abs(difference) for difference in differences) <= ROUNDING * scale
    ):
        return None
    if max(differences) - min(differences) <= ROUNDING * scale:
        return 0.0
    from scipy import (
        stats,  # here because it takes longer to import than everything else in this file
    )

    # p does not depend on the scale, but scipy's squares would under- or overflow at extreme ones.
    return float(stats.ttest_rel([v / scale for v in ours], [w / scale for w in theirs]).pvalue)


def _t_interval(values: list[float]) -> tuple[float, float] | None:
    if len(values) < 2:
        return None
    from scipy import stats  # see _paired_p

    centre = statistics.mean(values)
    half = (
        float(stats.t.ppf(0.975, len(values) - 1))
        * statistics.stdev(values)
        / math.sqrt(len(values))
    )
    return centre - half, centre + half


THEORY_METRIC = {
    "rawls": "psi",
    "egalitarian": "std",
    "utilitarian": "global_accuracy",
    "desert": "pearson_r",
}


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
    places = {
        place: 1 + sum(other > mean for other in known.values()) for place, mean in known.items()
    }
    order = sorted(range(len(entries)), key=lambda place: places.get(place, len(entries) + 1))
    return [Ranked(place, places.get(place), values[place]) for place in order]
