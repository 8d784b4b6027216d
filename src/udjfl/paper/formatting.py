"""Texts and numbers of the paper's tables that are the same in every format."""

from dataclasses import replace

from udjfl.paper.published import CITATION, TITLE
from udjfl.paper.tables import (
    PRINTED_DIGITS,
    Cell,
    Column,
    DistributionsTable,
    ResultsTable,
    Row,
    SearchTable,
    SoloTable,
    Table,
)
from udjfl.paper.verdicts import Order, OrderTest, Verdict
from udjfl.statistics import Summary

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
    "solo": "Accuracies in percent, loss and uncertainty in nats.",
    "distributions": "Accuracies in percent, STD in points.",
    "search": "Accuracies in percent, STD and Psi in points.",
}
AGREES = {True: "yes", False: "no", None: "–"}
METRIC_TITLE = {
    column.key: column.title
    for table in (DistributionsTable, SoloTable, SearchTable, ResultsTable)
    for column in table.columns
}
MOST_ORDER_TESTS = 2


def heading(table: Table) -> str:
    """Return the heading of a table; it names the data set of the published numbers."""
    beside = ""
    if table.published_for is not None:
        beside = f", beside those published for {TITLE[table.published_for]}"
        beside += "" if table.same_data else " (other data)"
    return f"{table.title} on {table.data}{beside}"


def notes(table: Table) -> list[str]:
    """Return the notes below a table."""
    spread = (
        "± half the 95% Student-t interval over seeds"
        if len(table.seeds) > 1
        else "one seed, so without an interval"
    )
    marks = (
        "Best and second best are marked in each section by its theory's measure, as in the "
        "paper, if a row has a value on every seed. FedAvg is the reference Psi is measured from."
    )
    seeds = ", ".join(map(str, table.seeds))
    run = f"Profile {table.profile}, {table.rounds} {table.rounds_label}, seeds {seeds}"
    return [
        f"Ours: mean over seeds, {spread}. {UNITS[table.kind]}",
        _source(table),
        *([marks] if isinstance(table, ResultsTable) else []),
        "; ".join([run, *(f"{name}: {value}" for name, value in table.setting.items())]) + ".",
        *_row_notes(table),
    ]


def _source(table: Table) -> str:
    if table.published_for is None:
        return f"{CITATION}, has no numbers for this data."
    other = (
        f" Those were measured on {TITLE[table.published_for]}, not on {table.data}: "
        "compare orderings, not digits."
    )
    below = f"Published: {CITATION}; in parentheses ours less published."
    return below if table.same_data else below + other


def _row_notes(table: Table) -> list[str]:
    """Return notes and failures of rows; a note that several rows share stands once."""
    shared: dict[str, list[str]] = {}
    for row in table.rows:
        if row.note:
            shared.setdefault(row.note, []).append(row.name)
    lines = [f"{'; '.join(names)}: {note}" for note, names in shared.items()]
    for row in table.rows:
        reasons: dict[str, list[str]] = {}
        for seed, reason in row.failed.items():
            reasons.setdefault(reason, []).append(str(seed))
        lines += [
            f"{row.name} failed on seed{'s' if len(seeds) > 1 else ''} {', '.join(seeds)}: {reason}"
            for reason, seeds in reasons.items()
        ]
    return lines


def format_number(value: float, column: Column, signed: bool = False) -> str:
    """Format a value with the column's digits, and with a sign if both signs are usual."""
    sign = "+" if signed or column.key in ("psi", "pearson_r") else ""
    # Adding zero turns -0.00 into 0.00.
    return f"{round(value, column.digits) + 0.0:{sign}.{column.digits}f}"


def format_half_width(ours: Summary, digits: int = PRINTED_DIGITS) -> str:
    """Format half the interval, with its ±; empty without one."""
    return f"±{(ours.ci95[1] - ours.ci95[0]) / 2:.{digits}f}" if ours.ci95 else ""


def section_title(row: Row) -> str:
    """Return the title of a row's section; empty in tables without sections."""
    return "" if row.theory is None else SECTION[row.theory]


def format_published(cell: Cell, column: Column, with_std: bool = False) -> str:
    """Format the published number as it is printed, and the difference of ours from it."""
    if cell.published is None:
        return "–"
    text = format_number(cell.published.mean, replace(column, digits=PRINTED_DIGITS))
    if with_std and cell.published.std is not None:
        text += f" ±{cell.published.std:.{PRINTED_DIGITS}f}"
    if cell.difference is not None:
        text += f" ({format_number(cell.difference, column, signed=True)})"
    return text


def deciding_tests(verdict: Verdict) -> list[OrderTest]:
    """Return the order tests of a short listing: those that decide the claim most."""
    tested = [test for test in verdict.order_tests if test.test is not None]
    tested.sort(key=lambda test: test.support, reverse=verdict.claim.need == "any")
    return tested[:MOST_ORDER_TESTS]


def format_order_test(order_test: OrderTest) -> str:
    """Format as in `STD: TERM > UDJ-FL: +0.43 [+0.20, +0.66], p = 0.002, n = 10`."""
    order, test = order_test.order, order_test.test
    if test is None or test.difference is None:
        return f"{_format_order(order)}: {order_test.untested_reason}"
    digits = 3 if order.higher.metric in ("uncertainty", "train_loss", "pearson_r") else 2
    text = f"{round(test.difference, digits) + 0.0:+.{digits}f}"
    if test.ci95 is not None:
        text += f" [{test.ci95[0]:+.{digits}f}, {test.ci95[1]:+.{digits}f}]"
    if test.p is not None:
        text += f", p = {test.p:.3f}" if test.p >= 0.001 else ", p < 0.001"
    elif test.always_same:
        text += ", always the same"
    elif order_test.equal:
        text += ", always equal"
    return f"{_format_order(order)}: {text}, n = {test.n}"


def _format_order(order: Order) -> str:
    higher, lower = order.higher, order.lower
    titles = METRIC_TITLE[higher.metric], METRIC_TITLE[lower.metric]
    if higher.metric == lower.metric:
        return f"{titles[0]}: {higher.row or '0'} > {lower.row or '0'}"
    return f"{higher.row}: {titles[0].lower()} > {titles[1].lower()}"
