"""The report at a glance: for each method its verdict, and each client's gain or loss."""

from __future__ import annotations

import math
from collections.abc import Sequence

from udjfl.report.html.bins import Bin, split_by_uncertainty
from udjfl.report.html.figure import method_name, number
from udjfl.report.html.material import Material
from udjfl.report.html.tables import Cell, Table
from udjfl.simulation.method_summary import MethodSummary
from udjfl.statistics import PairedTest, correct_tests
from udjfl.verdicts import Verdict
from udjfl.verdicts.evidence import compare_clients, compare_metric

LONGEST = 18  # letters of a client's id above a column
LEVELS = 3  # shades of gain, and of loss
SMALLEST = 1.0  # the gain, in points or percent, from which on the darkest shade is used


def glance_table(material: Material) -> Table | None:
    """Tabulate the verdict on each method, and what it does to each client; None without FedAvg."""
    comparison = material.comparison
    if comparison is None or len(comparison.rows) < 2:
        return None
    compared = [
        (row, verdicts)
        for row, verdicts in zip(comparison.rows, comparison.verdicts, strict=True)
        if row is not material.reference and row.runs.outcomes
    ]
    bins = [split_by_uncertainty(material, row) for row, _ in compared]
    if not bins:
        return None
    largest = max(SMALLEST, *(abs(one.change) for of_row in bins for one in of_row))
    lines = [
        _line(material, row, verdicts, of_row, largest)
        for (row, verdicts), of_row in zip(compared, bins, strict=True)
    ]
    kind = material.score.kind
    labels = [_shorten(one.label) for one in bins[0]]
    lower = "" if kind.better > 0 else f" A gain is a lower {kind.title}."
    remarks = [
        f"Gains and losses of {kind.title} against FedAvg, in {kind.gain_basis}.{lower}",
        "Blue: gains, orange: losses, the darker the larger; grey: may be chance.",
        "From the clients with the most certain data, left, to those with the most uncertain.",
    ]
    return Table(["Method", *labels, "Mean"], lines, remarks)


def _shorten(label: str) -> str:
    """Return a label that fits above a column; the table of clients has it in full."""
    return label if len(label) <= LONGEST else f"{label[: LONGEST - 1]}…"


def _line(
    material: Material,
    row: MethodSummary,
    verdicts: Sequence[Verdict],
    bins: Sequence[Bin],
    largest: float,
) -> list[Cell]:
    sure = _decided(material, row, bins)
    gains = [
        _gain_cell(one.change, is_sure, largest) for one, is_sure in zip(bins, sure, strict=True)
    ]
    mean = compare_metric("mean_accuracy", row.runs)
    is_sure = mean.test.is_significant()
    return [
        Cell(method_name(row), tuple(_say(verdict, len(verdicts)) for verdict in verdicts)),
        *gains,
        _gain_cell(mean.difference, is_sure, largest),
    ]


def _say(verdict: Verdict, n: int) -> str:
    return verdict.kind if n == 1 else f"{verdict.theory}: {verdict.kind}"


def _decided(material: Material, row: MethodSummary, bins: Sequence[Bin]) -> list[bool]:
    """Tell for each client, or group of clients, if its change can be told from chance."""
    if len(bins) < len(material.client_ids):
        return [one.interval is not None and _excludes_zero(one.interval) for one in bins]
    changes = compare_clients(row.runs)
    tests: list[PairedTest] = [change.test for change in changes.values()]
    corrected = dict(zip(changes, correct_tests(tests), strict=True))
    ordered = [client for client in material.by_uncertainty() if client in changes]
    return [
        changes[client].test.is_significant(1.0 if corrected[client] is None else corrected[client])
        for client in ordered
    ]


def _excludes_zero(ends: tuple[float, float]) -> bool:
    return ends[0] > 0 or ends[1] < 0


def _gain_cell(gain: float, is_sure: bool, largest: float) -> Cell:
    style = "chance"
    if is_sure and gain:
        level = min(LEVELS, 1 + math.floor(LEVELS * abs(gain) / largest))
        style = f"{'up' if gain > 0 else 'down'}-{level}"
    return Cell(number(gain, sign="+"), value=gain, style=style)
