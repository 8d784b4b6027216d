"""Statistics over seeds, against hand-worked numbers and scipy; rankings of methods."""

from __future__ import annotations

import doctest
import io
import math
import statistics as standard_library

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from rich.console import Console
from scipy import optimize, stats
from small_runs import make_federation

import udjfl
from udjfl import statistics
from udjfl._measures import exact_mean, fisher_z
from udjfl.errors import DataError
from udjfl.methods import THEORIES, FedAvg, method
from udjfl.report.comparison_table import comparison_view
from udjfl.statistics import (
    THEORY_METRIC,
    PairedTest,
    Summary,
    correct_tests,
    holm,
    metric_of,
    paired_test,
    rank_methods,
    rounding_of,
    seeds_needed,
    summarise,
)

# Multiples of 1/100, as accuracies of a few thousand examples are, so that differences are far
# above rounding.
percent = st.integers(0, 10_000).map(lambda hundredths: hundredths / 100)


def test_docstring_examples() -> None:
    result = doctest.testmod(statistics)
    assert result.failed == 0
    assert result.attempted >= 10


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
    assert (constant.difference, constant.p) == (pytest.approx(0.1), None)
    assert constant.always_same
    assert not same.always_same
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


def test_r_is_tested_on_fishers_z() -> None:
    """The p is that of the transformed values; the difference and its interval are of r itself."""
    ours, theirs = [-0.99, -0.95, -0.97, -1.0, -0.98], [-0.9, -0.93, -0.91, -0.85, -0.95]
    result = paired_test(ours, theirs, fisher_z)
    # artanh: -2.6467, -1.8318, -2.0923, -3.8002 (as of -0.999), -2.2976.
    z = [-2.6467, -1.8318, -2.0923, -3.8002, -2.2976]
    assert result.p == pytest.approx(stats.ttest_rel(z, np.arctanh(theirs)).pvalue, abs=1e-4)
    assert result.difference == pytest.approx(-0.07)
    assert result.ci95 == paired_test(ours, theirs).ci95
    # r is -1 on every seed in both: no difference, and no infinite z.
    assert paired_test([-1.0] * 5, [-1.0] * 5, fisher_z).p is None


@given(st.lists(st.tuples(percent, percent), min_size=0, max_size=8))
def test_p_is_never_zero(pairs: list[tuple[float, float]]) -> None:
    result = paired_test([value for value, _ in pairs], [reference for _, reference in pairs])
    assert result.p is None or 0.0 < result.p <= 1.0
    assert not (result.always_same and result.p is not None)


def test_under_five_seeds_nothing_is_significant() -> None:
    # Differences 1, 1.1, ...: t is enormous.
    values = [91.0, 91.1, 91.0, 91.1, 91.0]
    few, enough = paired_test(values[:4], [90.0] * 4), paired_test(values, [90.0] * 5)
    assert few.p is not None
    assert few.p < 0.001
    assert not few.is_significant()
    assert enough.is_significant()
    assert enough.shows_rise()
    assert not enough.shows_fall()
    assert not enough.is_significant(0.06)  # by a p that is corrected for other tests
    assert paired_test([91.0] * 5, [90.0] * 5).is_significant()  # always the same
    assert not paired_test([91.0] * 4, [90.0] * 4).is_significant()
    assert not paired_test([90.0] * 5, [90.0] * 5).is_significant()


def test_holm_by_hand() -> None:
    # 0.01 * 4 = 0.04, 0.02 * 3 = 0.06, 0.03 * 2 = 0.06, 0.9 * 1; a missing p counts as one more.
    assert holm([0.9, 0.01, 0.03, 0.02]) == pytest.approx([0.9, 0.04, 0.06, 0.06])
    assert holm([0.01, None]) == [0.02, None]
    assert holm([0.7, 0.8]) == [1.0, 1.0]


def test_tests_that_were_not_made_do_not_count_in_a_table() -> None:
    tests = [
        paired_test([91.0, 92.0, 93.0], [90.0, 90.0, 90.0]),  # p = 0.0742
        paired_test([90.0, 90.0], [90.0, 90.0]),  # no difference
        paired_test([90.0], [80.0]),  # one seed
        paired_test([90.0, 90.0], [80.0, 80.0]),  # always the same
    ]
    corrected = correct_tests(tests)
    assert corrected == [pytest.approx(0.0742, abs=1e-4), None, None, 0.0]
    # Two tests with a p of their own: the smaller is doubled.
    assert correct_tests([tests[0], tests[0]]) == [pytest.approx(2 * 0.0742, abs=2e-4)] * 2


@pytest.mark.parametrize(
    ("difference", "p", "n", "rises", "falls"),
    [
        (0.5, 0.049, 5, True, False),
        (-0.5, 0.049, 5, False, True),
        (0.5, 0.05, 5, False, False),  # below 5%, not at it
        (0.5, 0.001, 4, False, False),
        (0.0, 0.001, 5, False, False),
        (None, 0.001, 5, False, False),
        (0.5, None, 5, False, False),
    ],
)
def test_rises_and_falls(
    difference: float | None, p: float | None, n: int, rises: bool, falls: bool
) -> None:
    test = PairedTest(difference, None, p, n)
    assert (test.shows_rise(), test.shows_fall()) == (rises, falls)
    assert test.is_significant() == (p is not None and p < 0.05 and n >= 5)
    assert not test.shows_rise(0.2)
    assert not test.shows_fall(0.2)
    own = PairedTest(difference, None, 0.9, n)
    assert (own.shows_rise(p), own.shows_fall(p)) == (rises, falls)


def test_values_that_are_no_numbers_are_named() -> None:
    with pytest.raises(DataError, match=r"^values"):
        summarise([1.0, math.nan])
    with pytest.raises(DataError, match=r"^values"):
        paired_test([1.0, math.inf], [1.0, 2.0])
    with pytest.raises(DataError, match=r"^reference_values"):
        paired_test([1.0, 2.0], [1.0, math.inf])


def test_differences_count_as_the_same_relative_to_the_values() -> None:
    assert paired_test([0.0, 0.0], [0.0, 0.0]).always_same is False
    # At 2^20 numbers are 2^-32 apart: these differences, of 1 and a little, are equal but for that.
    high = 2.0**20
    assert paired_test([high + 1, high + 1 + 2**-32], [high, high]).always_same
    assert not paired_test([2.0, 2.0 + 2**-32], [1.0, 1.0]).always_same
    # At 2^-40 a difference of 2^-50 is one.
    assert not paired_test([2.0**-40, 2.0**-40 + 2.0**-50], [0.0, 0.0]).always_same


def count_seeds(size: float) -> int | None:
    """Return the fewest seeds with a power of 80%, by trying all numbers."""
    for n in range(5, 1001):
        critical = stats.t.ppf(0.975, n - 1)
        if stats.nct.sf(critical, n - 1, size * math.sqrt(n)) >= 0.8:
            return n
    return None


@pytest.mark.parametrize("size", [0.0887, 0.2, 0.45, 0.81, 1.27, 1.44, 1.69, 2.5, 5.0, 9.0])
def test_the_seeds_needed_are_the_fewest(size: float) -> None:
    assert seeds_needed([size - 1, size, size + 1]) == count_seeds(size)


def test_up_to_a_thousand_seeds_can_be_needed() -> None:
    def power(size: float, n: int) -> float:
        critical = stats.t.ppf(0.975, n - 1)
        return float(stats.nct.sf(critical, n - 1, size * math.sqrt(n)))

    for n, expected in ((999, 999), (1000, 1000), (1001, None)):
        size = float(optimize.brentq(lambda s, n=n: power(s, n) - 0.8 - 1e-6, 0.05, 0.2))
        assert seeds_needed([size - 1, size, size + 1]) == expected


@pytest.mark.parametrize(
    ("effect", "n"), [(0.5, 34), (0.8, 15), (1.0, 10), (1.2, 8), (0.2, 199), (30.0, 5)]
)
def test_the_seeds_needed_are_the_textbooks(effect: float, n: int) -> None:
    """Two-sided 5%, power 80%, paired t-test: the values of Cohen's tables and of G*Power."""
    # Differences effect - 1, effect, effect + 1 have mean `effect` and s = 1.
    assert seeds_needed([effect - 1, effect, effect + 1]) == n
    assert seeds_needed([-(effect - 1), -effect, -(effect + 1)]) == n


def test_a_stricter_level_needs_more_seeds_and_no_effect_has_no_number() -> None:
    differences = [0.0, 1.0, 2.0]
    assert seeds_needed(differences, 0.0125) > seeds_needed(differences)  # type: ignore[operator]
    assert seeds_needed([1.0, -1.0]) is None
    assert seeds_needed([0.0, 0.0]) is None
    assert seeds_needed([0.05 - 1, 0.05, 0.05 + 1]) is None  # it would take 3142
    assert seeds_needed([1.0, 1.0, 1.0]) == 5


@given(st.lists(percent, min_size=5, max_size=8), st.floats(0.001, 0.05))
def test_more_seeds_than_these_are_needed_where_these_do_not_decide(
    values: list[float], level: float
) -> None:
    """The sentence "5 seeds do not decide this, about 4 would" cannot be written."""
    test = paired_test(values, [50.0] * len(values))
    assume(test.p is not None and test.p >= level)
    needed = seeds_needed([value - 50.0 for value in values], level)
    assert needed is None or needed > len(values)


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


def test_means_that_differ_by_rounding_share_a_rank() -> None:
    # Sums of the same thirds in another order: 83.33333333333333 and 83.33333333333334.
    methods = [
        {"std": summarise(values)}
        for values in ([250 / 3, 250 / 3 + 1e-13], [250 / 3, 250 / 3], [250 / 3 - 1e-9, 250 / 3])
    ]
    assert len({each["std"].mean for each in methods}) == 3
    order = rank_methods("egalitarian", methods)
    assert [(ranked.index, ranked.rank) for ranked in order] == [(2, 1), (0, 2), (1, 2)]


def test_rounding_is_that_of_the_values_and_not_of_their_mean() -> None:
    # The mean of 10 and -10 is 0, as rounding leaves it: 1e-15.
    methods = [{"psi": summarise(values)} for values in ([10.0, -10.0 + 2e-15], [10.0, -10.0])]
    assert [ranked.rank for ranked in rank_methods("rawls", methods)] == [1, 1]


def test_nothing_but_zeros_share_the_first_rank() -> None:
    assert [ranked.rank for ranked in rank_methods("rawls", entries("psi", 0.0, 0.0))] == [1, 1]
    assert rounding_of(each["psi"] for each in entries("psi", None)) == 0.0
    assert rounding_of([]) == 0.0


def test_a_method_that_diverged_makes_no_others_tie() -> None:
    methods = entries("global_accuracy", 0.55, 0.95, -3e13)
    order = rank_methods("utilitarian", methods)
    assert [(ranked.index, ranked.rank) for ranked in order] == [(1, 1), (0, 2), (2, 3)]
    order = rank_methods("utilitarian", methods, {2: "untrained"})
    assert [(ranked.index, ranked.rank) for ranked in order] == [(1, 1), (0, 2), (2, None)]


def test_a_method_without_a_value_has_no_rank() -> None:
    order = rank_methods("utilitarian", entries("global_accuracy", None, 95.0, None))
    assert [(ranked.index, ranked.rank) for ranked in order] == [(1, 1), (0, None), (2, None)]


def test_a_method_without_a_value_comes_after_all_others() -> None:
    ranked = rank_methods(
        "utilitarian", [{"global_accuracy": summarise([v])} for v in (None, 1, 2)]
    )
    assert [each.index for each in ranked] == [2, 1, 0]


def test_a_method_that_is_left_out_has_no_rank_and_takes_none() -> None:
    order = rank_methods("egalitarian", entries("std", 9.0, 1.0, 8.0, None), {1: "untrained"})
    assert [(ranked.index, ranked.rank, ranked.reason) for ranked in order] == [
        (2, 1, None),
        (0, 2, None),
        (3, None, None),
        (1, None, "untrained"),
    ]


@pytest.fixture(scope="module")
def comparison() -> udjfl.Comparison:
    methods = [FedAvg(), method("rawls"), method("desert"), method("focus")]
    return udjfl.compare(
        make_federation(n=60), methods, seeds=2, rounds=20, hidden=5, uncertainty_epochs=30
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
        means = [row["mean"] for row in ranking["order"] if row["rank"] is not None]
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


@given(st.lists(st.floats(), min_size=1, max_size=6))
@example([5e-324, 0.0])
@example([-0.0])
@example([1.7976931348623157e308] * 3)
@example([math.inf, -math.inf])
def test_the_mean_is_that_of_the_standard_library(values: list[float]) -> None:
    assert exact_mean(values).hex() == standard_library.mean(values).hex()
