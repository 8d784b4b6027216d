"""Figures to be reached. What is measured comes from the results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from benchmarks import figures
from benchmarks.figures import Results


@dataclass(frozen=True)
class Target:
    """A figure to be reached; `unit` is 'x' for a ratio, '%' for a fraction, or 'MB'."""

    title: str
    goal: float
    unit: str
    measured: Callable[[Results], float | None]
    at_most: bool = False

    def reached(self, results: Results) -> bool | None:
        """Return whether it is reached; None if it was not measured."""
        figure = self.measured(results)
        if figure is None:
            return None
        return figure <= self.goal if self.at_most else figure >= self.goal


def _speed_against(suite: str, other: str, ours: str) -> Callable[[Results], float | None]:
    return partial(figures.times_faster, suite=suite, other=other, ours=ours)


def _share_of_limit(suite: str, ours: str) -> Callable[[Results], float | None]:
    return partial(figures.fraction_of_limit, suite=suite, contender=ours)


def _more_memory(results: Results) -> float | None:
    many, few = (figures.memory_mb(results, suite, STACKED) for suite in ("many", "round"))
    return None if many is None or few is None else many - few


def _cost_per_client(results: Results) -> float | None:
    return figures.ratio(
        *(figures.per_client(results, suite, STACKED) for suite in ("clients_1000", "clients_50"))
    )


STACKED = "udjfl stacked"
TARGETS = (
    Target("the round, against fluke", 2.5, "x", _speed_against("round", "fluke", STACKED)),
    Target(
        "the round, against pfl-research", 3, "x", _speed_against("round", "pfl-research", STACKED)
    ),
    Target(
        "the round, against Flower simulation with federated evaluation",
        5,
        "x",
        _speed_against("flower", "Flower simulation", STACKED),
    ),
    Target(
        "the round, against the DataLoader loop",
        8,
        "x",
        _speed_against("round", "DataLoader + deepcopy loop", STACKED),
    ),
    Target("the round, of the GEMM limit", 0.42, "%", _share_of_limit("round", STACKED)),
    Target(
        "the grid together, against the plain loop one by one",
        2.8,
        "x",
        _speed_against("grid", "plain loop", "udjfl together"),
    ),
    Target(
        "the grid together, of the GEMM limit", 0.5, "%", _share_of_limit("grid", "udjfl together")
    ),
    Target(
        "500 clients, against the plain loop",
        3.5,
        "x",
        _speed_against("many", "plain loop", STACKED),
    ),
    Target("500 clients, memory beyond that of 5", 400, "MB", _more_memory, at_most=True),
    Target("a CNN, against fluke", 1.4, "x", _speed_against("cnn", "fluke", "udjfl")),
    Target(
        "any module through serial, against the plain loop",
        1.25,
        "x",
        _speed_against("module", "plain loop", "udjfl serial"),
    ),
    Target(
        "slowdown beside one busy process",
        2,
        "x",
        partial(figures.slowdown_beside_busy, contender=STACKED),
        at_most=True,
    ),
    Target("cost per client, 1,000 clients against 50", 1.3, "x", _cost_per_client, at_most=True),
    Target("udjfl --help, against import torch", 10, "x", figures.start_up_ratio),
)
