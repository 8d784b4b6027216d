"""Statistics over seeds, against hand-worked numbers and scipy."""

from __future__ import annotations

import doctest
import math
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from udjfl import statistics as significance
from udjfl.errors import DataError
from udjfl.statistics import paired, summarise

# Multiples of 1/100, as accuracies of a few thousand examples are, so differences are far above rounding.
percent = st.integers(0, 10_000).map(lambda hundredths: hundredths / 100)


def clients(*columns, min_size=2):
    return st.lists(st.tuples(*columns), min_size=min_size, max_size=8).map(
        lambda rows: list(zip(*rows, strict=True))
    )


def test_docstring_examples():
    result = doctest.testmod(significance)
    assert result.failed == 0
    assert result.attempted >= 4


def test_summary_by_hand():
    # Mean 92, s = sqrt((4 + 0 + 4) / 2) = 2, t(0.975, 2) = 4.302653: half-width 4.302653 * 2 / sqrt(3) = 4.968275
    summary = summarise([90.0, None, 92.0, 94.0])
    assert summary.mean == 92.0
    assert summary.ci95 == pytest.approx((92 - 4.968275, 92 + 4.968275), abs=1e-5)
    assert summary.values == (90.0, None, 92.0, 94.0)
    assert summary.n == 3


def test_summary_of_too_few_seeds():
    assert (summarise([90.0]).mean, summarise([90.0]).ci95, summarise([90.0]).n) == (90.0, None, 1)
    assert (summarise([None]).mean, summarise([None]).ci95, summarise([None]).values) == (
        None,
        None,
        (None,),
    )
    assert summarise([]).n == 0
    assert summarise([91.1, 91.1, 91.1]).ci95 == (91.1, 91.1)
    with pytest.raises(DataError, match=r"values\[0\] is nan"):
        summarise([math.nan, 90.0])


@given(st.lists(percent, min_size=2, max_size=8))
def test_summary_interval_against_scipy(values):
    summary = summarise(values)
    low, high = summary.ci95
    assert low <= summary.mean <= high
    assume(len(set(values)) > 1)
    judge = stats.t.interval(0.95, len(values) - 1, loc=np.mean(values), scale=stats.sem(values))
    assert (low, high) == pytest.approx(judge, abs=1e-9)


def test_paired_by_hand():
    # Differences 1, 2, 3: mean 2, s = 1, t = 2 sqrt(3) = 3.4641 with 2 degrees of freedom, where
    # p = 1 - t / sqrt(2 + t^2) = 1 - 3.4641 / 3.7417 = 0.0742. Interval 2 +- 4.302653 / sqrt(3) = 2 +- 2.484138.
    result = paired([90.0, None, 92.0, 80.0, 94.0], [89.0, 1.0, 90.0, None, 91.0])
    assert result.difference == 2.0
    assert result.p == pytest.approx(0.0742, abs=1e-4)
    assert result.ci95 == pytest.approx((2 - 2.484138, 2 + 2.484138), abs=1e-5)
    assert result.n == 3


def test_paired_without_a_spread():
    same = paired([90.0, 91.0], [90.0, 91.0])
    assert (same.difference, same.p, same.n) == (0.0, None, 2)
    # 90.1 - 90 and 10.1 - 10 differ in the last bits only: a constant difference, not an enormous t.
    assert 90.1 - 90.0 != 10.1 - 10.0
    constant = paired([90.1, 10.1, 40.1], [90.0, 10.0, 40.0])
    assert (constant.difference, constant.p) == (pytest.approx(0.1), 0.0)
    # And 0.1 + 0.2 is 0.3 up to rounding, so nothing was seen.
    assert paired([0.1 + 0.2, 0.5], [0.3, 0.5]).p is None
    assert paired([0.0, 0.0], [0.0, 0.0]).p is None


def test_paired_with_too_few_seeds():
    one = paired([91.0, None], [90.0, 90.0])
    assert (one.difference, one.ci95, one.p, one.n) == (1.0, None, None, 1)
    none = paired([None], [90.0])
    assert (none.difference, none.ci95, none.p, none.n) == (None, None, None, 0)
    with pytest.raises(DataError, match="values has 1 and reference_values 2"):
        paired([1.0], [1.0, 2.0])
    with pytest.raises(DataError, match=r"reference_values\[1\] is inf"):
        paired([1.0, 2.0], [1.0, math.inf])


@given(clients(percent, percent))
def test_paired_against_scipy(columns):
    values, reference = columns
    differences = np.round(np.subtract(values, reference), 6)
    assume(len(set(differences)) > 1)
    result = paired(values, reference)
    assert result.p == pytest.approx(stats.ttest_1samp(differences, 0.0).pvalue, abs=1e-6)
    assert result.difference == pytest.approx(differences.mean(), abs=1e-9)
    if abs(result.p - 0.05) > 1e-6:  # the test and the interval tell the same story
        assert (result.p < 0.05) == (not result.ci95[0] <= 0.0 <= result.ci95[1])


@given(
    st.lists(st.tuples(st.floats(-1e150, 1e150), st.floats(-1e150, 1e150)), min_size=0, max_size=5)
)
def test_paired_never_warns_nor_leaves_the_range(pairs):
    result = paired([value for value, _ in pairs], [reference for _, reference in pairs])
    assert result.p is None or 0.0 <= result.p <= 1.0


def test_importing_metrics_leaves_scipy_and_torch_alone():
    code = "import sys, udjfl.metrics; sys.exit(any(name in sys.modules for name in ('scipy', 'torch', 'numpy')))"
    assert (
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONPATH": ":".join(sys.path)}, check=False
        ).returncode
        == 0
    )
