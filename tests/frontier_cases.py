"""A frontier of given numbers, without training."""

from __future__ import annotations

from typing import Any

from udjfl.methods import UDJ, FedAvg, method
from udjfl.search.frontier import Frontier, Point
from udjfl.search.run_table import PointRun
from udjfl.search.stored import Kind


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
