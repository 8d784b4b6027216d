"""Figures of a frontier: every point, both fronts, a map of each measure."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from frontier_cases import make_frontier

from udjfl.report.html.figures import save_figures
from udjfl.report.html.frontier_charts import frontier_figures
from udjfl.tasks import SCORES


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


def test_up_and_right_are_better() -> None:
    """The spread of the clients runs from high to low, their accuracy from low to high."""
    shared = next(f for f in frontier_figures(make_frontier()) if f.name == "frontier-shared")
    encoding = shared.chart.to_dict()["layer"][0]["encoding"]
    assert encoding["x"]["title"] == "STD, points (lower is better)"
    assert (encoding["x"]["scale"]["reverse"], encoding["y"]["scale"]["reverse"]) == (True, False)


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


def test_figures_of_a_loss_have_its_name_and_digits() -> None:
    frontier = make_frontier()
    runs = {
        key: replace(run, accuracies=tuple(value / 100 for value in run.accuracies))
        for key, run in frontier.runs.items()
    }
    by_loss = replace(frontier, runs=runs, score=SCORES["log-loss"].kind)
    clients = frontier_figures(by_loss)[0]
    assert [heading for heading in clients.columns if "ccuracy" in heading] == []
    assert all(len(row[1].partition(".")[2]) == 4 for row in clients.rows)
