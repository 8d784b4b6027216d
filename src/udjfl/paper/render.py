"""The paper's tables beside ours: on a terminal, as Markdown, and as CSV. `latex` has LaTeX."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.align import VerticalAlignMethod
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
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
from udjfl.paper.tables import Cell, Column, ResultsTable, Row, Table
from udjfl.paper.verdicts import Verdict, VerdictOutcome

CLAIMS_TITLE = "What the paper says of this table, tested on ours"
FIRST_COLUMN = {"results": "Method", "solo": "Client and its shards", "distributions": "Setting"}
# Wider than any of these tables.
MOST_WIDTH = 1000
# Bold and underline are lost in a pipe; these signs are not.
SIGN = {"best": "¹", "second": "²", None: ""}
STYLE = {"best": "bold", "second": "underline", None: ""}
SHORT_OUTCOME: dict[VerdictOutcome, str] = {
    "not decidable at this number of seeds": "not decidable"
}
COLOUR: dict[VerdictOutcome, str] = {
    "holds": "green",
    "does not hold": "red",
    "not decidable at this number of seeds": "yellow",
    "not tested": "dim",
}


def table_view(table: Table, verdicts: Sequence[Verdict]) -> RenderableType:
    """Return the table for a terminal, with its notes and the verdicts on the paper's claims."""
    lines = list(notes(table))
    if isinstance(table, ResultsTable):
        lines.insert(0, "¹ best, ² second best of its section. Dim: not what the theory is about.")
    parts: list[RenderableType] = [Text(heading(table), style="bold"), _FittingGrid(table)]
    parts += [Text(""), *(Text(line, style="dim") for line in lines)]
    if verdicts:
        footer = "Paired t-tests over seeds, 5%. Not decidable: not at this number of seeds."
        parts += [Text(""), Text(CLAIMS_TITLE, style="bold"), _verdict_grid(verdicts)]
        parts.append(Text(footer, style="dim"))
    return Group(*parts)


class _FittingGrid:
    """The table in the widest layout that fits.

    A number and its interval stand side by side; or one below the other; or so, and the name of a
    row above its numbers.
    """

    def __init__(self, table: Table) -> None:
        self.table = table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        unlimited = options.update(width=MOST_WIDTH)
        for separator in (" ", "\n"):
            grid = _grid(self.table, separator)
            if Measurement.get(console, unlimited, grid).maximum <= options.max_width:
                yield grid
                return
        yield from _name_above_numbers(self.table)


def _grid(table: Table, separator: str) -> Grid:
    grid = Grid(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    grid.add_column(FIRST_COLUMN[table.kind], overflow="fold")
    for column in table.columns:
        grid.add_column(_column_title(column, separator), justify="right", no_wrap=True)
    section = ""
    for row in table.rows:
        if section_title(row) != section:
            section = section_title(row)
            grid.add_row(Text(section, style="bold italic"))
        grid.add_row(_name(row, table, separator), *_cells(row, table, separator))
    return grid


def _name_above_numbers(table: Table) -> Iterator[RenderableType]:
    titles = [
        Text(_column_title(column, "\n").replace(" ", "\n"), style="bold")
        for column in table.columns
    ]
    lines = [titles, *(_cells(row, table, "\n") for row in table.rows)]
    widths = [
        max(cell_len(line) for text in column for line in text.plain.split("\n"))
        for column in zip(*lines, strict=True)
    ]

    def grid(cells: Sequence[Text]) -> Grid:
        of_row = Grid.grid(padding=(0, 1, 0, 0))
        vertical: VerticalAlignMethod = "bottom" if cells is titles else "top"
        for width in widths:
            of_row.add_column(justify="right", vertical=vertical, width=width, no_wrap=True)
        of_row.add_row(*cells)
        return of_row

    yield grid(titles)
    section = ""
    for row, cells in zip(table.rows, lines[1:], strict=True):
        if section_title(row) != section:
            section = section_title(row)
            yield Text(section, style="bold italic")
        below = f" ({row.subtitle})" if row.subtitle and row.theory is None else ""
        yield Text(f"{_with_greek(row.name)}{below}", style="bold")
        yield grid(cells)
    if table.published_for is not None:
        yield Text("Below a name: ours, its interval, published, the difference.", style="dim")


def _column_title(column: Column, separator: str) -> str:
    return f"{column.heading or column.title}{separator}{ARROW[column.better]}".strip()


def _cells(row: Row, table: Table, separator: str) -> list[Text]:
    with_published = table.published_for is not None
    return [
        _cell(table.cell(row, column.key), column, with_published, separator)
        for column in table.columns
    ]


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


def _cell(cell: Cell, column: Column, with_published: bool, separator: str) -> Text:
    """Return our number with its interval; below it the published number and the difference."""
    dim = "" if cell.relevant else " dim"
    if cell.ours.mean is None:
        ours = Text.assemble(("–", "dim"), "\n" if separator == "\n" else "")
    else:
        ours = Text.assemble(
            (
                format_number(cell.ours.mean, column) + SIGN[cell.mark],
                f"{STYLE[cell.mark]}{dim}".strip(),
            ),
            (f"{separator}{format_half_width(cell, column)}".rstrip(" "), "dim"),
        )
    if not with_published:
        return ours
    published = format_published(cell, column).replace(" ", separator)
    return Text("\n").join([ours, Text(published, style="dim")])


def _verdict_grid(verdicts: Sequence[Verdict]) -> Grid:
    grid = Grid(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    for verdict in verdicts:
        outcome = SHORT_OUTCOME.get(verdict.outcome, verdict.outcome)
        style = f"bold {COLOUR[verdict.outcome]}"
        grid.add_row(Text(outcome, style=style, no_wrap=True), _verdict_text(verdict))
    return grid


def _verdict_text(verdict: Verdict) -> Text:
    text = Text(f"{verdict.claim.says} [{verdict.claim.where}]")
    text.append(f"\n{_with_greek(verdict.reason)}", "dim")
    if verdict.published_agrees is not None:
        text.append(f" The paper's own means agree: {AGREES[verdict.published_agrees]}.", "dim")
    for test in deciding_tests(verdict):
        text.append(f"\n{_with_greek(format_order_test(test))}", "dim")
    return text


def table_markdown(table: Table, verdicts: Sequence[Verdict]) -> str:
    """Return the table, its notes and every claim with all its numbers as GitHub's Markdown.

    The second best is underlined.
    """
    sections = isinstance(table, ResultsTable)
    titles = [f"{column.title} {ARROW[column.better]}".strip() for column in table.columns]
    lines = [f"### {_escape(heading(table))}", ""]
    lines += _markdown_header([*(["Theory"] if sections else []), "", *titles], right=len(titles))
    for row in table.rows:
        section = [_escape(section_title(row))] if sections else []
        name = _escape(row.name) + (f"<br>{_escape(row.subtitle)}" if row.subtitle else "")
        cells = [_markdown_cell(table, row, column) for column in table.columns]
        lines.append(_markdown_line([*section, name, *cells]))
    lines += ["", *(f"- {_escape(note)}" for note in notes(table))]
    if verdicts:
        tests = "Comparisons (paired t-tests over seeds)"
        columns = ["Claim", "Where", "Verdict", tests, "The paper's own means agree"]
        lines += ["", f"### {CLAIMS_TITLE}", "", *_markdown_header(columns)]
        lines += [_markdown_verdict(verdict) for verdict in verdicts]
    return "\n".join(lines) + "\n"


def _markdown_cell(table: Table, row: Row, column: Column) -> str:
    cell = table.cell(row, column.key)
    ours = "–"
    if cell.ours.mean is not None:
        ours = format_number(cell.ours.mean, column)
        ours = {"best": f"**{ours}**", "second": f"<ins>{ours}</ins>", None: ours}[cell.mark]
        ours = f"{ours} {format_half_width(cell, column)}".strip()
    if table.published_for is None:
        return ours
    return f"{ours}<br>{format_published(cell, column, with_std=True)}"


def _markdown_verdict(verdict: Verdict) -> str:
    numbers = "<br>".join(_escape(format_order_test(test)) for test in verdict.order_tests)
    outcome = f"**{verdict.outcome}**<br>{_escape(verdict.reason)}"
    agrees = AGREES[verdict.published_agrees]
    claim = verdict.claim
    return _markdown_line([_escape(claim.says), claim.where, outcome, numbers, agrees])


def _markdown_header(titles: Sequence[str], right: int = 0) -> list[str]:
    rules = ["---"] * (len(titles) - right) + ["---:"] * right
    return [_markdown_line(titles), _markdown_line(rules)]


def _markdown_line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _escape(text: str) -> str:
    escaped = "".join(f"\\{letter}" if letter in "\\|*_<>`" else letter for letter in text)
    return escaped.replace("\n", " ")


def csv_rows(table: Table) -> tuple[list[str], list[list[str]]]:
    """Return a header and one line for each row and metric, unrounded; missing values are empty."""
    header = ["theory", "row", "method", "metric", "mean", "low", "high", "seeds", "published"]
    lines = []
    for row in table.rows:
        for column in table.columns:
            cell = table.cell(row, column.key)
            low, high = cell.ours.ci95 or (None, None)
            published = cell.published
            values = [
                *(cell.ours.mean, low, high, cell.ours.n),
                *((None, None) if published is None else (published.mean, published.std)),
                cell.difference,
            ]
            texts = [_csv_number(value) for value in values]
            lines.append([*_row_key(row), column.key, *texts, cell.mark or ""])
    return [*header, "published_std", "difference", "mark"], lines


def seed_rows(table: Table) -> tuple[list[str], list[list[str]]]:
    """Return a header and one line for each row, seed and metric; missing values are empty."""
    lines = [
        [*_row_key(row), str(seed), column.key, _csv_number(value)]
        for row in table.rows
        for column in table.columns
        for seed, value in zip(table.seeds, table.value(row, column.key).values, strict=True)
    ]
    return ["theory", "row", "method", "seed", "metric", "value"], lines


def _row_key(row: Row) -> list[str]:
    return [row.theory or "", row.name, row.details.get("method", "")]


def _csv_number(value: float | None) -> str:
    return "" if value is None else repr(value)
