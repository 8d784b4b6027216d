"""Statistics over seeds, against hand-worked numbers and scipy; rankings of methods."""

from __future__ import annotations

import doctest
import io
import math

import numpy as np
import pytest
from conftest import make_federation
from hypothesis import assume, given
from hypothesis import strategies as st
from rich.console import Console
from scipy import stats

import udjfl
from udjfl import statistics
from udjfl.errors import DataError
from udjfl.methods import THEORIES, FedAvg, method
from udjfl.report.comparison_table import comparison_view
from udjfl.statistics import (
    THEORY_METRIC,
    Summary,
    metric_of,
    paired_test,
    rank_methods,
    summarise,
)

# Multiples of 1/100, as accuracies of a few thousand examples are, so that differences are far
# above rounding.
percent = st.integers(0, 10_000).map(lambda hundredths: hundredths / 100)


def test_docstring_examples() -> None:
    result = doctest.testmod(statistics)
    assert result.failed == 0
    assert result.attempted >= 4


def test_summary_by_hand() -> None:
    # Mean 92, s = sqrt((4 + 0 + 4) / 2) = 2, t(0.975, 2) = 4.302653:
    # half-width 4.302653 * 2 / sqrt(3) = 4.968275.
    summary = summarise([90.0, None, 92.0, 94.0])
    assert summary.mean == 92.0
    assert summary.ci95 == pytest.approx((92 - 4.968275, 92 + 4.968275), abs=1e-5)
    assert summary.values == (90.0, None, 92.0, 94.0)
    assert summary.n == 3


def test_summary_of_too_few_seeds() -> None:
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
def test_summary_interval_against_scipy(values: list[float]) -> None:
    summary = summarise(values)
    assert summary.mean is not None
    assert summary.ci95 is not None
    low, high = summary.ci95
    assert low <= summary.mean <= high
    assume(len(set(values)) > 1)
    expected = stats.t.interval(0.95, len(values) - 1, loc=np.mean(values), scale=stats.sem(values))
    assert (low, high) == pytest.approx(expected, abs=1e-9)


def test_paired_test_by_hand() -> None:
    # Differences 1, 2, 3: mean 2, s = 1, t = 2 sqrt(3) = 3.4641 with 2 degrees of freedom, where
    # p = 1 - t / sqrt(2 + t^2) = 1 - 3.4641 / 3.7417 = 0.0742.
    # Interval 2 +- 4.302653 / sqrt(3) = 2 +- 2.484138.
    result = paired_test([90.0, None, 92.0, 80.0, 94.0], [89.0, 1.0, 90.0, None, 91.0])
    assert result.difference == 2.0
    assert result.p == pytest.approx(0.0742, abs=1e-4)
    assert result.ci95 == pytest.approx((2 - 2.484138, 2 + 2.484138), abs=1e-5)
    assert result.n == 3


def test_paired_test_without_a_spread() -> None:
    same = paired_test([90.0, 91.0], [90.0, 91.0])
    assert (same.difference, same.p, same.n) == (0.0, None, 2)
    # 90.1 - 90 and 10.1 - 10 differ in the last bits only: a constant difference, no enormous t.
    assert 90.1 - 90.0 != 10.1 - 10.0
    constant = paired_test([90.1, 10.1, 40.1], [90.0, 10.0, 40.0])
    assert (constant.difference, constant.p) == (pytest.approx(0.1), 0.0)
    # And 0.1 + 0.2 is 0.3 up to rounding, so there is no difference.
    assert paired_test([0.1 + 0.2, 0.5], [0.3, 0.5]).p is None
    assert paired_test([0.0, 0.0], [0.0, 0.0]).p is None


def test_paired_test_with_too_few_seeds() -> None:
    one = paired_test([91.0, None], [90.0, 90.0])
    assert (one.difference, one.ci95, one.p, one.n) == (1.0, None, None, 1)
    none = paired_test([None], [90.0])
    assert (none.difference, none.ci95, none.p, none.n) == (None, None, None, 0)
    with pytest.raises(DataError, match="values has 1 and reference_values 2"):
        paired_test([1.0], [1.0, 2.0])
    with pytest.raises(DataError, match=r"reference_values\[1\] is inf"):
        paired_test([1.0, 2.0], [1.0, math.inf])


@given(st.lists(st.tuples(percent, percent), min_size=2, max_size=8))
def test_paired_test_against_scipy(pairs: list[tuple[float, float]]) -> None:
    values, reference = zip(*pairs, strict=True)
    differences = np.round(np.subtract(values, reference), 6)
    assume(len(set(differences)) > 1)
    result = paired_test(values, reference)
    assert result.p is not None
    assert result.ci95 is not None
    assert result.p == pytest.approx(stats.ttest_1samp(differences, 0.0).pvalue, abs=1e-6)
    assert result.difference == pytest.approx(differences.mean(), abs=1e-9)
    if abs(result.p - 0.05) > 1e-6:  # the test and the interval agree
        assert (result.p < 0.05) == (not result.ci95[0] <= 0.0 <= result.ci95[1])


@given(
    st.lists(st.tuples(st.floats(-1e150, 1e150), st.floats(-1e150, 1e150)), min_size=0, max_size=5)
)
def test_paired_test_never_warns_nor_leaves_the_range(pairs: list[tuple[float, float]]) -> None:
    result = paired_test([value for value, _ in pairs], [reference for _, reference in pairs])
    assert result.p is None or 0.0 <= result.p <= 1.0


# --- rankings ---


def entries(key: str, *means: float | None) -> list[dict[str, Summary]]:
    return [{key: summarise([mean])} for mean in means]


def test_every_theory_has_its_metric() -> None:
    assert set(THEORY_METRIC) == set(THEORIES)
    assert [metric_of(theory).key for theory in THEORIES] == [
        "psi",
        "std",
        "global_accuracy",
        "pearson_r",
    ]


@pytest.mark.parametrize(
    ("theory", "best_first"), [("rawls", [1, 0, 2]), ("egalitarian", [2, 0, 1])]
)
def test_best_comes_first(theory: str, best_first: list[int]) -> None:
    order = rank_methods(theory, entries(THEORY_METRIC[theory], 1.0, 3.0, -2.0))
    assert [ranked.index for ranked in order] == best_first
    assert [ranked.rank for ranked in order] == [1, 2, 3]


def test_equal_means_share_the_better_rank() -> None:
    order = rank_methods("utilitarian", entries("global_accuracy", 90.0, 95.0, 90.0, 80.0))
    assert [(ranked.index, ranked.rank) for ranked in order] == [(1, 1), (0, 2), (2, 2), (3, 4)]


def test_a_method_without_a_value_has_no_rank() -> None:
    order = rank_methods("utilitarian", entries("global_accuracy", None, 95.0, None))
    assert [(ranked.index, ranked.rank) for ranked in order] == [(1, 1), (0, None), (2, None)]


@pytest.fixture(scope="module")
def comparison() -> udjfl.Comparison:
    methods = [FedAvg(), method("rawls"), method("desert"), method("focus")]
    return udjfl.compare(
        make_federation(), methods, seeds=2, rounds=2, hidden=5, uncertainty_epochs=2
    )


def test_rankings_in_json(comparison: udjfl.Comparison) -> None:
    rankings = comparison.as_dict()["rankings"]
    assert list(rankings) == list(THEORIES)
    assert (rankings["egalitarian"]["metric"], rankings["egalitarian"]["better"]) == (
        "std",
        "lower",
    )
    for theory, ranking in rankings.items():
        assert sorted(row["method"] for row in ranking["order"]) == [
            "fedavg",
            "focus",
            "udj",
            "udj",
        ]
        means = [row["mean"] for row in ranking["order"] if row["mean"] is not None]
        assert means == sorted(means, reverse=ranking["better"] == "higher")
        serving = {row["label"] for row in ranking["order"] if row["serves"]}
        assert (
            serving
            == {
                "rawls": {"UDJ-FL rawls"},
                "egalitarian": set(),
                "utilitarian": {"FedAvg"},
                "desert": {"UDJ-FL desert", "FOCUS"},
            }[theory]
        )
        assert all(len(row["ci95"]) == 2 for row in ranking["order"] if row["mean"] is not None)
    last = rankings["utilitarian"]["order"][-1]
    assert (last["method"], last["rank"], last["mean"], last["grade"]) == (
        "focus",
        None,
        None,
        "recalled",
    )


def test_rankings_on_the_screen(comparison: udjfl.Comparison) -> None:
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(comparison_view(comparison))
    text = console.export_text()
    ranking = text[text.index("Ranked for each theory") :]
    # Four methods that serve a theory, and the line that explains the dot.
    assert ranking.count("• ") == 5
    assert "FOCUS (recalled)" in ranking
    assert "no value" in ranking
    assert "– FOCUS has no global model" in text
    assert "– This method has no single model to test" in text
