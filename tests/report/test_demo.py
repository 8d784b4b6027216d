"""The view of `udjfl demo`, and the comparison behind it."""

from __future__ import annotations

import io
import re

import pytest
from conftest import make_federation
from rich.console import Console

import udjfl
from udjfl.report.demo import _bar, demo_view
from udjfl.report.demo_intro import INTRODUCTION, introduction
from udjfl.simulation.demo import demo_settings


@pytest.fixture(scope="module")
def comparison() -> udjfl.Comparison:
    settings = demo_settings(seeds=2, rounds=2, jobs=1)
    return udjfl.compare(make_federation(), settings.methods, seeds=2, rounds=2, hidden=5)


@pytest.mark.parametrize("width", [60, 80, 120])
def test_every_theory_has_a_verdict_and_a_bar_for_each_client(
    comparison: udjfl.Comparison, width: int
) -> None:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    console.print(demo_view(comparison))
    assert isinstance(console.file, io.StringIO)
    shown = console.file.getvalue()
    assert all(len(line) <= width for line in shown.splitlines())
    for theory in ("Rawls", "Egalitarian", "Utilitarian", "Desert"):
        assert len(re.findall(f"^{theory}: ", shown, re.MULTILINE)) == 2  # with a budget, without
    assert shown.count("│") == 4 * 3
    assert "Alone" in shown


def test_a_loss_is_left_of_the_line_and_a_gain_right_of_it() -> None:
    assert _bar(-1.0, 2.0, 4).plain == "  ██│"
    assert _bar(2.0, 2.0, 4).plain == "    │████"
    assert _bar(0.0, 2.0, 4).plain == "    │"


def test_the_demo_compares_each_theory_with_and_without_a_budget() -> None:
    settings = demo_settings(seeds=3, rounds=5, jobs=2)
    assert settings.federation.data == "scanners"
    assert [m for m in settings.methods if "budget=2" in m] == settings.methods[1:5]
    assert (settings.seeds, settings.jobs, settings.training.rounds) == ([0, 1, 2], 2, 5)


def test_the_introduction_fits_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    lines = introduction().splitlines()
    assert max(map(len, lines)) <= 60
    assert " ".join(lines) == INTRODUCTION
