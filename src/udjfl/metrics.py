"""What a finished run did to every client, as numbers.

Accuracies are percentages (0 to 100), as in the paper (Carey & Wu, FAccT 2025). Sequences have one number per client,
all in the same client order. A metric that has no value for the given clients is None, never NaN and never a stand-in
number; `undefined_reason` gives the sentence to show instead. Means and sums are correctly rounded (`statistics`,
`math.fsum`), so the order of the clients cannot change a bit and equal values have exactly that value as mean.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from udjfl.errors import DataError, did_you_mean

if TYPE_CHECKING:
    import numpy as np
    import torch

    Numbers = Sequence[float] | np.ndarray | torch.Tensor

# Differences smaller than this, relative to the numbers compared, are rounding and not a finding.
ROUNDING = 1e-12
NO_GLOBAL_MODEL = "This method has no single model to test, so it has no global accuracy."


@dataclass(frozen=True)
class Metric:
    """One column of a results table."""

    key: str
    title: str
    better: Literal[-1, 0, 1]
    """1: higher is better. -1: lower is better. 0: neither."""
    unit: str
    description: str


_TABLE: tuple[tuple[str, str, Literal[-1, 0, 1], str, str], ...] = (
    ("global_accuracy", "Global accuracy", 1, "%", "On the held-out test set."),
    (
        "accuracy_most_uncertain",
        "Most uncertain client",
        1,
        "%",
        "Accuracy of the client with highest uncertainty.",
    ),
    (
        "accuracy_least_uncertain",
        "Least uncertain client",
        1,
        "%",
        "Accuracy of the client with lowest uncertainty.",
    ),
    ("worst_accuracy", "Worst client", 1, "%", "The lowest accuracy of any client."),
    ("mean_accuracy", "Mean accuracy", 1, "%", "The plain mean of the clients' accuracies."),
    (
        "std",
        "STD",
        -1,
        "points",
        "Standard deviation of the clients' accuracies; 0 means equal. Egalitarian.",
    ),
    (
        "psi",
        "Psi",
        1,
        "points",
        "The most uncertain client's gain over the reference, less the others' mean. Rawls.",
    ),
    (
        "pearson_r",
        "Pearson r",
        -1,
        "",
        "Correlation of uncertainty and accuracy; -1 is best. Desert.",
    ),
)
METRICS: tuple[Metric, ...] = tuple(Metric(*row) for row in _TABLE)
"""Every metric, in the order tables show them. Accuracies of clients are on each client's own test data."""


def accuracy_of_most_uncertain(accuracies: Numbers, uncertainties: Numbers) -> float:
    """A_k with k = argmax u: the accuracy of the client with the highest uncertainty, in percent.

    Higher is better; 0 means that client gets nothing right. A tie goes to the first in client order.

    >>> accuracy_of_most_uncertain([96.0, 90.0, 87.0], [0.03, 0.12, 0.23])
    87.0
    """
    values, doubts = _aligned(accuracies=accuracies, uncertainties=uncertainties)
    return values[_most_uncertain(doubts)]


def accuracy_of_least_uncertain(accuracies: Numbers, uncertainties: Numbers) -> float:
    """A_k with k = argmin u: the accuracy of the client with the lowest uncertainty, in percent.

    Higher is better; 0 means that client gets nothing right. A tie goes to the first in client order.

    >>> accuracy_of_least_uncertain([96.0, 90.0, 87.0], [0.03, 0.12, 0.23])
    96.0
    """
    values, doubts = _aligned(accuracies=accuracies, uncertainties=uncertainties)
    return values[doubts.index(min(doubts))]


def worst(accuracies: Numbers) -> float:
    """min_i A_i: the lowest accuracy of any client, in percent, whatever its uncertainty.

    Higher is better; 0 means some client gets nothing right.

    >>> worst([96.0, 84.5, 87.0])
    84.5
    """
    (values,) = _aligned(accuracies=accuracies)
    return min(values)


def mean(accuracies: Numbers) -> float:
    """(1/N) sum_i A_i: the mean accuracy in percent, every client counting the same whatever its size.

    Higher is better; 0 means no client gets anything right.

    >>> mean([96.0, 90.0, 87.0])
    91.0
    """
    (values,) = _aligned(accuracies=accuracies)
    return statistics.mean(values)


def std(accuracies: Numbers) -> float:
    """sqrt( (1/N) sum_i (A_i - mean)^2 ): the spread of accuracies over clients, in percentage points.

    ddof = 0: the clients are all there are, not a sample of more. Lower is better (egalitarian); 0 means every client
    has the same accuracy, which a model that serves all equally badly also reaches. One client gives 0.

    >>> std([94.0, 90.0, 86.0, 90.0])  # deviations 4, 0, -4, 0: sqrt(32 / 4)
    2.8284271247461903
    """
    (values,) = _aligned(accuracies=accuracies)
    return statistics.pstdev(values)


def psi(accuracies: Numbers, reference_accuracies: Numbers, uncertainties: Numbers) -> float | None:
    """Psi = g_k - (1/(N-1)) sum_{i != k} g_i, with gains g_i = A_i - reference A_i and k = argmax u; percentage points.

    The paper's measure of Rawls' difference principle; its reference is FedAvg. Higher is better. Positive: the most
    uncertain client gained more than the others did on average. 0: it gained the same, as when nothing changed. It can
    be positive while everybody loses. A tie for k goes to the first in client order. None with a single client.

    >>> psi([93.0, 91.0, 90.0], [95.0, 90.0, 86.0], [0.03, 0.12, 0.23])  # gains -2, 1, 4: 4 - (-2 + 1) / 2
    4.5
    >>> psi([93.0], [95.0], [0.03]) is None
    True
    """
    values, reference, doubts = _aligned(
        accuracies=accuracies,
        reference_accuracies=reference_accuracies,
        uncertainties=uncertainties,
    )
    if _why_no_psi(values, reference) is not None:
        return None
    gains = [value - before for value, before in zip(values, reference, strict=True)]
    own_gain = gains.pop(_most_uncertain(doubts))
    return own_gain - statistics.mean(gains)


def pearson_r(uncertainties: Numbers, accuracies: Numbers) -> float | None:
    """r = sum (u_i - mean u)(A_i - mean A) / sqrt( sum (u_i - mean u)^2 sum (A_i - mean A)^2 ); no unit, ddof cancels.

    The paper's measure of desert: lower is better. -1: accuracy falls exactly in line with uncertainty. 0: no linear
    relation. 1: the more uncertain, the better served. It says nothing about how large the differences are. None with
    fewer than two clients, or when all uncertainties or all accuracies are equal (up to rounding).

    >>> pearson_r([1.0, 2.0, 3.0], [90.0, 88.0, 89.0])  # deviations -1, 0, 1 and 1, -1, 0: -1 / sqrt(2 * 2)
    -0.5
    >>> pearson_r([1.0, 2.0, 3.0], [90.0, 90.0, 90.0]) is None
    True
    """
    doubts, values = _aligned(uncertainties=uncertainties, accuracies=accuracies)
    if _why_no_r(values, doubts) is not None:
        return None
    du, da = _scaled_deviations(doubts), _scaled_deviations(values)
    covariance = math.fsum(u * a for u, a in zip(du, da, strict=True))
    r = covariance / math.sqrt(math.fsum(u * u for u in du) * math.fsum(a * a for a in da))
    return max(-1.0, min(1.0, r))  # rounding can leave the range by one bit


def evaluate(
    global_accuracy: float | None,
    accuracies: Numbers,
    uncertainties: Numbers,
    reference_accuracies: Numbers | None = None,
) -> dict[str, float | None]:
    """Every metric of one run by its key, in the order of `METRICS`. None means undefined; see `undefined_reason`.

    `global_accuracy` is None for a method that has no single model. `reference_accuracies` are the same clients' under
    the reference method (FedAvg in the paper) with the same seed; without them psi is None.
    """
    return {
        "global_accuracy": None if global_accuracy is None else float(global_accuracy),
        "accuracy_most_uncertain": accuracy_of_most_uncertain(accuracies, uncertainties),
        "accuracy_least_uncertain": accuracy_of_least_uncertain(accuracies, uncertainties),
        "worst_accuracy": worst(accuracies),
        "mean_accuracy": mean(accuracies),
        "std": std(accuracies),
        "psi": None
        if reference_accuracies is None
        else psi(accuracies, reference_accuracies, uncertainties),
        "pearson_r": pearson_r(uncertainties, accuracies),
    }


def undefined_reason(
    key: str,
    global_accuracy: float | None,
    accuracies: Numbers,
    uncertainties: Numbers,
    reference_accuracies: Numbers | None = None,
) -> str | None:
    """Why `evaluate` with these arguments has None under this key: the sentence to show. None if there is a number."""
    if key not in {metric.key for metric in METRICS}:
        raise DataError(
            f"There is no metric {key!r}." + did_you_mean(key, [metric.key for metric in METRICS])
        )
    values, doubts = _aligned(accuracies=accuracies, uncertainties=uncertainties)
    if key == "global_accuracy" and global_accuracy is None:
        return NO_GLOBAL_MODEL
    if key == "psi":
        return _why_no_psi(values, reference_accuracies)
    return _why_no_r(values, doubts) if key == "pearson_r" else None


def finite_numbers(name: str, values: Numbers) -> list[float]:
    """The values as plain floats, or an error that names the field and the first bad entry."""
    try:
        numbers = [
            float(value) for value in (values if isinstance(values, Sequence) else values.tolist())
        ]
    except (TypeError, ValueError) as error:
        raise DataError(
            f"{name} must be a row of plain numbers, one for each client or seed."
        ) from error
    for index, number in enumerate(numbers):
        if not math.isfinite(number):
            raise DataError(f"{name}[{index}] is {number}; every value must be a finite number.")
    return numbers


def _aligned(**columns: Numbers) -> list[list[float]]:
    """Each column as plain floats, all with the same number of clients and at least one."""
    numbers = {name: finite_numbers(name, values) for name, values in columns.items()}
    lengths = {len(values) for values in numbers.values()}
    if len(lengths) > 1 or 0 in lengths:
        found = ", ".join(f"{name} has {len(values)}" for name, values in numbers.items())
        raise DataError(
            f"Every client needs one number in each, and there must be a client: {found}."
        )
    return list(numbers.values())


def _most_uncertain(uncertainties: list[float]) -> int:
    return uncertainties.index(max(uncertainties))


def _constant(values: list[float]) -> bool:
    return max(values) - min(values) <= ROUNDING * max(abs(value) for value in values)


def _scaled_deviations(values: list[float]) -> list[float]:
    """Deviations from the mean over the largest of them: r does not depend on scale, but squares can underflow."""
    centre = statistics.mean(values)
    deviations = [value - centre for value in values]
    largest = max(abs(deviation) for deviation in deviations)
    return [deviation / largest for deviation in deviations]


def _why_no_psi(accuracies: list[float], reference_accuracies: Numbers | None) -> str | None:
    if reference_accuracies is None:
        return "Psi compares with a reference method, and there are no reference accuracies for this run."
    if len(accuracies) < 2:
        return (
            "Psi compares the most uncertain client with the others, and there is only one client."
        )
    return None


def _why_no_r(accuracies: list[float], uncertainties: list[float]) -> str | None:
    if len(accuracies) < 2:
        return "A correlation needs at least two clients."
    if _constant(uncertainties):
        return "All clients have the same uncertainty, so nothing can correlate with it."
    if _constant(accuracies):
        return "All clients have the same accuracy, so nothing can correlate with it."
    return None
