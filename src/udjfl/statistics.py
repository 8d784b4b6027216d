"""Statistics of metrics over seeds: summaries, paired tests against the reference, and rankings.

A metric without a value on some seed is None there, as in `udjfl.metrics`; that seed is left out of
means and tests, never replaced by a number. Fewer than five seeds decide nothing, and tests of one
table are corrected together (Holm). Rankings order methods by the metric of a theory.
"""

from __future__ import annotations

import functools
import math
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from udjfl._measures import ROUNDING, exact_mean, finite_numbers
from udjfl.errors import DataError
from udjfl.metrics import METRICS, Metric

SIGNIFICANT = 0.05
FEWEST_SEEDS = 5  # fewer decide nothing
POWER = 0.8
SURE = 10.0  # a difference of so many times its spread is seen with the fewest seeds
MOST_SEEDS = 1000  # an effect that needs more is not visible
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
    mean = exact_mean(defined) if defined else None
    return Summary(
        mean=mean,
        ci95=_t_interval(defined, mean),
        values=tuple(None if value is None else float(value) for value in values),
        n=len(defined),
    )


@dataclass(frozen=True)
class PairedTest:
    """A paired t-test of a method against the reference, seed by seed.

    difference  mean of (value - reference value); None if no seed has both
    ci95        95% Student-t interval for that mean; None with fewer than two seeds
    p           two-sided p, above 0. None with n < 2: too few seeds to test. None with n >= 2: the
                differences do not vary, so there is no t; they are all zero, or `always_same`
    n           the number of seeds that have both values
    always_same every seed has the same nonzero difference, up to rounding
    """

    difference: float | None
    ci95: tuple[float, float] | None
    p: float | None
    n: int
    always_same: bool = False

    @property
    def sort_p(self) -> float | None:
        """The p to correct and to compare: 0 where the difference is always the same."""
        return 0.0 if self.always_same else self.p

    def is_significant(self, corrected_p: float | None = None) -> bool:
        """Tell if at least five seeds show a difference, at 5% by this p or by the test's own."""
        p = self.sort_p if corrected_p is None else corrected_p
        return self.n >= FEWEST_SEEDS and p is not None and p < SIGNIFICANT

    def shows_rise(self, corrected_p: float | None = None) -> bool:
        """Tell if the value is significantly higher than the reference value."""
        return (self.difference or 0.0) > 0 and self.is_significant(corrected_p)

    def shows_fall(self, corrected_p: float | None = None) -> bool:
        """Tell if the value is significantly lower than the reference value."""
        return (self.difference or 0.0) < 0 and self.is_significant(corrected_p)


def paired_test(
    values: Sequence[float | None],
    reference_values: Sequence[float | None],
    scale: Callable[[float], float] | None = None,
) -> PairedTest:
    """Test over seeds: t = mean(d) / (s / sqrt(n)), d = value - reference value, s at ddof = 1.

    Both sequences are in the same order of seeds; a seed where either is None is dropped. A
    positive difference means that the value is higher than the reference value; the metric's
    `better` tells whether that is good. 0 means no difference on average. With a `scale`, p is that
    of the transformed values, as Fisher's z of correlations; difference and interval stay as they
    are.

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
    difference = exact_mean(differences) if differences else None
    ci95 = _t_interval(differences, difference)
    if scale is not None:
        ours, theirs = [scale(value) for value in ours], [scale(value) for value in theirs]
    p, always_same = _paired_p(ours, theirs)
    return PairedTest(difference, ci95, p, len(both), always_same)


def _paired_p(ours: list[float], theirs: list[float]) -> tuple[float | None, bool]:
    """Return p, and whether the difference is always the same and not zero."""
    differences = [value - reference for value, reference in zip(ours, theirs, strict=True)]
    if len(differences) < 2:
        return None, False
    scale = max(abs(number) for number in ours + theirs)
    if max(abs(difference) for difference in differences) <= ROUNDING * scale:
        return None, False
    if max(differences) - min(differences) <= ROUNDING * scale:
        return None, True
    from scipy import stats  # not at the top: it takes long to import

    # p does not depend on the scale, but scipy's squares would under- or overflow at extreme ones.
    p = stats.ttest_rel([v / scale for v in ours], [w / scale for w in theirs]).pvalue
    return max(float(p), sys.float_info.min), False


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Apply Holm's step-down correction.

    The smallest of m is multiplied by m, the next by m - 1, and so on; never falling, at most 1. A
    missing p counts in m, as a test that could have been made, and stays missing.

    >>> holm([0.01, 0.04, 0.02])  # 0.01 * 3, 0.02 * 2, and 0.04 * 1, none below the one before
    [0.03, 0.04, 0.04]
    """
    adjusted: list[float | None] = [None] * len(p_values)
    largest = 0.0
    known = sorted((p, index) for index, p in enumerate(p_values) if p is not None)
    for rank, (p, index) in enumerate(known):
        largest = max(largest, min(1.0, p * (len(p_values) - rank)))
        adjusted[index] = largest
    return adjusted


def correct_tests(tests: Sequence[PairedTest]) -> list[float | None]:
    """Correct the p of the tests of one table (Holm); tests that could not be made do not count.

    >>> same = PairedTest(1.0, (1.0, 1.0), None, 5, always_same=True)
    >>> none = PairedTest(0.0, (0.0, 0.0), None, 5)
    >>> correct_tests([PairedTest(2.0, (0.1, 3.9), 0.04, 5), none, same])  # 0 * 2, 0.04 * 1
    [0.04, None, 0.0]
    """
    defined = [index for index, test in enumerate(tests) if test.sort_p is not None]
    adjusted = holm([tests[index].sort_p for index in defined])
    by_index = dict(zip(defined, adjusted, strict=True))
    return [by_index.get(index) for index in range(len(tests))]


def correction_factors(tests: Sequence[PairedTest]) -> list[int | None]:
    """Return what Holm's correction multiplies each p by: p below 5% / factor is significant.

    Unlike a corrected p, which is at most 1, it still tells how far a test is from that.

    >>> tests = [PairedTest(1.0, (-1.0, 3.0), p, 5) for p in (0.9, 0.01, 0.8)]
    >>> correction_factors(tests)
    [1, 3, 2]
    """
    known = sorted((t.sort_p, i) for i, t in enumerate(tests) if t.sort_p is not None)
    factors = {index: len(known) - rank for rank, (_, index) in enumerate(known)}
    return [factors.get(index) for index in range(len(tests))]


def seeds_needed(differences: Sequence[float], level: float = SIGNIFICANT) -> int | None:
    """Return how many seeds would show a difference like this one with a power of 80%.

    It assumes that the mean and the spread of these differences (s at ddof = 1) are the true ones,
    and a two-sided paired t-test at this level. At least five; None if it takes more than 1000.

    >>> seeds_needed([0.0, 1.0, 2.0])  # mean 1, s = 1: the textbooks' 10 pairs
    10
    >>> seeds_needed([-1.0, 1.0, 0.001]) is None
    True
    """
    from scipy import stats

    effect, spread = abs(statistics.mean(differences)), statistics.stdev(differences)
    if effect * math.sqrt(MOST_SEEDS) <= spread:  # far from any power, and not a division by zero
        return None
    if spread * SURE <= effect:
        return FEWEST_SEEDS
    size = effect / spread
    # With a known spread z(1 - level/2) + z(power) = size sqrt(n); a t-test needs a few more.
    z = float(stats.norm.ppf(1 - level / 2) + stats.norm.ppf(POWER))
    for n in range(max(FEWEST_SEEDS, math.floor((z / size) ** 2)), MOST_SEEDS + 1):
        critical = stats.t.ppf(1 - level / 2, n - 1)
        if stats.nct.sf(critical, n - 1, size * math.sqrt(n)) >= POWER:
            return n
    return None


def _t_interval(values: list[float], mean: float | None) -> tuple[float, float] | None:
    if mean is None or len(values) < 2:
        return None
    half_width = _t_quantile(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return mean - half_width, mean + half_width


@functools.cache  # a table has hundreds of intervals, all over the same number of seeds
def _t_quantile(freedom: int) -> float:
    """Return t(0.975, freedom)."""
    from scipy import stats

    return float(stats.t.ppf(0.975, freedom))


@dataclass(frozen=True)
class RankedMethod:
    """One method's rank by the metric of a theory.

    index  its position among the methods that were ranked
    rank   counts from 1; values that are equal up to rounding share the better rank; None for a
           method without a value or left out
    value  the metric over seeds
    reason why the method is left out of the ranking, None if it is not
    """

    index: int
    rank: int | None
    value: Summary
    reason: str | None = None


def metric_of(theory: str) -> Metric:
    """Return the metric that a theory sets out to improve."""
    return METRICS[THEORY_METRIC[theory]]


def rounding_of(summaries: Iterable[Summary]) -> float:
    """Return the largest difference between means of these values that is rounding.

    >>> rounding_of([summarise([80.0, None]), summarise([-100.0])])
    1e-10
    """
    values = (value for summary in summaries for value in summary.values)
    return ROUNDING * max((abs(value) for value in values if value is not None), default=0.0)


def is_above(one: Summary, other: Summary, better: int = 1) -> bool:
    """Tell whether a mean is better than another by more than rounding; False if one is missing.

    The rounding is that of these two: the values of a third, which may have diverged, do not count.
    """
    if one.mean is None or other.mean is None:
        return False
    return better * (one.mean - other.mean) > rounding_of([one, other])


def rank_methods(
    theory: str,
    methods: Sequence[Mapping[str, Summary]],
    left_out: Mapping[int, str] | None = None,
    score_better: int = 1,
) -> list[RankedMethod]:
    """Rank methods, given by their summaries, by the mean over seeds, best first.

    `left_out` has the reason for each index that is not ranked, such as a model that was not
    trained. Those come last, after the methods without a value. Means that are equal up to rounding
    keep the order they came in. `score_better` is the direction in which the judged score is
    better.
    """
    metric, reasons = metric_of(theory), left_out or {}
    values = [summaries[metric.key] for summaries in methods]
    better = metric.better_for(score_better)
    ranked = [
        index
        for index, value in enumerate(values)
        if value.mean is not None and index not in reasons
    ]
    ranks = {
        index: 1 + sum(is_above(values[other], values[index], better) for other in ranked)
        for index in ranked
    }
    last = len(methods) + 1
    order = sorted(range(len(methods)), key=lambda i: (i in reasons, ranks.get(i, last)))
    return [RankedMethod(i, ranks.get(i), values[i], reasons.get(i)) for i in order]
