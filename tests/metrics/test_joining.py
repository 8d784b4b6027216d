"""What clients gain by joining."""

from __future__ import annotations

import doctest
import math
from collections.abc import Iterator

from udjfl.metrics import METRICS, Outcome, joining


def test_docstring_examples() -> None:
    result = doctest.testmod(joining)
    assert (result.failed, result.attempted) == (0, 3)


def test_clients_without_an_accuracy_alone_are_left_out() -> None:
    outcome = Outcome([90.0, 80.0, 10.0], [0.1] * 3, alone=[85.0, 82.0, math.nan])
    assert METRICS["gain_by_joining"].evaluate(outcome) == (1.5, None)
    assert METRICS["share_better_alone"].evaluate(outcome) == (50.0, None)
    value, reason = METRICS["gain_by_joining"].evaluate(Outcome([90.0], [0.1]))
    assert value is None
    assert reason == "The measure of uncertainty does not tell how well clients do alone."


class CountedReads(list[float]):
    """Numbers that count how often they are read from the beginning."""

    reads = 0

    def __iter__(self) -> Iterator[float]:
        self.reads += 1
        return super().__iter__()


def test_the_work_grows_with_the_clients_and_not_with_their_square() -> None:
    for measure in (joining.least_gain_by_joining, joining.share_better_alone):
        few, many = CountedReads([1.0] * 2), CountedReads([1.0] * 200)
        assert measure(few, few) == measure(many, many) == 0
        assert few.reads == many.reads
