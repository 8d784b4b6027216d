"""The metrics of a finished run: a table of functions.

Accuracies are percentages (0 to 100), as in the paper (Carey & Wu, FAccT 2025). A metric without a
value for the given clients is None, never NaN and never a stand-in number, and has a sentence that
says why. The functions behind them are in `udjfl._measures`.

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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from udjfl._measures import (
    accuracy_of_least_uncertain,
    accuracy_of_most_uncertain,
    corrected_std,
    fisher_z,
    floats,
    gains_of,
    gap,
    least_advantaged,
    mean,
    pearson_r,
    pearson_r_undefined,
    psi,
    slope,
    slope_undefined,
    std,
    worst,
)
from udjfl._spec import Registry
from udjfl.errors import SettingsError

NO_GLOBAL_MODEL = "This method has no single model to test, so it has no global accuracy."
NO_UNCERTAINTY = "No client has an uncertainty."
NO_TEST_SIZES = "The sizes of the clients' test parts are not known."
ONE_CLIENT = "Psi compares the most uncertain client with the others, and there is only one client."
TWO_CLIENTS = "A gap needs at least two clients."
# Names that stand beside the metrics in the JSON of a run or of a comparison.
RESERVED = (
    *("method", "theory", "label", "params", "grade", "seed", "seeds", "undefined", "notes"),
    *("failed", "client_accuracy", "uncertainty", "epistemic", "against_fedavg", "folder"),
    *("test_sizes", "n_classes", "expected_accuracy", "verdicts", "left_out"),
    *("service", "common_accuracy"),
    "accuracy_alone",
)


@dataclass(frozen=True)
class Outcome:
    """The numbers of a finished run that metrics are computed from.

    The sequences have one number per client, all in the same client order.

    accuracies            percent, on each client's own test data
    uncertainties         NaN for a client whose uncertainty is unknown
    reference_accuracies  the same clients' under the reference method (FedAvg) with the same seed
    global_accuracy       percent, on the held-out test set; None if there is no single model
    test_sizes            the number of test examples of each client; None if unknown
    """

    accuracies: Sequence[float]
    uncertainties: Sequence[float]
    reference_accuracies: Sequence[float] | None = None
    global_accuracy: float | None = None
    test_sizes: Sequence[float] | None = None

    def __post_init__(self) -> None:
        for name in ("accuracies", "uncertainties", "reference_accuracies", "test_sizes"):
            if (column := getattr(self, name)) is not None:
                object.__setattr__(self, name, tuple(floats(name, column)))

    def with_known_uncertainties(self) -> Outcome:
        """Leave out the clients whose uncertainty is unknown."""
        known = [i for i, value in enumerate(self.uncertainties) if math.isfinite(value)]
        reference, sizes = self.reference_accuracies, self.test_sizes
        return Outcome(
            [self.accuracies[i] for i in known],
            [self.uncertainties[i] for i in known],
            None if reference is None else [reference[i] for i in known],
            self.global_accuracy,
            None if sizes is None else [sizes[i] for i in known],
        )


@dataclass(frozen=True)
class Metric:
    """A number of a finished run, with the function that computes it.

    better               1: higher is better; -1: lower is better; 0: neither
    short                heading of a narrow column; the title if empty
    needs_uncertainties  compute it over the clients whose uncertainty is known
    needs_reference      leave it out of runs that have no reference accuracies
    needs_test_sizes     leave it out of runs whose test parts have unknown sizes
    undefined_reason     function that returns why there is no value, or None if there is one
    in_table             show it as a column of tables; otherwise it is in the view of one run, in
                         JSON and where a verdict needs it
    bounds               the ends of its scale, None where there is none
    test_scale           transformation of the values before a test of their differences
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
    needs_test_sizes: bool = False
    undefined_reason: Callable[[Outcome], str | None] | None = None
    in_table: bool = True
    bounds: tuple[float | None, float | None] = (None, None)
    test_scale: Callable[[float], float] | None = None

    @property
    def heading(self) -> str:
        """The heading of a narrow column."""
        return self.short or self.title

    def clip(self, interval: tuple[float, float]) -> tuple[float, float]:
        """Return the part of an interval that lies on the metric's scale."""
        low, high = self.bounds
        ends = [end if low is None else max(low, end) for end in interval]
        ends = [end if high is None else min(high, end) for end in ends]
        return ends[0], ends[1]

    def evaluate(self, outcome: Outcome) -> tuple[float | None, str | None]:
        """Return the value and None, or None and the reason why there is no value."""
        if self.needs_uncertainties:
            outcome = outcome.with_known_uncertainties()
            if not outcome.accuracies:
                return None, NO_UNCERTAINTY
        if self.needs_test_sizes and outcome.test_sizes is None:
            return None, NO_TEST_SIZES
        if self.undefined_reason and (reason := self.undefined_reason(outcome)) is not None:
            return None, reason
        value = self.compute(outcome)
        if value is None or not math.isfinite(value):
            return None, f"{self.title} is not defined for this run."
        return float(value), None


METRICS: Registry[Metric] = Registry("metric", "udjfl.metrics")
"""Every metric by its key; those that are columns of a table in their order."""


def table_metrics() -> list[Metric]:
    """Return the metrics that are columns of a table."""
    return [metric for metric in METRICS.values() if metric.in_table]


def register_metric(metric: Metric) -> Metric:
    """Add a metric, as the last column of every table unless it is not `in_table`."""
    if metric.key in RESERVED:
        raise SettingsError(
            f"metric: {metric.key!r} has another meaning in results; choose another key"
        )
    return METRICS.register(metric.key, metric)


def compute_metrics(outcome: Outcome) -> tuple[dict[str, float | None], dict[str, str]]:
    """Compute every metric by its key, None where undefined, and the reasons of those.

    Metrics that compare with a reference, or that need the sizes of test parts, are left out where
    there are none.
    """
    values: dict[str, float | None] = {}
    reasons: dict[str, str] = {}
    for key, metric in METRICS.items():
        if metric.needs_reference and outcome.reference_accuracies is None:
            continue
        if metric.needs_test_sizes and outcome.test_sizes is None:
            continue
        values[key], reason = metric.evaluate(outcome)
        if reason is not None:
            reasons[key] = reason
    return values, reasons


def _gains(outcome: Outcome) -> tuple[float, float | None]:
    members = least_advantaged(outcome.uncertainties)
    return gains_of(members, outcome.accuracies, outcome.reference_accuracies or ())


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
        bounds=(0.0, 100.0),
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
        bounds=(0.0, 100.0),
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
        bounds=(0.0, 100.0),
    ),
    Metric(
        "worst_accuracy",
        "Worst client",
        lambda o: worst(o.accuracies),
        1,
        "%",
        "The lowest accuracy of any client.",
        short="Worst",
        bounds=(0.0, 100.0),
    ),
    Metric(
        "mean_accuracy",
        "Mean accuracy",
        lambda o: mean(o.accuracies),
        1,
        "%",
        "The plain mean of the clients' accuracies.",
        short="Mean",
        bounds=(0.0, 100.0),
    ),
    Metric(
        "std",
        "STD",
        lambda o: std(o.accuracies),
        -1,
        "points",
        "Standard deviation of the clients' accuracies; 0 means equal. Egalitarian.",
        bounds=(0.0, None),
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
        undefined_reason=lambda o: pearson_r_undefined(o.uncertainties, o.accuracies),
        bounds=(-1.0, 1.0),
        test_scale=fisher_z,
    ),
    Metric(
        "gain_least_advantaged",
        "Gain, least advantaged",
        lambda o: _gains(o)[0],
        1,
        "points",
        "Gain over the reference of the most uncertain client (over 20 clients: tenth). Rawls.",
        needs_uncertainties=True,
        needs_reference=True,
        in_table=False,
    ),
    Metric(
        "gain_others",
        "Gain, others",
        lambda o: _gains(o)[1],
        1,
        "points",
        "Mean gain over the reference of the other clients. Rawls.",
        needs_uncertainties=True,
        needs_reference=True,
        undefined_reason=lambda o: ONE_CLIENT if len(o.accuracies) < 2 else None,
        in_table=False,
    ),
    Metric(
        "corrected_std",
        "STD, corrected",
        lambda o: corrected_std(o.accuracies, o.test_sizes or ()),
        -1,
        "points",
        "STD without the part that the noise of finite test parts explains. Egalitarian.",
        needs_test_sizes=True,
        in_table=False,
        bounds=(0.0, None),
    ),
    Metric(
        "slope",
        "Slope",
        lambda o: slope(o.uncertainties, o.accuracies),
        -1,
        "points per unit",
        "Points of accuracy per unit of uncertainty, by least squares. Desert.",
        needs_uncertainties=True,
        undefined_reason=lambda o: slope_undefined(o.uncertainties),
        in_table=False,
    ),
    Metric(
        "gap",
        "Gap",
        lambda o: gap(o.uncertainties, o.accuracies),
        0,
        "points",
        "Accuracy of the least uncertain third of the clients minus that of the most uncertain.",
        needs_uncertainties=True,
        undefined_reason=lambda o: TWO_CLIENTS if len(o.accuracies) < 2 else None,
        in_table=False,
    ),
):
    register_metric(_metric)
METRICS.load_entry_points()
