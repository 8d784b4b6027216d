"""What is to be reached, and whether it is. Only what is asked is written here; what is measured comes from the results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from benchmarks import figures
from benchmarks.figures import Results


@dataclass(frozen=True)
class Target:
    """`unit` is how both figures are printed: 'x' for a ratio, '%' for a fraction, 'MB'."""

    title: str
    asked: float
    unit: str
    measured: Callable[[Results], float | None]
    at_most: bool = False

    def reached(self, results: Results) -> bool | None:
        """None if it was not measured."""
        figure = self.measured(results)
        if figure is None:
            return None
        return figure <= self.asked if self.at_most else figure >= self.asked


def _faster(suite: str, other: str, ours: str) -> Callable[[Results], float | None]:
    return partial(figures.times_faster, suite=suite, other=other, ours=ours)


def _of_limit(suite: str, ours: str) -> Callable[[Results], float | None]:
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
    Target("the round, against fluke", 2.5, "x", _faster("round", "fluke", STACKED)),
    Target("the round, against pfl-research", 3, "x", _faster("round", "pfl-research", STACKED)),
    Target(
        "the round, against Flower simulation with federated evaluation",
        5,
        "x",
        _faster("flower", "Flower simulation", STACKED),
    ),
    Target(
        "the round, against the DataLoader loop",
        8,
        "x",
        _faster("round", "DataLoader + deepcopy loop", STACKED),
    ),
    Target("the round, of the GEMM limit", 0.42, "%", _of_limit("round", STACKED)),
    Target(
        "the grid together, against the plain loop one by one",
        2.8,
        "x",
        _faster("grid", "plain loop", "udjfl together"),
    ),
    Target("the grid together, of the GEMM limit", 0.5, "%", _of_limit("grid", "udjfl together")),
    Target("500 clients, against the plain loop", 3.5, "x", _faster("many", "plain loop", STACKED)),
    Target("500 clients, memory beyond that of 5", 400, "MB", _more_memory, at_most=True),
    Target("a CNN, against fluke", 1.4, "x", _faster("cnn", "fluke", "udjfl")),
    Target(
        "any module through serial, against the plain loop",
        1.25,
        "x",
        _faster("module", "plain loop", "udjfl serial"),
    ),
    Target(
        "slowdown beside one busy process",
        2,
        "x",
        partial(figures.slowdown_beside_busy, contender=STACKED),
        at_most=True,
    ),
    Target("cost per client, 1,000 clients against 50", 1.3, "x", _cost_per_client, at_most=True),
    Target("udjfl --help, against import torch", 10, "x", figures.light_start),
)
