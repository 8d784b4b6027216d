"""Comparison of clients with themselves alone: accuracy under a method and of their own model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from udjfl.statistics import PairedTest, correct_tests, paired_test
from udjfl.verdicts.changes import PairedRuns


@dataclass(frozen=True)
class Joining:
    """The gain of one client by joining, over seeds.

    test         of its accuracy under the method against its accuracy alone
    corrected_p  of that test, corrected over all clients and methods of the table (Holm)
    """

    test: PairedTest
    corrected_p: float | None

    @property
    def gain(self) -> float:
        """The mean gain in points; below 0 the client has more alone."""
        return self.test.difference or 0.0

    @property
    def better_alone(self) -> bool:
        """True if the seeds show that the client has more alone."""
        return self.test.shows_fall(self.corrected_p)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return {
            "gain": self.test.difference,
            "ci95": None if self.test.ci95 is None else list(self.test.ci95),
            "p_holm": None if self.test.always_same else self.corrected_p,
            "better_off_alone": self.better_alone,
        }


def compare_with_alone(methods: Sequence[PairedRuns]) -> list[dict[str, Joining]]:
    """Compare every client with itself alone, under each method; clients without both are left out.

    All tests are corrected together.
    """
    tests = [
        (number, client, test)
        for number, runs in enumerate(methods)
        for index, client in enumerate(runs.clients)
        if (test := _test(runs, index)).n
    ]
    corrected = correct_tests([test for _, _, test in tests])
    joined: list[dict[str, Joining]] = [{} for _ in methods]
    for (number, client, test), p in zip(tests, corrected, strict=True):
        joined[number][client] = Joining(test, p)
    return joined


def _test(runs: PairedRuns, index: int) -> PairedTest:
    alone = [None if o.alone is None else _known(o.alone[index]) for o in runs.outcomes]
    return paired_test([o.accuracies[index] for o in runs.outcomes], alone)


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None
