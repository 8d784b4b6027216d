"""Measures of inequality between clients, as they are common in papers on fair methods.

All are computed over the clients of one run, with equal weight. None of them can tell whether the
clients are served equally well or equally badly: read them beside the mean and the worst client.

Jain, Chiu, Hawe, "A quantitative measure of fairness and discrimination for resource allocation in
shared computer systems", DEC research report TR-301, 1984. Gini, "Variabilita e mutabilita", 1912.
Cosine and entropy as measures of uniformity: Li, Sanjabi, Beirami, Smith, "Fair resource allocation
in federated learning", ICLR 2020.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from udjfl._measures import finite_numbers, std
from udjfl.errors import DataError
from udjfl.metrics.base import Metric, Outcome

if TYPE_CHECKING:
    from udjfl._measures import Numbers

NOT_POSITIVE = "{} needs scores that are not negative, and not all zero."


def jain_index(accuracies: Numbers) -> float:
    """Return (sum_i A_i)^2 / (N sum_i A_i^2): Jain's index.

    Higher is better, from 1/N (one client has everything) to 1 (all have the same). It is
    1 / (1 + CV^2).

    >>> jain_index([90.0, 30.0])  # 120^2 / (2 * 9000)
    0.8
    """
    values = _shares_of_something(accuracies)
    return math.fsum(values) ** 2 / (len(values) * math.fsum(v * v for v in values))


def gini(accuracies: Numbers) -> float:
    """Return sum_i sum_j |A_i - A_j| / (2 N^2 mean): the Gini coefficient.

    Lower is better, from 0 (all have the same) to 1 - 1/N (one client has everything).

    >>> gini([90.0, 30.0])  # (60 + 60) / (2 * 4 * 60)
    0.25
    """
    values = sorted(_shares_of_something(accuracies))
    n = len(values)
    # Sorted, each value is subtracted from those above it and has those below it subtracted.
    differences = math.fsum((2 * rank - n + 1) * value for rank, value in enumerate(values))
    return differences / (n * math.fsum(values))


def coefficient_of_variation(accuracies: Numbers) -> float:
    """Return STD / mean: the spread relative to the level.

    Lower is better; 0 means that all clients have the same. The same STD counts for more where
    clients are served badly.

    >>> coefficient_of_variation([90.0, 30.0])  # 30 / 60
    0.5
    """
    values = _shares_of_something(accuracies)
    return std(values) / statistics.mean(values)


def entropy_of_shares(accuracies: Numbers) -> float:
    """Return -sum_i s_i ln s_i, s_i = A_i / sum_j A_j: the entropy of the clients' shares, in nats.

    Higher is better, up to ln N (all have the same). Compare it between equally many clients only.

    >>> round(entropy_of_shares([90.0, 30.0]), 4)  # -(0.75 ln 0.75 + 0.25 ln 0.25)
    0.5623
    """
    values = _shares_of_something(accuracies)
    total = math.fsum(values)
    return -math.fsum(v / total * math.log(v / total) for v in values if v > 0)


def cosine_with_uniform(accuracies: Numbers) -> float:
    """Return sum_i A_i / (sqrt(N) |A|): the cosine of the angle to the vector of ones.

    Higher is better, up to 1 (all have the same). It is the square root of Jain's index.

    >>> round(cosine_with_uniform([90.0, 30.0]), 4)  # 120 / (sqrt(2) * sqrt(9000))
    0.8944
    """
    return math.sqrt(jain_index(accuracies))


def worst_tenth(accuracies: Numbers) -> float:
    """Return the mean of the worst tenth of the clients (rounded down, at least one).

    Higher is better; with fewer than 20 clients it is the worst client.

    >>> worst_tenth([96.0, 84.5, 87.0])
    84.5
    """
    values = sorted(_at_least_one(accuracies))
    return statistics.mean(values[: _tenth(values)])


def best_tenth(accuracies: Numbers) -> float:
    """Return the mean of the best tenth of the clients (rounded down, at least one).

    Higher is better for them; with fewer than 20 clients it is the best client.

    >>> best_tenth([96.0, 84.5, 87.0])
    96.0
    """
    values = sorted(_at_least_one(accuracies))
    return statistics.mean(values[-_tenth(values) :])


def best_minus_worst(accuracies: Numbers) -> float:
    """Return max_i A_i - min_i A_i, in percentage points.

    Lower is better; 0 means that all clients have the same. It grows with the number of clients.

    >>> best_minus_worst([96.0, 84.5, 87.0])
    11.5
    """
    values = _at_least_one(accuracies)
    return max(values) - min(values)


def _tenth(values: Sequence[float]) -> int:
    return max(1, len(values) // 10)


def _at_least_one(accuracies: Numbers) -> list[float]:
    values = finite_numbers("accuracies", accuracies)
    if not values:
        raise DataError("accuracies: there must be a client.")
    return values


def _shares_of_something(accuracies: Numbers) -> list[float]:
    """Return the values, after checking that each can be a share of their sum."""
    values = _at_least_one(accuracies)
    if min(values) < 0 or max(values) <= 0:
        raise DataError("accuracies: must not be negative, and not all zero.")
    return values


def _undefined(title: str, outcome: Outcome) -> str | None:
    values = outcome.accuracies
    return NOT_POSITIVE.format(title) if min(values) < 0 or max(values) <= 0 else None


def _relative(
    key: str,
    title: str,
    measure: Callable[[Numbers], float],
    better: int,
    description: str,
    highest: float | None = 1.0,
) -> Metric:
    """Make a metric of a measure that does not depend on the level."""
    return Metric(
        key,
        title,
        lambda outcome: measure(outcome.accuracies),
        1 if better > 0 else -1,
        "",
        description,
        undefined_reason=functools.partial(_undefined, title),
        in_table=False,
        on_request=True,
        bounds=(0.0, highest),
        digits=4,
    )


ENTRIES = (
    _relative("jain", "Jain's index", jain_index, 1, "Jain's index; 1 means equal. Egalitarian."),
    _relative("gini", "Gini", gini, -1, "Gini coefficient; 0 means equal. Egalitarian."),
    _relative(
        *("cv", "CV", coefficient_of_variation, -1),
        "Coefficient of variation, STD over mean; 0 means equal. Egalitarian.",
        None,
    ),
    _relative(
        *("entropy", "Entropy", entropy_of_shares, 1),
        "Entropy of the clients' shares in the sum of accuracy; ln N means equal. Egalitarian.",
        None,
    ),
    _relative(
        *("cosine", "Cosine", cosine_with_uniform, 1),
        "Cosine with the uniform vector; 1 means equal. Egalitarian.",
    ),
    Metric(
        "worst_tenth",
        "Worst 10%",
        lambda o: o.better * worst_tenth(o.benefits),
        1,
        "%",
        "Mean accuracy of the worst tenth of the clients, at least one.",
        in_table=False,
        on_request=True,
        bounds=(0.0, 100.0),
        is_level=True,
    ),
    Metric(
        "best_tenth",
        "Best 10%",
        lambda o: o.better * best_tenth(o.benefits),
        1,
        "%",
        "Mean accuracy of the best tenth of the clients, at least one.",
        in_table=False,
        on_request=True,
        bounds=(0.0, 100.0),
        is_level=True,
    ),
    Metric(
        "best_minus_worst",
        "Best - worst",
        lambda o: best_minus_worst(o.accuracies),
        -1,
        "points",
        "Highest minus lowest accuracy of a client; 0 means equal. Egalitarian.",
        in_table=False,
        on_request=True,
        bounds=(0.0, None),
    ),
)
