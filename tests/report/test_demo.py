"""The view of `udjfl demo`, and the comparison behind it."""

from __future__ import annotations

import io
import re
from dataclasses import replace

import pytest
from paired_comparison import compare_gains, with_alone
from rich.console import Console
from small_runs import make_federation

import udjfl
from udjfl.report.demo import _bar, _remarks, demo_view
from udjfl.report.demo_intro import INTRODUCTION, introduction
from udjfl.simulation.demo import demo_settings
from udjfl.simulation.method_summary import MethodSummary
from udjfl.statistics import summarise


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
    by_two = "without a budget of their own are judged by a budget of 2 points"
    assert by_two in " ".join(shown.split())


def make_summary(comparison: udjfl.Comparison, uncertainties: list[list[float]]) -> MethodSummary:
    """Change the uncertainties of the first row; one list for each client, a number by seed."""
    row = comparison.rows[0]
    changed = {c: summarise(u) for c, u in zip(row.uncertainty, uncertainties, strict=True)}
    return replace(row, uncertainty=changed)


def test_the_demo_says_if_the_most_uncertain_client_differs_by_seed(
    comparison: udjfl.Comparison,
) -> None:
    differs = make_summary(comparison, [[1, 1], [2, 1], [1, 2]])
    (line,) = _remarks(replace(comparison, rows=(differs, *comparison.rows[1:])))
    assert line.startswith(
        "The most uncertain client differs by seed (client-2 on 1, client-3 on 1 of 2)"
    )
    same = make_summary(comparison, [[1, 1], [2, 2], [1, 1]])
    assert _remarks(replace(comparison, rows=(same, *comparison.rows[1:]))) == []


def test_the_demo_says_who_is_better_off_alone() -> None:
    compared = compare_gains({udjfl.method("rawls"): [0.0] * 5})
    ids = list(compared.rows[0].client_scores)
    (line,) = _remarks(with_alone(compared, dict.fromkeys(ids, 99.0)))
    assert line.startswith("Under FedAvg every client is better off alone")
    (line,) = _remarks(with_alone(compared, {**dict.fromkeys(ids, 99.0), ids[0]: 1.0}))
    assert line.startswith("Under FedAvg client-2, client-3, client-4 and client-5 are better off")
    (line,) = _remarks(with_alone(compared, {**dict.fromkeys(ids, 1.0), ids[0]: 99.0}))
    assert line.startswith("Under FedAvg client-1 is better off alone")
    assert _remarks(with_alone(compared, dict.fromkeys(ids, 1.0))) == []


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
