"""Measures over the clients of one run, as plain functions of their numbers.

Accuracies are percentages (0 to 100). Means and sums are correctly rounded (`statistics`,
`math.fsum`), so the order of the clients cannot change a bit and equal values have exactly that
value as mean. `udjfl.metrics` makes metrics of them.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING

from udjfl.errors import DataError

if TYPE_CHECKING:
    import numpy as np
    import torch

    Numbers = Sequence[float] | np.ndarray | torch.Tensor

# Differences smaller than this, relative to the numbers compared, are rounding and not a finding.
ROUNDING = 1e-12
# In larger federations the least advantaged are a tenth of the clients, not one client.
MOST_CLIENTS_FOR_ONE = 20
# Beyond this r is not told apart from a perfect correlation, whose z is infinite.
LARGEST_R = 0.999


def accuracy_of_most_uncertain(accuracies: Numbers, uncertainties: Numbers) -> float:
    """Return A_k, k = argmax u: the accuracy of the most uncertain client, in percent.

    Higher is better; 0 means that this client gets nothing right. Ties: the first in client order.

    >>> accuracy_of_most_uncertain([96.0, 90.0, 87.0], [0.03, 0.12, 0.23])
    87.0
    """
    accuracies, uncertainties = _aligned(accuracies=accuracies, uncertainties=uncertainties)
    return accuracies[uncertainties.index(max(uncertainties))]


def accuracy_of_least_uncertain(accuracies: Numbers, uncertainties: Numbers) -> float:
    """Return A_k, k = argmin u: the accuracy of the least uncertain client, in percent.

    Higher is better; 0 means that this client gets nothing right. Ties: the first in client order.

    >>> accuracy_of_least_uncertain([96.0, 90.0, 87.0], [0.03, 0.12, 0.23])
    96.0
    """
    accuracies, uncertainties = _aligned(accuracies=accuracies, uncertainties=uncertainties)
    return accuracies[uncertainties.index(min(uncertainties))]


def worst(accuracies: Numbers) -> float:
    """Return min_i A_i: the lowest accuracy of any client, in percent.

    Higher is better; 0 means some client gets nothing right.

    >>> worst([96.0, 84.5, 87.0])
    84.5
    """
    return min(_aligned(accuracies=accuracies)[0])


def mean(accuracies: Numbers) -> float:
    """Return (1/N) sum_i A_i: the mean accuracy in percent, all clients with equal weight.

    Higher is better; 0 means no client gets anything right.

    >>> mean([96.0, 90.0, 87.0])
    91.0
    """
    return exact_mean(_aligned(accuracies=accuracies)[0])


def std(accuracies: Numbers) -> float:
    """Return sqrt( (1/N) sum_i (A_i - mean)^2 ): the spread of accuracies, in percentage points.

    ddof = 0: the clients are the whole population, not a sample. Lower is better (egalitarian); 0
    means that every client has the same accuracy, which a model that serves all clients equally
    badly also reaches. One client gives 0.

    >>> std([94.0, 90.0, 86.0, 90.0])  # deviations 4, 0, -4, 0: sqrt(32 / 4)
    2.8284271247461903
    """
    return statistics.pstdev(_aligned(accuracies=accuracies)[0])


def psi(accuracies: Numbers, reference_accuracies: Numbers, uncertainties: Numbers) -> float | None:
    """Return g_k - (1/(N-1)) sum_{i != k} g_i, with gains g_i = A_i - reference A_i, k = argmax u.

    The paper's measure of Rawls' difference principle, in percentage points; its reference is
    FedAvg. Higher is better. Positive: the most uncertain client gained more than the others did
    on average. 0: it gained the same, as when nothing changed. It can be positive while every
    client loses. Ties for k: the first in client order. None with a single client.

    >>> # gains -2, 1, 4: 4 - (-2 + 1) / 2
    >>> psi([93.0, 91.0, 90.0], [95.0, 90.0, 86.0], [0.03, 0.12, 0.23])
    4.5
    >>> psi([93.0], [95.0], [0.03]) is None
    True
    """
    accuracies, reference_accuracies, uncertainties = _aligned(
        accuracies=accuracies,
        reference_accuracies=reference_accuracies,
        uncertainties=uncertainties,
    )
    if len(accuracies) < 2:
        return None
    gains = [after - before for after, before in zip(accuracies, reference_accuracies, strict=True)]
    gain_of_most_uncertain = gains.pop(uncertainties.index(max(uncertainties)))
    return gain_of_most_uncertain - exact_mean(gains)


def pearson_r(uncertainties: Numbers, accuracies: Numbers) -> float | None:
    """Return sum (u_i - mean u)(A_i - mean A) / sqrt( sum (u_i - mean u)^2 sum (A_i - mean A)^2 ).

    The paper's measure of desert: lower is better. -1: accuracy falls exactly in line with
    uncertainty. 0: no linear relation. 1: the more uncertain, the better served. It does not
    depend on how large the differences are. None with fewer than two clients, or when all
    uncertainties or all accuracies are equal (up to rounding).

    >>> # deviations -1, 0, 1 and 1, -1, 0: -1 / sqrt(2 * 2)
    >>> pearson_r([1.0, 2.0, 3.0], [90.0, 88.0, 89.0])
    -0.5
    >>> pearson_r([1.0, 2.0, 3.0], [90.0, 90.0, 90.0]) is None
    True
    """
    uncertainties, accuracies = _aligned(uncertainties=uncertainties, accuracies=accuracies)
    if pearson_r_undefined(uncertainties, accuracies) is not None:
        return None
    du, da = _scaled_deviations(uncertainties), _scaled_deviations(accuracies)
    covariance = math.fsum(u * a for u, a in zip(du, da, strict=True))
    r = covariance / math.sqrt(math.fsum(u * u for u in du) * math.fsum(a * a for a in da))
    return max(-1.0, min(1.0, r))  # rounding can leave the range by one bit


def corrected_std(accuracies: Numbers, test_sizes: Numbers) -> float:
    """Return sqrt( max(0, var A - (1/N) sum_i A_i (100 - A_i) / n_i) ): STD without test noise.

    A_i is counted on n_i test examples, so it carries the variance p (1 - p) / n_i of a share, and
    small test parts spread the accuracies of clients that are served alike. In percentage points;
    lower is better. 0 means that clients differ by no more than their test parts explain.

    >>> # variance 400, noise (90 * 10 + 50 * 50) / 100 / 2 = 17: sqrt(383)
    >>> round(corrected_std([90.0, 50.0], [100, 100]), 4)
    19.5704
    >>> corrected_std([80.0, 81.0], [80, 80])
    0.0
    """
    accuracies, test_sizes = _aligned(accuracies=accuracies, test_sizes=test_sizes)
    if min(test_sizes) < 1:
        raise DataError("test_sizes: every client needs at least one test example.")
    noise = exact_mean([a * (100 - a) / n for a, n in zip(accuracies, test_sizes, strict=True)])
    return math.sqrt(max(0.0, statistics.pvariance(accuracies) - noise))


def least_advantaged(disadvantages: Numbers) -> list[int]:
    """Return the indices of the least advantaged clients, those with the highest numbers.

    One client, the first of equals; with more than 20 clients a tenth of them. Pass uncertainties
    for the paper's choice, or for the lowest score (alone, or under FedAvg) the negative scores.

    >>> least_advantaged([0.03, 0.23, 0.12])
    [1]
    >>> least_advantaged([-96.0, -90.0, -87.0])
    [2]
    """
    (disadvantages,) = _aligned(disadvantages=disadvantages)
    order = sorted(range(len(disadvantages)), key=lambda index: -disadvantages[index])
    return sorted(order[: count_least_advantaged(len(order))])


def count_least_advantaged(n_clients: int) -> int:
    """Return how many clients count as the least advantaged: one, or a tenth of more than 20."""
    return n_clients // 10 if n_clients > MOST_CLIENTS_FOR_ONE else 1


def gains_by_client(accuracies: Numbers, reference_accuracies: Numbers) -> list[float]:
    """Return the gain over the reference of each client, in percentage points.

    >>> gains_by_client([93.0, 91.0], [95.0, 90.0])
    [-2.0, 1.0]
    """
    accuracies, reference_accuracies = _aligned(
        accuracies=accuracies, reference_accuracies=reference_accuracies
    )
    return [after - before for after, before in zip(accuracies, reference_accuracies, strict=True)]


def gains_of(
    members: Sequence[int], accuracies: Numbers, reference_accuracies: Numbers
) -> tuple[float, float | None]:
    """Return the mean gain over the reference of some clients, and that of all others.

    In percentage points. 0 means as under the reference. The second is None if nobody else is left.

    >>> gains_of([2], [93.0, 91.0, 90.0], [95.0, 90.0, 86.0])  # 4, and (-2 + 1) / 2
    (4.0, -0.5)
    """
    gains = gains_by_client(accuracies, reference_accuracies)
    chosen = set(members)
    others = [gain for index, gain in enumerate(gains) if index not in chosen]
    own = exact_mean([gains[index] for index in members])
    return own, exact_mean(others) if others else None


def slope(uncertainties: Numbers, accuracies: Numbers) -> float | None:
    """Return sum (u_i - mean u)(A_i - mean A) / sum (u_i - mean u)^2, the least-squares slope.

    Percentage points of accuracy per unit of uncertainty. Lower is steeper (desert): -40 means that
    a client with 0.1 more uncertainty has 4 points less. 0: accuracy does not follow uncertainty.
    Unlike r it has no end, and depends on how large the differences are. None with fewer than two
    clients, or when all uncertainties are equal (up to rounding).

    >>> # deviations -0.1, 0, 0.1 and 6, 0, -6: -1.2 / 0.02
    >>> round(slope([0.1, 0.2, 0.3], [96.0, 90.0, 84.0]), 9)
    -60.0
    """
    uncertainties, accuracies = _aligned(uncertainties=uncertainties, accuracies=accuracies)
    if slope_undefined(uncertainties) is not None:
        return None
    centre, level = exact_mean(uncertainties), exact_mean(accuracies)
    deviations = [u - centre for u in uncertainties]
    scale = max(abs(deviation) for deviation in deviations)  # the squares of small ones underflow
    du = [deviation / scale for deviation in deviations]
    products = math.fsum(u * (a - level) for u, a in zip(du, accuracies, strict=True))
    return products / math.fsum(u * u for u in du) / scale


def gap(uncertainties: Numbers, accuracies: Numbers) -> float | None:
    """Return the mean accuracy of the least uncertain clients minus that of the most uncertain.

    Each side is a third of the clients (rounded down), at least one. In percentage points. 0: the
    best and the worst data are served alike. None with fewer than two clients.

    >>> gap([0.03, 0.12, 0.23], [96.0, 90.0, 87.0])
    9.0
    """
    uncertainties, accuracies = _aligned(uncertainties=uncertainties, accuracies=accuracies)
    if len(accuracies) < 2:
        return None
    order = sorted(range(len(accuracies)), key=lambda index: uncertainties[index])
    count = max(1, len(order) // 3)
    low, high = order[:count], order[-count:]
    return exact_mean([accuracies[i] for i in low]) - exact_mean([accuracies[i] for i in high])


def fisher_z(r: float) -> float:
    """Return artanh r, the scale on which correlations are tested; |r| counts as 0.999 at most.

    >>> round(fisher_z(0.5), 4), round(fisher_z(-1.0), 4)
    (0.5493, -3.8002)
    """
    return math.atanh(max(-LARGEST_R, min(LARGEST_R, r)))


def exact_mean(values: Sequence[float]) -> float:
    """Return the correctly rounded mean of floats: that of `statistics`, but faster.

    >>> exact_mean([1e16, 1.0, -1e16])  # 1 / 3, not 0
    0.3333333333333333
    """
    try:
        ratios = [value.as_integer_ratio() for value in values]
    except (OverflowError, ValueError):  # one is infinite or NaN, and so is the mean
        return statistics.mean(values)
    common = max(bottom for _, bottom in ratios)  # all are powers of two
    return sum(top * (common // bottom) for top, bottom in ratios) / (common * len(ratios))


def finite_numbers(name: str, values: Numbers) -> list[float]:
    """Return the values as plain floats; an error names the field and the first bad entry."""
    numbers = floats(name, values)
    for index, number in enumerate(numbers):
        if not math.isfinite(number):
            raise DataError(f"{name}[{index}] is {number}; every value must be a finite number.")
    return numbers


def floats(name: str, values: Numbers) -> list[float]:
    """Return the values as plain floats; an error names the field."""
    try:
        return [
            float(value) for value in (values if isinstance(values, Sequence) else values.tolist())
        ]
    except (TypeError, ValueError) as error:
        raise DataError(
            f"{name} must be a row of plain numbers, one for each client or seed."
        ) from error


def _aligned(**columns: Numbers) -> list[list[float]]:
    """Return each column as plain floats; all have the same number of clients, at least one."""
    numbers = {name: finite_numbers(name, values) for name, values in columns.items()}
    lengths = {len(values) for values in numbers.values()}
    if len(lengths) > 1 or 0 in lengths:
        counts = ", ".join(f"{name} has {len(values)}" for name, values in numbers.items())
        raise DataError(
            f"Every client needs one number in each, and there must be a client: {counts}."
        )
    return list(numbers.values())


def _is_constant(values: Sequence[float]) -> bool:
    return max(values) - min(values) <= ROUNDING * max(abs(value) for value in values)


def _scaled_deviations(values: list[float]) -> list[float]:
    """Return the deviations from the mean, divided by the largest of them.

    r does not depend on the scale, but the squares of small deviations can underflow.
    """
    centre = exact_mean(values)
    deviations = [value - centre for value in values]
    largest = max(abs(deviation) for deviation in deviations)
    return [deviation / largest for deviation in deviations]


def slope_undefined(uncertainties: Sequence[float]) -> str | None:
    """Return why accuracies cannot follow these uncertainties, or None if they can."""
    if len(uncertainties) < 2:
        return "A correlation needs at least two clients."
    if _is_constant(uncertainties):
        return "All clients have the same uncertainty, so nothing can correlate with it."
    return None


def pearson_r_undefined(uncertainties: Sequence[float], accuracies: Sequence[float]) -> str | None:
    """Return why there is no correlation, or None if there is one."""
    reason = slope_undefined(uncertainties)
    if reason is None and _is_constant(accuracies):
        return "All clients have the same accuracy, so nothing can correlate with it."
    return reason
