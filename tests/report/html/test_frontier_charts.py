"""Figures of a frontier: every point, both fronts, a map of each measure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from udjfl.methods import UDJ, FedAvg, method
from udjfl.report.html.figures import save_figures
from udjfl.report.html.frontier_charts import frontier_figures
from udjfl.search.frontier import Frontier, Kind, Point
from udjfl.search.run_table import PointRun


def make_frontier(n_points: int = 6) -> Frontier:
    made: list[tuple[Any, Kind]] = [
        (FedAvg(), "reference"),
        (method("rawls"), "theory"),
        (UDJ(beta=1.0, gamma=0.0), "grid"),
        (UDJ(beta=2.0, gamma=-1.0), "grid"),
        (method("desert", budget=2.0), "budget"),
        (method("qffl"), "method"),
    ]
    points = tuple(Point.of(rule, kind) for rule, kind in made[:n_points])
    runs = {
        (point.name, seed): PointRun((90.0 - n, 70.0 + seed), (0.1, 0.3), 88.0 - n, (50, 50))
        for n, point in enumerate(points)
        for seed in (0, 1)
    }
    clients = ("client-1", "client-2")
    return Frontier("digits", clients, (0, 1), {"rounds": 3}, points, runs, n_classes=10)


def test_two_fronts_and_four_maps_with_the_numbers_behind_them() -> None:
    frontier = make_frontier()
    figures = {figure.name: figure for figure in frontier_figures(frontier)}
    assert list(figures) == [
        "frontier-clients",
        "frontier-shared",
        "frontier-map-psi",
        "frontier-map-std",
        "frontier-map-global-accuracy",
        "frontier-map-pearson-r",
    ]
    assert [row[0] for row in figures["frontier-clients"].rows] == [
        point.label for point in frontier.points
    ]
    # Least and most uncertain client of FedAvg: 90, and 70.5 over both seeds.
    assert figures["frontier-clients"].rows[0][1:] == ["90.00", "70.50"]
    assert len(figures["frontier-map-psi"].rows) == 3  # Rawls and two of the grid
    for figure in figures.values():
        figure.chart.to_dict()  # Altair checks every part


def test_without_a_grid_there_are_no_maps() -> None:
    names = [figure.name for figure in frontier_figures(make_frontier(2))]
    assert names == ["frontier-clients", "frontier-shared"]


@pytest.mark.parametrize(("ending", "start"), [("png", b"\x89PNG"), ("svg", b"<svg")])
def test_they_are_written(tmp_path: Path, ending: str, start: bytes) -> None:
    pytest.importorskip("vl_convert")
    (figure, *_) = frontier_figures(make_frontier())
    path, captions = save_figures([figure], tmp_path, [ending])
    assert path.read_bytes().startswith(start)
    assert "The most against the least uncertain client" in captions.read_text(encoding="utf-8")
