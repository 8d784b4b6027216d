"""The table of metrics, and the numbers of a run that they are computed from."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from udjfl._measures import floats
from udjfl._spec import Registry
from udjfl.errors import SettingsError, did_you_mean

NO_UNCERTAINTY = "No client has an uncertainty."
NO_ALONE = "The measure of uncertainty does not tell how well clients do alone."
NO_GROUPS = "The test examples have no sensitive attribute."
NO_TEST_SIZES = "The sizes of the clients' test parts are not known."
# Names of earlier versions in the JSON of a run, and their present ones.
OLDER_KEYS = {"client_accuracy": "client_scores", "common_accuracy": "common_scores"}
# Names that stand beside the metrics in the JSON of a run or of a comparison.
RESERVED = (
    *OLDER_KEYS,
    *("method", "theory", "label", "params", "grade", "seed", "seeds", "undefined", "notes"),
    *("failed", "client_scores", "uncertainty", "epistemic", "against_fedavg", "folder"),
    *("test_sizes", "n_classes", "expected_accuracy", "verdicts", "left_out"),
    *("service", "common_scores"),
    *(
        "accuracy_alone",
        "score_alone",
        "group_accuracy",
        "joining",
        "warning",
        "score",
        "client_interval",
        "too_small",
    ),
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
    alone                 percent, of each client's own model; NaN where unknown, None if for all
    group_gaps            points between the best and the worst served group of each client's test
                          examples; NaN with fewer than two groups, None without groups
    group_gap             the same over the test examples of all clients together
    better                1: a higher score is better; -1: a lower one
    is_share              accuracies are shares of right predictions, with binomial noise

    If another score than accuracy is judged, it is in place of the accuracies.
    """

    accuracies: Sequence[float]
    uncertainties: Sequence[float]
    reference_accuracies: Sequence[float] | None = None
    global_accuracy: float | None = None
    test_sizes: Sequence[float] | None = None
    alone: Sequence[float] | None = None
    group_gaps: Sequence[float] | None = None
    group_gap: float | None = None
    better: int = 1
    is_share: bool = True

    def __post_init__(self) -> None:
        for name in COLUMNS:
            if (column := getattr(self, name)) is not None:
                object.__setattr__(self, name, tuple(floats(name, column)))

    @property
    def benefits(self) -> Sequence[float]:
        """The scores, turned so that higher is better."""
        return self._turn(self.accuracies)

    @property
    def reference_benefits(self) -> Sequence[float]:
        """Those of the reference; empty without one."""
        return self._turn(self.reference_accuracies or ())

    @property
    def benefits_alone(self) -> Sequence[float]:
        """Those of the clients' own models; empty if they are not known."""
        return self._turn(self.alone or ())

    def _turn(self, values: Sequence[float]) -> Sequence[float]:
        return values if self.better > 0 else tuple(-value for value in values)

    def as_benefits(self, factor: float = 1.0) -> Outcome:
        """Return the same with scores turned so that higher is better, and scaled."""
        if self.better > 0 and factor == 1:
            return self
        scale = factor * self.better

        def turn(values: Sequence[float] | None) -> list[float] | None:
            return None if values is None else [scale * value for value in values]

        shared = self.global_accuracy
        return replace(
            self,
            accuracies=turn(self.accuracies) or (),
            reference_accuracies=turn(self.reference_accuracies),
            alone=turn(self.alone),
            global_accuracy=None if shared is None else scale * shared,
            better=1,
        )

    def with_known(self, name: str) -> Outcome:
        """Leave out the clients whose number in a column, such as `uncertainties`, is unknown."""
        column = getattr(self, name) or ()
        known = [i for i, value in enumerate(column) if math.isfinite(value)]
        lengths = {len(values) for each in COLUMNS if (values := getattr(self, each)) is not None}
        if lengths == {len(known)}:
            return self
        kept: dict[str, Any] = {
            other: None if (values := getattr(self, other)) is None else [values[i] for i in known]
            for other in COLUMNS
        }
        return replace(self, **kept)


COLUMNS = (
    *("accuracies", "uncertainties", "reference_accuracies"),
    *("test_sizes", "alone", "group_gaps"),
)


@dataclass(frozen=True)
class Metric:
    """A number of a finished run, with the function that computes it.

    better               1: higher is better; -1: lower is better; 0: neither
    short                heading of a narrow column; the title if empty
    needs_uncertainties  compute it over the clients whose uncertainty is known
    needs_reference      leave it out of runs that have no reference accuracies
    needs_test_sizes     leave it out of runs whose test parts have unknown sizes
    needs_alone          compute it over the clients whose accuracy alone is known; leave it out of
                         runs where none is
    needs_groups         leave it out of runs whose test examples have no sensitive attribute
    undefined_reason     function that returns why there is no value, or None if there is one
    in_table             show it as a column of tables; otherwise it is in the view of one run, in
                         JSON and where a verdict needs it
    on_request           show it only where it is asked for (`--metrics`), and in JSON
    bounds               the ends of its scale, None where there is none
    test_scale           transformation of the values before a test of their differences
    signed               show it with its sign, as 0 is in the middle
    digits               decimals that tables show
    is_level             a score itself, not a spread or a difference: `better` is that of accuracy,
                         and turns with the score that is judged
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
    needs_alone: bool = False
    needs_groups: bool = False
    undefined_reason: Callable[[Outcome], str | None] | None = None
    in_table: bool = True
    on_request: bool = False
    bounds: tuple[float | None, float | None] = (None, None)
    test_scale: Callable[[float], float] | None = None
    signed: bool = False
    digits: int = 2
    is_level: bool = False

    def better_for(self, score_better: int) -> int:
        """Return which direction is better if that of the score is this."""
        return self.better * score_better if self.is_level else self.better

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

    def missing(self, outcome: Outcome) -> str | None:
        """Return what a run lacks that the metric is computed from, or None if nothing."""
        needed = (
            (self.needs_test_sizes, outcome.test_sizes, NO_TEST_SIZES),
            (self.needs_alone, outcome.alone, NO_ALONE),
            (self.needs_groups, outcome.group_gaps, NO_GROUPS),
        )
        return next((why for needs, column, why in needed if needs and column is None), None)

    def evaluate(self, outcome: Outcome) -> tuple[float | None, str | None]:
        """Return the value and None, or None and the reason why there is no value."""
        if (reason := self.missing(outcome)) is not None:
            return None, reason
        if self.needs_uncertainties:
            outcome = outcome.with_known("uncertainties")
            if not outcome.accuracies:
                return None, NO_UNCERTAINTY
        if self.needs_alone:
            outcome = outcome.with_known("alone")
            if not outcome.accuracies:
                return None, NO_ALONE
        if self.undefined_reason and (reason := self.undefined_reason(outcome)) is not None:
            return None, reason
        value = self.compute(outcome)
        if value is None or not math.isfinite(value):
            return None, f"{self.title} is not defined for this run."
        return float(value), None


METRICS: Registry[Metric] = Registry("metric", "udjfl.metrics")
"""Every metric by its key; those that are columns of a table in their order."""


def table_metrics() -> list[Metric]:
    """Return the metrics that are columns of a table unless others are chosen."""
    return [metric for metric in METRICS.values() if metric.in_table]


def choose_metrics(text: str | None) -> tuple[str, ...] | None:
    """Return the keys that a text names, separated by commas; None for the usual columns.

    `default` stands for the usual columns, `all` for every metric.
    """
    if text is None:
        return None
    keys: list[str] = []
    mistakes = []
    for name in filter(None, (part.strip().replace("-", "_") for part in text.split(","))):
        if name == "default":
            keys += [metric.key for metric in table_metrics()]
        elif name == "all":
            keys += METRICS
        elif name in METRICS:
            keys.append(name)
        else:
            hint = did_you_mean(name, [*METRICS, "default", "all"])
            mistakes.append(f"metrics: there is no {name!r}.{hint}")
    if mistakes:
        raise SettingsError(mistakes)
    return tuple(dict.fromkeys(keys)) or None


def register_metric(metric: Metric) -> Metric:
    """Add a metric, as the last column of every table unless it is not `in_table`."""
    if metric.key in RESERVED:
        raise SettingsError(
            f"metric: {metric.key!r} has another meaning in results; choose another key"
        )
    return METRICS.register(metric.key, metric)


def compute_metrics(outcome: Outcome) -> tuple[dict[str, float | None], dict[str, str]]:
    """Compute every metric by its key, None where undefined, and the reasons of those.

    Metrics that compare with a reference, or that need sizes of test parts, accuracies alone or
    groups, are left out where there are none.
    """
    values: dict[str, float | None] = {}
    reasons: dict[str, str] = {}
    for key, metric in METRICS.items():
        if metric.needs_reference and outcome.reference_accuracies is None:
            continue
        if metric.missing(outcome) is not None:
            continue
        values[key], reason = metric.evaluate(outcome)
        if reason is not None:
            reasons[key] = reason
    return values, reasons
