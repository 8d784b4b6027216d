"""Measures of inequality between clients: identities, ends of the scale, and what is undefined."""

from __future__ import annotations

import doctest
import math
from itertools import product
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from udjfl.errors import DataError
from udjfl.metrics import METRICS, Outcome, inequality
from udjfl.metrics.inequality import (
    best_minus_worst,
    best_tenth,
    coefficient_of_variation,
    cosine_with_uniform,
    entropy_of_shares,
    gini,
    jain_index,
    worst_tenth,
)

accuracies = st.lists(st.integers(0, 10_000).map(lambda n: n / 100), min_size=1, max_size=9)
RELATIVE = (jain_index, gini, coefficient_of_variation, entropy_of_shares, cosine_with_uniform)


def test_docstring_examples() -> None:
    result = doctest.testmod(inequality)
    assert (result.failed, result.attempted) == (0, 8)


@given(accuracies)
def test_jain_cv_and_cosine_are_one_measure(values: list[float]) -> None:
    assume(max(values) > 0)
    jain = jain_index(values)
    assert jain == pytest.approx(1 / (1 + coefficient_of_variation(values) ** 2))
    assert cosine_with_uniform(values) == pytest.approx(math.sqrt(jain))
    assert 1 / len(values) - 1e-12 <= jain <= 1 + 1e-12


@given(accuracies)
def test_gini_is_the_mean_difference_of_all_pairs(values: list[float]) -> None:
    assume(max(values) > 0)
    n, mean = len(values), sum(values) / len(values)
    by_pairs = sum(abs(a - b) for a, b in product(values, repeat=2)) / (2 * n * n * mean)
    assert gini(values) == pytest.approx(by_pairs, abs=1e-12)


@given(accuracies, st.sampled_from(RELATIVE), st.randoms())
def test_neither_order_nor_scale_matters(values: list[float], measure: Any, random: Any) -> None:
    assume(max(values) > 0)
    shuffled = random.sample(values, len(values))
    assert measure(shuffled) == measure(values)
    assert measure([value / 7 for value in values]) == pytest.approx(measure(values), abs=1e-12)


def test_the_ends_of_the_scales() -> None:
    equal, one_has_all = [70.0] * 4, [0.0, 0.0, 0.0, 80.0]
    ends = [(measure(equal), measure(one_has_all)) for measure in RELATIVE]
    expected = [(1, 1 / 4), (0, 3 / 4), (0, math.sqrt(3)), (math.log(4), 0), (1, 1 / 2)]
    for ours, by_hand in zip(ends, expected, strict=True):
        assert ours == pytest.approx(by_hand)


def test_a_tenth_of_many_clients_and_one_of_few() -> None:
    values = [float(number) for number in range(25)]  # 25 // 10 = 2
    assert (worst_tenth(values), best_tenth(values)) == (0.5, 23.5)
    assert (worst_tenth(values[:19]), best_tenth(values[:19])) == (0.0, 18.0)
    assert best_minus_worst(values) == 24.0


def test_what_is_undefined_says_why() -> None:
    outcome = Outcome([0.0, 0.0], [0.1, 0.2])
    for key in ("jain", "gini", "cv", "entropy", "cosine"):
        value, reason = METRICS[key].evaluate(outcome)
        assert value is None
        assert reason == f"{METRICS[key].title} needs scores that are not negative, " + (
            "and not all zero."
        )
    assert METRICS["best_minus_worst"].evaluate(outcome) == (0.0, None)
    with pytest.raises(DataError, match="must not be negative"):
        gini([-1.0, 2.0])
    with pytest.raises(DataError, match="there must be a client"):
        worst_tenth([])


def test_a_tenth_of_the_clients_is_rounded_down() -> None:
    values = [float(number) for number in range(20)]
    assert (worst_tenth(values), best_tenth(values)) == (0.5, 18.5)
    assert (worst_tenth(values[:19]), best_tenth(values[:19])) == (0.0, 18.0)


@pytest.mark.parametrize(
    ("values", "is_defined"),
    [((0.0, 0.5), True), ((0.25, 0.5), True), ((0.0, 0.0), False), ((-1.0, 2.0), False)],
)
def test_shares_are_of_something_that_is_not_negative(
    values: tuple[float, ...], is_defined: bool
) -> None:
    reason = METRICS["jain"].undefined_reason(Outcome(values, (0.1, 0.2), None, None))
    assert (reason is None) == is_defined
    if not is_defined:
        with pytest.raises(DataError, match="not all zero"):
            jain_index(values)


def test_an_accuracy_that_is_no_number_is_named() -> None:
    with pytest.raises(DataError, match=r"^accuracies"):
        worst_tenth([1.0, math.nan])
