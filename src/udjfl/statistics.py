"""Statistics of metrics over seeds: summaries, paired tests against the reference, and rankings.

A metric without a value on some seed is None there, as in `udjfl.metrics`; that seed is left out of
means and tests, never replaced by a number. Rankings order methods by the metric of a theory.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from udjfl.errors import DataError
from udjfl.metrics import METRICS, ROUNDING, Metric, finite_numbers

THEORY_METRIC = {
    "rawls": "psi",
    "egalitarian": "std",
    "utilitarian": "global_accuracy",
    "desert": "pearson_r",
}


@dataclass(frozen=True)
class Summary:
    """One metric over seeds.

    mean    mean of the defined values; None if there are none
    ci95    95% Student-t interval for the mean; None with fewer than two defined values
    values  one per seed, in the order given, undefined ones included
    n       the number of defined values
    """

    mean: float | None
    ci95: tuple[float, float] | None
    values: tuple[float | None, ...]
    n: int


def summarise(values: Sequence[float | None]) -> Summary:
    """Compute mean and 95% interval over seeds: mean +- t(0.975, n-1) s / sqrt(n), s at ddof = 1.

    Undefined values (None) are left out of the mean but stay in `values`. Seeds are a sample of
    all possible seeds, hence ddof = 1 here and not 0 as over clients. An interval of width 0 means
    that all seeds agree.

    >>> summarise([1.0, None, 3.0]).mean
    2.0
    >>> # s = sqrt(2), t(0.975, 1) = 12.706: 2 +- 12.706
    >>> [round(end, 2) for end in summarise([1.0, None, 3.0]).ci95]
    [-10.71, 14.71]
    """
    defined = finite_numbers("values", [value for value in values if value is not None])
    return Summary(
        mean=statistics.mean(defined) if defined else None,
        ci95=_t_interval(defined),
        values=tuple(None if value is None else float(value) for value in values),
        n=len(defined),
    )


@dataclass(frozen=True)
class PairedTest:
    """A paired t-test of a method against the reference, seed by seed.

    difference  mean of (value - reference value); None if no seed has both
    ci95        95% Student-t interval for that mean; None with fewer than two seeds
    p           two-sided p. None with n < 2: too few seeds to test. None with n >= 2: every
                difference is zero, so there is nothing to test. 0.0: every seed has the same
                nonzero difference, so the t statistic is infinite; with few seeds read that as
                "always the same", not as certainty. Differences within rounding count as the same
    n           the number of seeds that have both values
    """

    difference: float | None
    ci95: tuple[float, float] | None
    p: float | None
    n: int


def paired_test(
    values: Sequence[float | None], reference_values: Sequence[float | None]
) -> PairedTest:
    """Test over seeds: t = mean(d) / (s / sqrt(n)), d = value - reference value, s at ddof = 1.

    Both sequences are in the same order of seeds; a seed where either is None is dropped. A
    positive difference means that the value is higher than the reference value; the metric's
    `better` tells whether that is good. 0 means no difference on average.

    >>> # d = 1, 2, 3: t = 2 / (1 / sqrt(3)) = 3.46
    >>> result = paired_test([90.0, 92.0, 94.0], [89.0, 90.0, 91.0])
    >>> result.difference, round(result.p, 3), result.n
    (2.0, 0.074, 3)
    """
    if len(values) != len(reference_values):
        raise DataError(
            f"values has {len(values)} and reference_values {len(reference_values)}; "
            "give one per seed."
        )
    both = [
        (value, reference)
        for value, reference in zip(values, reference_values, strict=True)
        if value is not None and reference is not None
    ]
    ours = finite_numbers("values", [value for value, _ in both])
    theirs = finite_numbers("reference_values", [reference for _, reference in both])
    differences = [value - reference for value, reference in zip(ours, theirs, strict=True)]
    return PairedTest(
        difference=statistics.mean(differences) if differences else None,
        ci95=_t_interval(differences),
        p=_paired_p(ours, theirs, differences),
        n=len(both),
    )


def _paired_p(ours: list[float], theirs: list[float], differences: list[float]) -> float | None:
    if len(differences) < 2:
        return None
    scale = max(abs(number) for number in ours + theirs)
    if max(abs(difference) for difference in differences) <= ROUNDING * scale:
        return None
    if max(differences) - min(differences) <= ROUNDING * scale:
        return 0.0
    from scipy import stats  # not at the top: it takes long to import

    # p does not depend on the scale, but scipy's squares would under- or overflow at extreme ones.
    return float(stats.ttest_rel([v / scale for v in ours], [w / scale for w in theirs]).pvalue)


def _t_interval(values: list[float]) -> tuple[float, float] | None:
    if len(values) < 2:
        return None
    from scipy import stats

    mean = statistics.mean(values)
    quantile = float(stats.t.ppf(0.975, len(values) - 1))
    half_width = quantile * statistics.stdev(values) / math.sqrt(len(values))
    return mean - half_width, mean + half_width


@dataclass(frozen=True)
class RankedMethod:
    """One method's rank by the metric of a theory.

    index  its position among the methods that were ranked
    rank   counts from 1; equal values share the better rank; None for a method without a value
    value  the metric over seeds
    """

    index: int
    rank: int | None
    value: Summary


def metric_of(theory: str) -> Metric:
    """Return the metric that a theory sets out to improve."""
    return METRICS[THEORY_METRIC[theory]]


def rank_methods(theory: str, methods: Sequence[Mapping[str, Summary]]) -> list[RankedMethod]:
    """Rank methods, given by their summaries, by the mean over seeds, best first.

    Methods without a value come last. Equal means keep the order they came in.
    """
    metric = metric_of(theory)
    values = [summaries[metric.key] for summaries in methods]
    scores = {
        index: metric.better * value.mean
        for index, value in enumerate(values)
        if value.mean is not None
    }
    ranks = {
        index: 1 + sum(other > score for other in scores.values())
        for index, score in scores.items()
    }
    order = sorted(range(len(methods)), key=lambda index: ranks.get(index, len(methods) + 1))
    return [RankedMethod(index, ranks.get(index), values[index]) for index in order]
