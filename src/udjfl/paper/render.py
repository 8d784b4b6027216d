"""The paper's tables beside ours: on a terminal, as Markdown, and as CSV. `latex` has LaTeX."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import astuple
from itertools import groupby

from rich.align import VerticalAlignMethod
from rich.console import Console, Group, RenderableType
from rich.table import Table as Grid
from rich.text import Text

from udjfl.paper.formatting import (
    AGREES,
    ARROW,
    deciding_tests,
    format_half_width,
    format_number,
    format_order_test,
    format_published,
    heading,
    notes,
    section_title,
)
from udjfl.paper.tables import Column, ResultsTable, Row, Table
from udjfl.paper.verdicts import Verdict, VerdictOutcome
from udjfl.report.output import FitWidth, markdown_table, text_width

CLAIMS_TITLE = "What the paper says of this table, tested on ours"
FIRST_COLUMN = {
    "results": "Method",
    "solo": "Client and its shards",
    "distributions": "Setting",
    "search": "Method and learning rate",
}
# Wider than any of these tables.
MOST_WIDTH = 1000
# Bold and underline are lost in a pipe; these signs are not.
SIGN = {"best": "¹", "second": "²", None: ""}
STYLE = {"best": "bold", "second": "underline", None: ""}
COLOUR: dict[VerdictOutcome, str] = {
    "holds": "green",
    "does not hold": "red",
    "not decidable at this number of seeds": "yellow",
    "not tested": "dim",
}


def table_view(table: Table, verdicts: Sequence[Verdict]) -> RenderableType:
    """Return the table for a terminal, with its notes and the verdicts on the paper's claims."""
    lines = notes(table)
    if isinstance(table, ResultsTable):
        lines.insert(0, "¹ best, ² second best of its section. Dim: not what the theory is about.")
    parts: list[RenderableType] = [
        Text(heading(table), style="bold"),
        FitWidth(lambda width: _fitting_layout(table, width)),
        Text(""),
        *(Text(line, style="dim") for line in lines),
    ]
    return Group(*parts, *verdicts_view(verdicts))


def verdicts_view(verdicts: Sequence[Verdict]) -> list[RenderableType]:
    """Return the verdicts on the paper's claims, for a terminal; nothing if there are none."""
    if not verdicts:
        return []
    footer = "Paired t-tests over seeds, 5%. Not decidable: not at this number of seeds."
    title = Text(CLAIMS_TITLE, style="bold")
    return [Text(""), title, _verdict_grid(verdicts), Text(footer, style="dim")]


def _fitting_layout(table: Table, width: int) -> RenderableType:
    """Return the table in the widest layout that fits.

    A number and its interval stand side by side; or one below the other; or so, and the name of a
    row above its numbers.
    """
    for separator in (" ", "\n"):
        grid = _grid(table, separator)
        if Console(width=MOST_WIDTH).measure(grid).maximum <= width:
            return grid
    return Group(*_name_above_numbers(table))


def _grid(table: Table, separator: str) -> Grid:
    grid = Grid(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    grid.add_column(FIRST_COLUMN[table.kind], overflow="fold")
    for column in table.columns:
        grid.add_column(_column_title(column, separator), justify="right", no_wrap=True)
    for section, rows in groupby(table.rows, section_title):
        if section:
            grid.add_row(Text(section, style="bold italic"))
        for row in rows:
            grid.add_row(_name(row, table, separator), *_cells(row, table, separator))
    return grid


def _name_above_numbers(table: Table) -> Iterator[RenderableType]:
    titles = [
        Text(_column_title(column, "\n").replace(" ", "\n"), style="bold")
        for column in table.columns
    ]
    lines = [titles, *(_cells(row, table, "\n") for row in table.rows)]
    widths = [max(map(text_width, column)) for column in zip(*lines, strict=True)]

    def grid(cells: Sequence[Text]) -> Grid:
        of_row = Grid.grid(padding=(0, 1, 0, 0))
        vertical: VerticalAlignMethod = "bottom" if cells is titles else "top"
        for width in widths:
            of_row.add_column(justify="right", vertical=vertical, width=width, no_wrap=True)
        of_row.add_row(*cells)
        return of_row

    yield grid(titles)
    for section, rows in groupby(table.rows, section_title):
        if section:
            yield Text(section, style="bold italic")
        for row in rows:
            below = f" ({row.subtitle})" if row.subtitle and row.theory is None else ""
            yield Text(f"{_with_greek(row.name)}{below}", style="bold")
            yield grid(_cells(row, table, "\n"))
    if table.published_for is not None:
        yield Text("Below a name: ours, its interval, published, the difference.", style="dim")


def _column_title(column: Column, separator: str) -> str:
    return f"{column.heading or column.title}{separator}{ARROW[column.better]}".strip()


def _cells(row: Row, table: Table, separator: str) -> list[Text]:
    return [_cell(table, row, column, separator) for column in table.columns]


def _name(row: Row, table: Table, separator: str) -> Text:
    """Return the row's name, and below it the label of the published line or the subtitle.

    The subtitles of results, our own names of methods, are too long for a terminal.
    """
    indent = "" if row.theory is None else "  "
    below = ""
    if row.subtitle and row.theory is None:
        below = f"\n{row.subtitle}"
    elif table.published_for is not None:
        below = ("\n\n" if separator == "\n" else "\n") + f"{indent}published"
    return Text.assemble(f"{indent}{_with_greek(row.name)}", (below, "dim"))


def _with_greek(text: str) -> str:
    return text.replace("beta=", "β=").replace("gamma=", "γ=")


def _cell(table: Table, row: Row, column: Column, separator: str) -> Text:
    """Return our number with its interval; below it the published number and the difference."""
    cell = table.cell(row, column.key)
    if cell.ours.mean is None:
        ours = Text.assemble(("–", "dim"), separator.strip(" "))
    else:
        style = f"{STYLE[cell.mark]}{'' if cell.relevant else ' dim'}".strip()
        half_width = f"{separator}{format_half_width(cell.ours, column.digits)}".rstrip(" ")
        number = format_number(cell.ours.mean, column) + SIGN[cell.mark]
        ours = Text.assemble((number, style), (half_width, "dim"))
    if table.published_for is None:
        return ours
    published = format_published(cell, column).replace(" ", separator)
    return Text("\n").join([ours, Text(published, style="dim")])


def _verdict_grid(verdicts: Sequence[Verdict]) -> Grid:
    grid = Grid(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    for verdict in verdicts:
        outcome = verdict.outcome.removesuffix(" at this number of seeds")
        style = f"bold {COLOUR[verdict.outcome]}"
        details = _with_greek(verdict.reason)
        if verdict.published_agrees is not None:
            details += f" The paper's own means agree: {AGREES[verdict.published_agrees]}."
        tests = (_with_greek(format_order_test(test)) for test in deciding_tests(verdict))
        grid.add_row(
            Text(outcome, style=style, no_wrap=True),
            Text.assemble(
                f"{verdict.claim.says} [{verdict.claim.where}]",
                ("\n" + "\n".join([details, *tests]), "dim"),
            ),
        )
    return grid


def table_markdown(table: Table, verdicts: Sequence[Verdict]) -> str:
    """Return the table, its notes and every claim with all its numbers as GitHub's Markdown.

    The second best is underlined.
    """
    sections = isinstance(table, ResultsTable)
    titles = [f"{column.title} {ARROW[column.better]}".strip() for column in table.columns]
    first = ["Theory", table.row_title] if sections else [table.row_title]
    rows = []
    for row in table.rows:
        section = [_escape(section_title(row))] if sections else []
        name = _escape(row.name) + (f"<br>{_escape(row.subtitle)}" if row.subtitle else "")
        rows.append([*section, name, *(_markdown_cell(table, row, c) for c in table.columns)])
    lines = [
        f"### {_escape(heading(table))}",
        "",
        *markdown_table([*first, *titles], rows, right=len(titles)),
        "",
        *(f"- {_escape(note)}" for note in notes(table)),
    ]
    if verdicts:
        tests = "Comparisons (paired t-tests over seeds)"
        columns = ["Claim", "Where", "Verdict", tests, "The paper's own means agree"]
        claims = [_markdown_verdict(verdict) for verdict in verdicts]
        lines += ["", f"### {CLAIMS_TITLE}", "", *markdown_table(columns, claims)]
    return "\n".join(lines) + "\n"


def _markdown_cell(table: Table, row: Row, column: Column) -> str:
    cell = table.cell(row, column.key)
    ours = "–"
    if cell.ours.mean is not None:
        ours = format_number(cell.ours.mean, column)
        ours = {"best": f"**{ours}**", "second": f"<ins>{ours}</ins>", None: ours}[cell.mark]
        ours = f"{ours} {format_half_width(cell.ours, column.digits)}".strip()
    if table.published_for is None:
        return ours
    return f"{ours}<br>{format_published(cell, column, with_std=True)}"


def _markdown_verdict(verdict: Verdict) -> list[str]:
    return [
        _escape(verdict.claim.says),
        verdict.claim.where,
        f"**{verdict.outcome}**<br>{_escape(verdict.reason)}",
        "<br>".join(_escape(format_order_test(test)) for test in verdict.order_tests),
        AGREES[verdict.published_agrees],
    ]


def _escape(text: str) -> str:
    return re.sub(r"[\\*_<>`]", r"\\\g<0>", text).replace("\n", " ")


def csv_rows(table: Table) -> tuple[list[str], list[list[str]]]:
    """Return a header and one line for each row and metric, unrounded; missing values are empty."""
    header = ["theory", "row", "method", "metric", "mean", "low", "high", "seeds", "published"]
    lines = []
    for row in table.rows:
        for column in table.columns:
            cell = table.cell(row, column.key)
            interval = cell.ours.ci95 or (None, None)
            published = astuple(cell.published) if cell.published else (None, None)
            numbers = [cell.ours.mean, *interval, cell.ours.n, *published, cell.difference]
            lines.append([*_row_key(row), column.key, *map(_csv, numbers), cell.mark or ""])
    return [*header, "published_std", "difference", "mark"], lines


def seed_rows(table: Table) -> tuple[list[str], list[list[str]]]:
    """Return a header and one line for each row, seed and metric; missing values are empty."""
    return ["theory", "row", "method", "seed", "metric", "value"], [
        [*_row_key(row), str(seed), column.key, _csv(value)]
        for row in table.rows
        for column in table.columns
        for seed, value in zip(table.seeds, table.value(row, column.key).values, strict=True)
    ]


def _row_key(row: Row) -> list[str]:
    return [row.theory or "", row.name, row.details.get("method", "")]


def _csv(value: float | None) -> str:
    return "" if value is None else repr(value)
