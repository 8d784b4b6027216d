"""Clients one by one, or in groups of similar uncertainty where there are many."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from udjfl._ids import printable
from udjfl.report.html.material import Material
from udjfl.simulation.method_summary import MethodSummary
from udjfl.statistics import summarise

MOST_CLIENTS = 24  # more are shown as distributions
GROUPS = 10
SHARES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)


@dataclass(frozen=True)
class Bin:
    """One client, or several of similar uncertainty: the means of their numbers.

    change, interval  against FedAvg, over seeds; 0 and None without it
    """

    label: str
    uncertainty: float | None
    score: float | None
    change: float
    interval: tuple[float, float] | None


def split_by_uncertainty(material: Material, row: MethodSummary) -> list[Bin]:
    """Return the clients in the order of their uncertainty, in ten groups if they are many."""
    ordered = [client for client in material.by_uncertainty() if client in row.client_scores]
    if len(ordered) <= MOST_CLIENTS:
        return [_bin(row, [client], printable(client)) for client in ordered]
    bounds = [round(i * len(ordered) / GROUPS) for i in range(GROUPS + 1)]
    return [
        _bin(row, ordered[low:high], f"{10 * i + 1} to {10 * (i + 1)}%")
        for i, (low, high) in enumerate(itertools.pairwise(bounds))
    ]


def _bin(row: MethodSummary, clients: Sequence[str], label: str) -> Bin:
    scores = [row.client_scores[c].mean for c in clients]
    known = [row.uncertainty[c].mean for c in clients if c in row.uncertainty]
    change, interval = 0.0, None
    if row.runs.outcomes and row.against_fedavg:
        summary = summarise(_mean_changes(row, clients))
        change, interval = summary.mean or 0.0, summary.ci95
    return Bin(label, _mean(known), _mean(scores), change, interval)


def _mean_changes(row: MethodSummary, clients: Sequence[str]) -> list[float]:
    """Return the mean change of these clients from FedAvg, seed by seed."""
    indices = [row.runs.clients.index(client) for client in clients]
    return [
        statistics.fmean(outcome.accuracies[i] - reference.accuracies[i] for i in indices)
        for outcome, reference in zip(row.runs.outcomes, row.runs.references, strict=True)
    ]


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def quantiles(values: Sequence[float]) -> list[float]:
    """Return the quantiles at `SHARES`, interpolated linearly."""
    ordered = sorted(values)
    result = []
    for share in SHARES:
        place = share * (len(ordered) - 1)
        low = math.floor(place)
        high = min(low + 1, len(ordered) - 1)
        result.append(ordered[low] + (place - low) * (ordered[high] - ordered[low]))
    return result
