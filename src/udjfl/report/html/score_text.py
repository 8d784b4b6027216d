"""The text of values of the score that is judged, and the direction of its axes."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from udjfl.metrics import Metric
from udjfl.report.html.figure import import_altair, interval, number
from udjfl.tasks import ACCURACY, ScoreKind

MARGIN = 0.04  # of the range of the values, at both ends of an axis
LONE = 0.1  # of a single value, around it
MOST_DIGITS = 8


@dataclass(frozen=True)
class ScoreText:
    """A score, and the number of decimals with which its values are written."""

    kind: ScoreKind = ACCURACY
    digits: int = 1

    @classmethod
    def for_values(cls, kind: ScoreKind, values: Iterable[float]) -> ScoreText:
        """Choose the decimals: one for percentages, else so that three digits tell something."""
        level = statistics.fmean([abs(value) for value in values] or [1.0])
        if kind.percent or not level or not math.isfinite(level):
            return cls(kind)
        return cls(kind, min(MOST_DIGITS, max(0, 2 - math.floor(math.log10(level)))))

    def number(self, value: float | None, sign: str = "") -> str:
        """Return a value as text, without its unit."""
        return number(value, self.digits, sign)

    def value(self, value: float | None) -> str:
        """Return a value as text, with its unit."""
        return f"{self.number(value)}{self.kind.unit}"

    def interval(self, ends: Sequence[float] | None) -> str:
        """Return an interval as text; empty where there is none."""
        return interval(ends, self.digits)

    def gain(self, value: float | None) -> str:
        """Return a gain with its sign and its unit."""
        return self.kind.say_gain(number(value, sign="+"))

    def metric_digits(self, metric: Metric) -> int:
        """Return how many decimals of a metric figures show."""
        in_units = metric.is_level or metric.unit.startswith(self.kind.difference_unit)
        return self.digits if in_units else metric.digits

    @property
    def axis(self) -> str:
        """The title of an axis, with the direction where it is not the usual one."""
        lower = "" if self.kind.better > 0 else " (lower is better)"
        return f"{self.kind.with_unit}{lower}"

    def domain(self, values: Iterable[float]) -> list[float]:
        """Return the ends of an axis that has room for these values, within the score's scale."""
        known = list(values)
        low, high = min(known, default=0.0), max(known, default=1.0)
        room = MARGIN * (high - low) or LONE * abs(high) or 1.0
        return [self.kind.clip(low - room), self.kind.clip(high + room)]

    def scale(self, values: Iterable[float]) -> Any:
        """Return the scale of an axis on which the better values are above, or to the right."""
        alt = import_altair()
        return alt.Scale(
            domain=self.domain(values), nice=False, zero=False, reverse=self.kind.better < 0
        )


def axis_title(metric: Metric) -> str:
    """Return the title of an axis of a metric, with its direction where it is not the usual one."""
    title = f"{metric.title}, {metric.unit}" if metric.unit else metric.title
    return f"{title} (lower is better)" if is_reversed(metric) else title


def is_reversed(metric: Metric) -> bool:
    """Tell if an axis runs from high to low: up and right are better."""
    return metric.better < 0
