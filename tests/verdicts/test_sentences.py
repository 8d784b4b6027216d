"""Verdicts in words: the numbers of the sentences by hand."""

from __future__ import annotations

import pytest
from paired_runs import make_runs

from udjfl.statistics import PairedTest
from udjfl.verdicts import collect_evidence, judge
from udjfl.verdicts.sentences import format_p, format_points


def sentence(theory: str, *arguments: object, **keywords: object) -> str:
    runs = make_runs(*arguments, **keywords)  # type: ignore[arg-type]
    return judge([collect_evidence(theory, runs)])[0].sentence


# Wiggles 0.2, -0.2, 0.1, -0.1, 0: s = sqrt(0.1 / 4) = 0.158, t(0.975, 4) = 2.776, so that every
# interval of a gain is 2.776 * 0.158 / sqrt(5) = 0.196 to both sides.


def test_kept() -> None:
    assert sentence("rawls", (0, 0, 0, 0, 4)) == (
        "kept: client-5 gains +4.0 points (95% interval 3.8 to 4.2), the others +0.0; "
        "the mean gains +0.8 (global accuracy +0.0)."
    )


def test_kept_at_a_price() -> None:
    # Mean (-4 - 1 - 1 - 1 + 3) / 5 = -0.8.
    assert sentence("rawls", (-4, -1, -1, -1, 3), shared=(95.0, 94.5)) == (
        "kept at a price: client-5 gains +3.0 points (95% interval 2.8 to 3.2), the others -1.8; "
        "the mean loses 0.8 (global accuracy -0.5), within the budget of 2; "
        "client-1 pays most (-4.0), then client-2 (-1.0), client-3 (-1.0) and 1 more."
    )


def test_over_budget() -> None:
    # Mean (4 * -5 + 5) / 5 = -3. Psi is 10 on every seed: the wiggles are the same for all.
    assert sentence("rawls", (-5, -5, -5, -5, 5), shared=(95.0, 90.0)) == (
        "over budget: the mean loses 3.0 (global accuracy -5.0), more than the budget of 2; "
        "client-1 pays most (-5.0), then client-2 (-5.0), client-3 (-5.0) and 1 more. "
        "Psi rises by 10.0 (95% interval 10.0 to 10.0, always the same on 5 seeds); "
        "client-5 gains +5.0 points (95% interval 4.8 to 5.2), the others -5.0."
    )


def test_levelled_down() -> None:
    assert sentence("rawls", (-4, -4, -4, -4, -1), shared=(95.0, 93.0)) == (
        "levelled down: Psi rises by 3.0 (95% interval 3.0 to 3.0, always the same on 5 seeds), "
        "but no client gains. client-5 loses 1.0 points (95% interval -1.2 to -0.8), the others "
        "-4.0; the mean loses 3.4 (global accuracy -2.0), more than the budget of 2; "
        "client-1 pays most (-4.0), then client-2 (-4.0), client-3 (-4.0) and 2 more."
    )


def test_levelled_down_while_somebody_else_gains() -> None:
    text = sentence("egalitarian", (-3, -3, -3, 1, -2))
    assert text.startswith("levelled down: STD falls from 9.7 to ")
    assert "but because others fall. The lower half (client-4, client-5) loses 0.5 points" in text
    assert ", the upper half -3.0;" in text


def test_levelled_down_where_the_gain_is_not_clear() -> None:
    # Client-5 gains 1 with an interval of 0.196 * 7 = 1.37 to both sides; Psi is 4 on every seed.
    text = sentence("rawls", (-3, -3, -3, -3, 1), wiggle=7.0)
    assert "but not clearly by a gain of client-5. client-5 gains +1.0 points" in text
    assert "(95% interval -0.4 to 2.4), the others -3.0" in text


def test_opposite() -> None:
    assert sentence("utilitarian", (-1, -1, -1, -1, -1), shared=(None, None)) == (
        "opposite: mean accuracy falls by 1.0 points (95% interval -1.2 to -0.8, p < 0.001)."
    )


def test_not_decided() -> None:
    assert sentence("rawls", (0, 0, 0, 0, 0), wiggle=0.0) == (
        "not decided: no difference from FedAvg on any of 5 seeds."
    )
    assert sentence("rawls", (0, 0, 0, 0, 3), wiggle=0.0, seeds=1) == (
        "not decided: Psi rises by 3.0: 1 seed decides nothing, at least 5 are needed. "
        "client-5 gains +3.0 points, the others +0.0."
    )
    text = sentence("utilitarian", (0, 0, 0, 0, 0), shared=(95.0, 95.0), shared_wiggle=1.0)
    assert text.endswith("no effect visible, more than 1000 seeds would be needed.")


def test_the_spread_with_and_without_test_noise() -> None:
    # Variance 94.4. Noise of 100 examples: (564 + 900 + 1344 + 1924 + 2176) / 5 / 100 = 13.8, and
    # about as much at the other levels: sqrt(80.6) = 9.0, sqrt(94.4) = 9.7.
    text = sentence("egalitarian", (0, 0, 0, 4, 6), test_sizes=(100,) * 5)
    assert text.startswith("kept: STD without test noise falls from 9.0 to ")
    assert ", with it from 9.7 to " in text


def test_a_mean_whose_interval_passes_the_budget_says_so() -> None:
    # Mean -1.7, wiggles seven times as large: the interval is 1.37 to both sides.
    text = sentence("rawls", (-5, -4, -4, -4, 8.5), wiggle=7.0)
    assert (
        "the mean loses 1.7 (global accuracy +0.0), but its interval reaches -3.1, beyond" in text
    )


@pytest.mark.parametrize(
    ("p", "shown"), [(0.0301, "p = 0.030"), (0.00099, "p < 0.001"), (1e-300, "p < 0.001")]
)
def test_p_is_never_shown_as_zero(p: float, shown: str) -> None:
    assert format_p(PairedTest(1.0, (0.5, 1.5), p, 5), p) == shown


def test_numbers_that_differ_in_the_last_bits_look_the_same() -> None:
    assert format_points(81.45 - 77.8) == format_points(3.65) == "3.6"
    assert format_points(-0.04, sign="+") == "+0.0"
    assert format_points(None) == "–"
