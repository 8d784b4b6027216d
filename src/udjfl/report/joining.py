"""Accuracies alone beside those of methods, and who would be better off alone."""

from __future__ import annotations

import math

from rich.text import Text

from udjfl.simulation.comparison import Comparison
from udjfl.simulation.method_summary import MethodSummary
from udjfl.statistics import FEWEST_SEEDS
from udjfl.training.result import FinishedRun

ALONE = "Alone"
EXPLANATION = "Alone: each client's own model, on train examples that it did not see."
MOST_NAMES = 3
TWO_SIDED = 1.96


def alone_cells(reference: MethodSummary) -> list[Text]:
    """Return the accuracies alone, one cell per client, for the table of clients."""
    alone = reference.accuracy_alone or {}
    means = [alone[client].mean if client in alone else None for client in reference.client_scores]
    return [
        Text("–" if mean is None else f"{mean:.{reference.score.digits}f}", style="dim")
        for mean in means
    ]


def joining_lines(comparison: Comparison) -> list[str]:
    """Say who would be better off alone under which method, where that is known."""
    if not any(comparison.joining):
        return []
    decided = len(comparison.seeds) >= FEWEST_SEEDS
    clauses = []
    for row, joined in zip(comparison.rows, comparison.joining, strict=True):
        losses = {
            client: one.gain
            for client, one in joined.items()
            if (one.better_alone if decided else one.gain < 0)
        }
        if losses:
            unit = "" if row.score.percent else row.score.gain_unit
            clauses.append(f"{row.label}: {_names(losses, 1, unit)}")
    if not decided:
        found = "; ".join(clauses) or "no client"
        return [f"{EXPLANATION} Below it, undecided with fewer than {FEWEST_SEEDS} seeds: {found}."]
    found = "; ".join(clauses) or "no client under any method"
    return [f"{EXPLANATION} Better off alone (paired t-tests over seeds, Holm): {found}."]


def joining_of_run(result: FinishedRun) -> list[str]:
    """Say which clients of one run have more alone by more than the noise of their test parts."""
    if not result.accuracy_alone:
        return []
    losses = {}
    for client, alone in result.accuracy_alone.items():
        if client not in result.client_scores:
            continue
        gain = result.score.better * (result.client_scores[client] - alone)
        size = (result.test_sizes or {}).get(client) if result.score.is_share else None
        # Both are shares; the one alone is of the train part, which is seldom smaller.
        spread = 0.0 if size is None else math.sqrt(2 * max(0.0, alone * (100 - alone)) / size)
        if not result.score.is_share and (ends := (result.client_interval or {}).get(client)):
            spread = (ends[1] - ends[0]) / (math.sqrt(2) * TWO_SIDED)  # of both, from one interval
        if gain < -TWO_SIDED * spread:
            losses[client] = gain
    digits = 1 if result.score.percent else result.score.digits
    found = _names(losses, digits) if losses else "no client"
    return [f"{EXPLANATION} Better off alone, by more than the noise of test parts: {found}."]


def _names(losses: dict[str, float], digits: int, unit: str = "") -> str:
    """Name the clients that lose by joining and by how much, the largest loss first."""
    ordered = sorted(losses.items(), key=lambda item: item[1])
    shown = [f"{client} ({loss:+.{digits}f}{unit})" for client, loss in ordered[:MOST_NAMES]]
    rest = f" and {len(ordered) - MOST_NAMES} more" if len(ordered) > MOST_NAMES else ""
    return f"{', '.join(shown)}{rest}"
