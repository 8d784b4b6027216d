"""The rows of the CSV that measure_uncertainty.py writes, and what they say together."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy import stats

# Measures of one kind that differ in how models train only.
FAMILIES = {
    "crossfit": (
        "crossfit",
        "crossfit, up to 300 epochs",
        "crossfit, lr 0.03",
        "crossfit, Adam",
    ),
    "paper": tuple(f"paper, {n} epochs" for n in (10, 30, 100, 300)),
    "paper, Adam": tuple(f"paper, Adam, {n} epochs" for n in (30, 100, 300)),
}
LISTS = ("values", "truth", "order", "low", "high", "apart")
FIXED_EPOCHS = (
    "paper, 5 epochs",
    *FAMILIES["paper"],
    *FAMILIES["paper, Adam"],
    "ensemble, 30 epochs",
)


@dataclass(frozen=True)
class Row:
    """One measure on the federation of one seed."""

    data: str
    seed: int
    measure: str
    seconds: float
    values: tuple[float, ...]
    truth: tuple[float, ...]
    order: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    apart: tuple[float, ...]

    @property
    def error(self) -> float:
        return float(np.abs(np.subtract(self.values, self.truth)).mean())

    @property
    def bias(self) -> float:
        return float(np.subtract(self.values, self.truth).mean())

    @property
    def rank_correlation(self) -> float:
        """Spearman's correlation with the true order; 0 if all values are equal."""
        return rank_correlation(self.values, self.truth or self.order)


def rank_correlation(a: Sequence[float], b: Sequence[float]) -> float:
    if len(set(a)) == 1 or len(set(b)) == 1:
        return 0.0
    return float(stats.spearmanr(a, b).statistic)


def read_rows(path: Path) -> list[Row]:
    def numbers(text: str) -> tuple[float, ...]:
        return tuple(float(part) for part in text.split())

    with path.open(encoding="utf-8") as file:
        return [
            Row(
                line["data"],
                int(line["seed"]),
                line["measure"],
                float(line["seconds"]),
                *(numbers(line[name]) for name in LISTS),
            )
            for line in csv.DictReader(file)
        ]


class Results:
    """The rows by data and measure."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self.by_pair: dict[tuple[str, str], list[Row]] = {}
        for row in rows:
            self.by_pair.setdefault((row.data, row.measure), []).append(row)
        self.data = list(dict.fromkeys(data for data, _ in self.by_pair))
        self.measures = list(dict.fromkeys(measure for _, measure in self.by_pair))

    def get(self, data: str, measure: str) -> list[Row]:
        return self.by_pair.get((data, measure), [])

    def with_truth(self) -> list[str]:
        return [data for data in self.data if self.get(data, self.measures[0])[0].truth]

    def means(self, measure: str, value: Callable[[Row], float]) -> dict[str, float]:
        """Return the mean over seeds on each data with known entropies."""
        return {
            data: float(np.mean([value(row) for row in rows]))
            for data in self.with_truth()
            if (rows := self.get(data, measure))
        }


def worst_error(results: Results, measure: str) -> float:
    """Return the largest mean error on any data."""
    return max(results.means(measure, lambda row: row.error).values())


def best_measure(results: Results) -> str:
    """Return the measure whose largest mean error over all data is the smallest.

    Those that were left out on some data, and parts of crossfit, are not candidates.
    """
    everywhere = [
        measure
        for measure in (*FAMILIES["crossfit"], *FIXED_EPOCHS)
        if len(results.means(measure, lambda row: row.error)) == len(results.with_truth())
    ]
    return min(everywhere, key=lambda measure: worst_error(results, measure))
