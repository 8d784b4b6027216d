"""Rankings on the screen, and the methods below the line."""

from __future__ import annotations

import io

import pytest
from paired_comparison import compare_gains
from rich.console import Console, Group

from udjfl.methods import method
from udjfl.report.ranking_table import ranking_parts
from udjfl.simulation.comparison import Comparison

UNTRAINED = {
    method("egalitarian"): (0, 0, 0, 1, 2),
    method("effl"): (-60, -56, -50, -40, -34),
}


def printed(comparison: Comparison, width: int = 120) -> str:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    console.print(Group(*ranking_parts(comparison, width)))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("width", [60, 80, 120])
def test_an_untrained_method_stands_below_the_line_with_its_reason(width: int) -> None:
    text = printed(compare_gains(UNTRAINED), width)
    above, below = text.split("─\n")
    assert "EFFL" not in above
    assert above.count(" 1 ") == 4
    assert "Not ranked\nEFFL (recalled): its mean is 48.0 below FedAvg's, budget 2" in below


def test_without_such_methods_there_is_no_line() -> None:
    text = printed(compare_gains({method("rawls"): (0,) * 5, method("desert"): (0,) * 5}))
    assert "Not ranked" not in text
    assert "─" not in text


def test_two_methods_are_not_ranked() -> None:
    assert ranking_parts(compare_gains({method("rawls"): (0,) * 5}), 80) == []


def test_if_nobody_qualifies_only_the_reasons_are_shown() -> None:
    guesses = {method("rawls"): (0,) * 5, method("desert"): (0,) * 5}
    comparison = compare_gains(guesses, n_classes=1)  # every answer is that of a guess
    text = printed(comparison)
    assert "Psi" not in text
    assert text.count("at chance") == 3
