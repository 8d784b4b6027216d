"""Words and numbers that a table of the paper beside ours has in every format."""

from __future__ import annotations

from dataclasses import replace

from udjfl.paper.published import CITATION, TITLE
from udjfl.paper.tables import (
    PRINTED_DIGITS,
    Cell,
    Column,
    DistributionsTable,
    ResultsRow,
    ResultsTable,
    Row,
    SoloTable,
    Table,
)
from udjfl.paper.verdicts import Comparison, Order, Verdict

SECTION = {
    "none": "Reference",
    "utilitarian": "Utilitarian",
    "egalitarian": "Egalitarian",
    "rawls": "Rawls' difference principle",
    "desert": "Desert",
}
ARROW = {1: "↑", -1: "↓", 0: ""}
UNITS = {
    "results": "Accuracies in percent, STD and Psi in points.",
    "solo": "Accuracies in percent, uncertainty in nats.",
    "distributions": "Accuracies in percent, STD in points.",
}
AGREES = {True: "yes", False: "no", None: "–"}
SHOWN_COMPARISONS = 2


def heading(table: Table) -> str:
    """What the table is of; names the other data set where the published numbers are of one."""
    if table.published_for is None:
        return f"{table.title} on {table.data}"
    other = "" if table.same_data else " (other data)"
    return f"{table.title} on {table.data}, beside those published for {TITLE[table.published_for]}{other}"


def notes(table: Table) -> list[str]:
    """What has to be said under the table, in any format."""
    several = len(table.seeds) > 1
    spread = (
        "± half the 95% Student-t interval over seeds"
        if several
        else "one seed, so without an interval"
    )
    listed = ", ".join(str(seed) for seed in table.seeds)
    found = [f"Ours: mean over seeds, {spread}. {UNITS[table.kind]}", _source(table)]
    if isinstance(table, ResultsTable):
        found.append(
            "Best and second best are marked in each section by its theory's measure, as in the paper, if a row has a value on "
            "every seed. FedAvg is the reference Psi is measured from."
        )
    run = f"Profile {table.profile}, {table.rounds} {table.rounds_are}, seeds {listed}"
    found.append(
        "; ".join([run, *(f"{name}: {value}" for name, value in table.setting.items())]) + "."
    )
    return found + _row_notes(table)


def _source(table: Table) -> str:
    if table.published_for is None:
        return f"{CITATION}, has no numbers for this data."
    below = f"Published: {CITATION}; in parentheses ours less published."
    if table.same_data:
        return below
    other = TITLE[table.published_for]
    return f"{below} Those were measured on {other}, not on {table.data}: compare orderings, not digits."


def _row_notes(table: Table) -> list[str]:
    """Notes that several rows share are said once."""
    shared: dict[str, list[str]] = {}
    for row in table.rows:
        if row.note:
            shared.setdefault(row.note, []).append(row.name)
    found = [f"{'; '.join(names)}: {note}" for note, names in shared.items()]
    for row in table.rows:
        reasons: dict[str, list[str]] = {}
        for seed, why in row.failed.items():
            reasons.setdefault(why, []).append(str(seed))
        found += [
            f"{row.name} failed on seed{'s' if len(seeds) > 1 else ''} {', '.join(seeds)}: {why}"
            for why, seeds in reasons.items()
        ]
    return found


def number(value: float, column: Column, signed: bool = False) -> str:
    """As printed: the column's digits, and a sign where values of both signs are usual."""
    sign = "+" if signed or column.key in ("psi", "pearson_r") else ""
    return f"{round(value, column.digits) + 0.0:{sign}.{column.digits}f}"  # adding zero turns -0.00 into 0.00


def half_width(cell: Cell, column: Column) -> str:
    """Half the interval, with its ±; empty without one."""
    ends = cell.ours.ci95
    return "" if ends is None else f"±{(ends[1] - ends[0]) / 2:.{column.digits}f}"


def section_of(row: Row) -> str:
    """The heading a row stands under; empty in tables without sections."""
    return SECTION[row.theory] if isinstance(row, ResultsRow) else ""


def published_text(cell: Cell, column: Column, with_std: bool = False) -> str:
    """The published number as it is printed, and ours less it."""
    if cell.published is None:
        return "–"
    shown = number(cell.published.mean, replace(column, digits=PRINTED_DIGITS))
    if with_std and cell.published.std is not None:
        shown += f" ±{cell.published.std:.{PRINTED_DIGITS}f}"
    return (
        shown
        if cell.difference is None
        else f"{shown} ({number(cell.difference, column, signed=True)})"
    )


def deciding(verdict: Verdict) -> list[Comparison]:
    """The comparisons a short listing shows: those most against the claim first, by their t-tests."""
    tested = [one for one in verdict.comparisons if one.test is not None]
    if verdict.claim.need == "any":
        return sorted(tested, key=lambda one: -_support(one))[:SHOWN_COMPARISONS]
    return sorted(tested, key=_support)[:SHOWN_COMPARISONS]


def _support(one: Comparison) -> float:
    """From -1, surely the other way round, to 1, surely as claimed."""
    if one.test is None or one.test.difference is None or one.p is None:
        return 0.0
    return (1 - one.p) * (1 if one.test.difference > 0 else -1)


def comparison_text(one: Comparison) -> str:
    """An ordering with its numbers, as in `STD: TERM > UDJ-FL: +0.43 [+0.20, +0.66], p = 0.002, n = 10`."""
    named = _order_text(one.order)
    if one.test is None or one.test.difference is None:
        return f"{named}: {one.why}"
    digits = 3 if one.order.higher.metric in ("uncertainty", "pearson_r") else 2
    shown = f"{round(one.test.difference, digits) + 0.0:+.{digits}f}"
    if one.test.ci95 is not None:
        shown += f" [{one.test.ci95[0]:+.{digits}f}, {one.test.ci95[1]:+.{digits}f}]"
    shown += f", {_p_text(one)}" if one.p is not None else ", always equal" if one.equal else ""
    return f"{named}: {shown}, n = {one.test.n}"


def _p_text(one: Comparison) -> str:
    p = one.p or 0.0
    return f"p = {p:.3f}" if p >= 0.001 else "p < 0.001"


def _order_text(order: Order) -> str:
    higher, lower = order.higher, order.lower
    if higher.metric == lower.metric:
        return f"{_metric_text(higher.metric)}: {higher.row or '0'} > {lower.row or '0'}"
    return f"{higher.row}: {_metric_text(higher.metric).lower()} > {_metric_text(lower.metric).lower()}"


def _metric_text(metric: str) -> str:
    every = (*ResultsTable.columns, *SoloTable.columns, *DistributionsTable.columns)
    return next(column.title for column in every if column.key == metric)
