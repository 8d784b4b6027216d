"""A frontier on a terminal."""

from __future__ import annotations

import pytest
from rich.console import Console

from udjfl.methods import UDJ, FedAvg
from udjfl.report.frontier_table import frontier_view
from udjfl.search.frontier import Frontier, Point
from udjfl.search.run_table import PointRun


def shown(width: int, *, failed: bool = False) -> str:
    methods = (FedAvg(), UDJ(theory="rawls"), UDJ(beta=1.0, gamma=0.0), UDJ(beta=2.0, gamma=1.0))
    points = tuple(
        Point.of(m, "grid" if m.params.get("beta") in (1, 2) else "theory") for m in methods
    )
    runs = {
        (point.name, 0): PointRun((90.0 - n, 70.0 + n), (0.1, 0.3), 88.0 - n, (50, 50))
        for n, point in enumerate(points)
    }
    if failed:
        runs[points[-1].name, 0] = PointRun(failed="diverged")
    clients = ("client-1", "client-2")
    frontier = Frontier("digits", clients, (0,), {"rounds": 7}, points, runs, n_classes=10)
    console = Console(width=width, highlight=False)
    with console.capture() as capture:
        console.print(frontier_view(frontier))
    return capture.get()


def test_it_has_the_marked_points_both_fronts_and_a_map_of_each_measure() -> None:
    text = shown(120)
    assert "digits: 4 points, 2 of them of the grid, 1 seed, 7 rounds" in text
    assert "UDJ-FL rawls" in text
    assert "p = 2, gamma = 1" in text  # on a front
    for title in ("Psi ↑", "STD ↓", "Global ↑", "r ↓", "Worst ↑"):
        assert title in text
    (row, *_) = (line.split() for line in text.splitlines() if line.startswith("p = 1 "))
    assert row[-1] == "–"  # p = 1, gamma = 1 was not trained
    assert "choose on test data" in text


@pytest.mark.parametrize("width", [60, 80, 120])
def test_it_fits_the_terminal(width: int) -> None:
    assert max(map(len, shown(width).splitlines())) <= width


def test_points_without_a_value_are_counted() -> None:
    assert "1 point is on no front" in shown(120, failed=True)


@pytest.mark.parametrize("width", [60, 80, 120])
def test_budgets_that_did_the_same_are_one_row(width: int) -> None:
    rules = [FedAvg(), *(UDJ(theory="rawls", budget=b) for b in (1.0, 2.0, 5.0, 9.0))]
    rules += [UDJ(theory="desert", budget=b) for b in (1.0, 2.0)]
    points = tuple(Point.of(m, "budget" if n else "reference") for n, m in enumerate(rules))
    worst = [70.0, 71.0, 71.0, 71.0, 75.0, 71.0, 71.0]
    runs = {
        (point.name, seed): PointRun((90.0, last + seed), (0.1, 0.3), 88.0, (50, 50))
        for point, last in zip(points, worst, strict=True)
        for seed in (0, 1)
    }
    runs[points[-1].name, 1] = PointRun(failed="diverged")
    clients = ("client-1", "client-2")
    frontier = Frontier("digits", clients, (0, 1), {"rounds": 7}, points, runs, n_classes=10)
    console = Console(width=width, highlight=False)
    with console.capture() as capture:
        console.print(frontier_view(frontier))
    text = capture.get()
    assert max(map(len, text.splitlines())) <= width
    words = " ".join(text.split())
    assert "Budgets in one row did exactly the same" in words
    if width == 120:
        assert "rawls (budget=1, 2, 5)" in text
        assert "rawls (budget=9)" in text
        assert "desert (budget=1)" in text  # another theory with the same scores, and one failed
        assert "desert (budget=2)" in text
