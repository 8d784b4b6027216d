"""Paired runs, and one number of them as it changes from FedAvg to a method."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from udjfl.metrics import Outcome
from udjfl.statistics import PairedTest, paired_test
from udjfl.tasks import ACCURACY, ScoreKind


@dataclass(frozen=True)
class PairedRuns:
    """One method and FedAvg on the same seeds; both sequences have one outcome per seed.

    `alone` has, for each seed, the accuracy of each client's own model that it was promised, or
    that was measured. If another `score` is judged, it is in place of accuracy, turned so that
    higher is better and in the unit of its gains: points of percentages, or hundredths of FedAvg's
    mean.
    """

    clients: tuple[str, ...] = ()
    outcomes: tuple[Outcome, ...] = ()
    references: tuple[Outcome, ...] = ()
    alone: tuple[Sequence[float] | None, ...] = ()
    score: ScoreKind = ACCURACY


@dataclass(frozen=True)
class Change:
    """One number under FedAvg and under a method, paired by seed.

    before, after  means over the seeds where both have a value; None if there are none
    differences    after minus before, seed by seed
    """

    title: str
    before: float | None
    after: float | None
    test: PairedTest
    differences: tuple[float, ...]

    @property
    def difference(self) -> float:
        """The mean difference; 0 where there is none."""
        return self.test.difference or 0.0

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return {
            "before": self.before,
            "after": self.after,
            "difference": self.test.difference,
            "ci95": None if self.test.ci95 is None else list(self.test.ci95),
            "p": self.test.p,
            "always_same": self.test.always_same,
            "seeds": self.test.n,
        }


def compare_values(
    title: str,
    ours: Sequence[float | None],
    theirs: Sequence[float | None],
    scale: Callable[[float], float] | None = None,
) -> Change:
    """Compare numbers seed by seed; a seed where either is None is left out."""
    both = [
        (value, reference)
        for value, reference in zip(ours, theirs, strict=True)
        if value is not None and reference is not None
    ]
    return Change(
        title,
        statistics.mean(reference for _, reference in both) if both else None,
        statistics.mean(value for value, _ in both) if both else None,
        paired_test(ours, theirs, scale),
        tuple(value - reference for value, reference in both),
    )


def change_from_zero(title: str, values: Sequence[float | None]) -> Change:
    """Return a gain as a change from 0, which it is under FedAvg itself."""
    return compare_values(title, values, [0.0] * len(values))
