"""The metrics of a finished run: a table of functions.

Accuracies are percentages (0 to 100), as in the paper (Carey & Wu, FAccT 2025). A metric without a
value for the given clients is None, never NaN and never a stand-in number, and has a sentence that
says why. Means and sums are correctly rounded (`statistics`, `math.fsum`), so the order of the
clients cannot change a bit and equal values have exactly that value as mean.

To add a metric, write a function of an `Outcome` and register it:

    def accuracy_range(outcome):
        return max(outcome.accuracies) - min(outcome.accuracies)

    register_metric(
        Metric("range", "Range", accuracy_range, better=-1, unit="points", description="...")
    )

It then appears in results, tables, JSON, saved runs and reports. An installed package can do the
same with an entry point of the group `udjfl.metrics`, named like the key of its `Metric`.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from udjfl._spec import Registry
from udjfl.errors import DataError, SettingsError

if TYPE_CHECKING:
    import numpy as np
    import torch

    Numbers = Sequence[float] | np.ndarray | torch.Tensor

# Differences smaller than this, relative to the numbers compared, are rounding and not a finding.
ROUNDING = 1e-12
NO_GLOBAL_MODEL = "This method has no single model to test, so it has no global accuracy."
NO_UNCERTAINTY = "No client has an uncertainty."
ONE_CLIENT = "Psi compares the most uncertain client with the others, and there is only one client."
# Names that stand beside the metrics in the JSON of a run or of a comparison.
RESERVED = (
    *("method", "theory", "label", "params", "grade", "seed", "seeds", "undefined", "notes"),
    *("failed", "client_accuracy", "uncertainty", "epistemic", "against_fedavg", "folder"),
    "expected_accuracy",
)


@dataclass(frozen=True)
class Outcome:
    """The numbers of a finished run that metrics are computed from.

    The sequences have one number per client, all in the same client order.

    accuracies            percent, on each client's own test data
    uncertainties         NaN for a client whose uncertainty is unknown
    reference_accuracies  the same clients' under the reference method (FedAvg) with the same seed
    global_accuracy       percent, on the held-out test set; None if there is no single model
    """

    accuracies: Sequence[float]
    uncertainties: Sequence[float]
    reference_accuracies: Sequence[float] | None = None
    global_accuracy: float | None = None

    def __post_init__(self) -> None:
        for name in ("accuracies", "uncertainties", "reference_accuracies"):
            if (column := getattr(self, name)) is not None:
                object.__setattr__(self, name, tuple(_floats(name, column)))

    def with_known_uncertainties(self) -> Outcome:
        """Leave out the clients whose uncertainty is unknown."""
        known = [i for i, value in enumerate(self.uncertainties) if math.isfinite(value)]
        reference = self.reference_accuracies
        return Outcome(
            [self.accuracies[i] for i in known],
            [self.uncertainties[i] for i in known],
            None if reference is None else [reference[i] for i in known],
            self.global_accuracy,
        )


@dataclass(frozen=True)
class Metric:
    """One column of a results table, with the function that computes it.

    better               1: higher is better; -1: lower is better; 0: neither
    short                heading of a narrow column; the title if empty
    needs_uncertainties  compute it over the clients whose uncertainty is known
    needs_reference      leave it out of runs that have no reference accuracies
    undefined_reason     function that returns why there is no value, or None if there is one
    """

    key: str
    title: str
    compute: Callable[[Outcome], float | None]
    better: Literal[-1, 0, 1]
    unit: str
    description: str
    short: str = ""
    needs_uncertainties: bool = False
    needs_reference: bool = False
    undefined_reason: Callable[[Outcome], str | None] | None = None

    @property
    def heading(self) -> str:
        """The heading of a narrow column."""
        return self.short or self.title

    def evaluate(self, outcome: Outcome) -> tuple[float | None, str | None]:
        """Return the value and None, or None and the reason why there is no value."""
        if self.needs_uncertainties:
            outcome = outcome.with_known_uncertainties()
            if not outcome.accuracies:
                return None, NO_UNCERTAINTY
        if self.undefined_reason and (reason := self.undefined_reason(outcome)) is not None:
            return None, reason
        value = self.compute(outcome)
        if value is None or not math.isfinite(value):
            return None, f"{self.title} is not defined for this run."
        return float(value), None


METRICS: Registry[Metric] = Registry("metric", "udjfl.metrics")
"""Every metric by its key, in the order of the columns of a table."""


def register_metric(metric: Metric) -> Metric:
    """Add a metric as the last column of every table."""
    if metric.key in RESERVED:
        raise SettingsError(
            f"metric: {metric.key!r} has another meaning in results; choose another key"
        )
    return METRICS.register(metric.key, metric)


def compute_metrics(outcome: Outcome) -> tuple[dict[str, float | None], dict[str, str]]:
    """Compute every metric by its key, None where undefined, and the reasons of those.

    Metrics that compare with a reference are left out where there is none.
    """
    values: dict[str, float | None] = {}
    reasons: dict[str, str] = {}
    for key, metric in METRICS.items():
        if metric.needs_reference and outcome.reference_accuracies is None:
            continue
        values[key], reason = metric.evaluate(outcome)
        if reason is not None:
            reasons[key] = reason
    return values, reasons


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
    return statistics.mean(_aligned(accuracies=accuracies)[0])


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
    return gain_of_most_uncertain - statistics.mean(gains)


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
    if _pearson_r_undefined(uncertainties, accuracies) is not None:
        return None
    du, da = _scaled_deviations(uncertainties), _scaled_deviations(accuracies)
    covariance = math.fsum(u * a for u, a in zip(du, da, strict=True))
    r = covariance / math.sqrt(math.fsum(u * u for u in du) * math.fsum(a * a for a in da))
    return max(-1.0, min(1.0, r))  # rounding can leave the range by one bit


def finite_numbers(name: str, values: Numbers) -> list[float]:
    """Return the values as plain floats; an error names the field and the first bad entry."""
    numbers = _floats(name, values)
    for index, number in enumerate(numbers):
        if not math.isfinite(number):
            raise DataError(f"{name}[{index}] is {number}; every value must be a finite number.")
    return numbers


def _floats(name: str, values: Numbers) -> list[float]:
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
    centre = statistics.mean(values)
    deviations = [value - centre for value in values]
    largest = max(abs(deviation) for deviation in deviations)
    return [deviation / largest for deviation in deviations]


def _pearson_r_undefined(uncertainties: Sequence[float], accuracies: Sequence[float]) -> str | None:
    if len(accuracies) < 2:
        return "A correlation needs at least two clients."
    if _is_constant(uncertainties):
        return "All clients have the same uncertainty, so nothing can correlate with it."
    if _is_constant(accuracies):
        return "All clients have the same accuracy, so nothing can correlate with it."
    return None


for _metric in (
    Metric(
        "global_accuracy",
        "Global accuracy",
        lambda o: o.global_accuracy,
        1,
        "%",
        "On the held-out test set.",
        short="Global",
        undefined_reason=lambda o: NO_GLOBAL_MODEL if o.global_accuracy is None else None,
    ),
    Metric(
        "accuracy_most_uncertain",
        "Most uncertain client",
        lambda o: accuracy_of_most_uncertain(o.accuracies, o.uncertainties),
        1,
        "%",
        "Accuracy of the client with highest uncertainty.",
        short="Most\nuncert.",
        needs_uncertainties=True,
    ),
    Metric(
        "accuracy_least_uncertain",
        "Least uncertain client",
        lambda o: accuracy_of_least_uncertain(o.accuracies, o.uncertainties),
        1,
        "%",
        "Accuracy of the client with lowest uncertainty.",
        short="Least\nuncert.",
        needs_uncertainties=True,
    ),
    Metric(
        "worst_accuracy",
        "Worst client",
        lambda o: worst(o.accuracies),
        1,
        "%",
        "The lowest accuracy of any client.",
        short="Worst",
    ),
    Metric(
        "mean_accuracy",
        "Mean accuracy",
        lambda o: mean(o.accuracies),
        1,
        "%",
        "The plain mean of the clients' accuracies.",
        short="Mean",
    ),
    Metric(
        "std",
        "STD",
        lambda o: std(o.accuracies),
        -1,
        "points",
        "Standard deviation of the clients' accuracies; 0 means equal. Egalitarian.",
    ),
    Metric(
        "psi",
        "Psi",
        lambda o: psi(o.accuracies, o.reference_accuracies or (), o.uncertainties),
        1,
        "points",
        "The most uncertain client's gain over the reference, less the others' mean. Rawls.",
        needs_uncertainties=True,
        needs_reference=True,
        undefined_reason=lambda o: ONE_CLIENT if len(o.accuracies) < 2 else None,
    ),
    Metric(
        "pearson_r",
        "Pearson r",
        lambda o: pearson_r(o.uncertainties, o.accuracies),
        -1,
        "",
        "Correlation of uncertainty and accuracy; -1 is best. Desert.",
        short="r",
        needs_uncertainties=True,
        undefined_reason=lambda o: _pearson_r_undefined(o.uncertainties, o.accuracies),
    ),
):
    register_metric(_metric)
METRICS.load_entry_points()
