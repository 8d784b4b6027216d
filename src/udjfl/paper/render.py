"""The paper's tables beside ours: on a terminal, as Markdown, as CSV, and as LaTeX."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table as Grid
from rich.text import Text

from udjfl.paper.formatting import (
    AGREES,
    ARROW,
    comparison_text,
    deciding,
    half_width,
    heading,
    notes,
    number,
    published_text,
    section_of,
)
from udjfl.paper.latex import latex as latex
from udjfl.paper.tables import (
    Column,
    DistributionsTable,
    ResultsRow,
    ResultsTable,
    Row,
    SoloTable,
    Table,
)
from udjfl.paper.verdicts import Outcome, Verdict

NARROW = {
    "global_accuracy": "Global",
    "accuracy_most_uncertain": "Most\nuncert.",
    "accuracy_least_uncertain": "Least\nuncert.",
    "psi": "Psi",
    "pearson_r": "r",
    "local_accuracy": "Own test data",
    "clean_accuracy": "Clean test data",
    "uncertainty": "Uncertainty",
}
# Wider than any of these tables.
MOST_WIDTH = 1000
# Bold and underline are lost where output is piped; these are not.
SIGN = {"best": "¹", "second": "²", None: ""}
STYLE = {"best": "bold", "second": "underline", None: ""}
SHORT_OUTCOME: dict[Outcome, str] = {"not decidable at this number of seeds": "not decidable"}
COLOUR: dict[Outcome, str] = {
    "holds": "green",
    "does not hold": "red",
    "not decidable at this number of seeds": "yellow",
    "not tested": "dim",
}


def results_view(table: ResultsTable, verdicts: Sequence[Verdict]) -> RenderableType:
    """Methods by metrics in sections by theory, then what became of the paper's claims."""
    return _view(table, verdicts)


def solo_view(table: SoloTable, verdicts: Sequence[Verdict]) -> RenderableType:
    """Clients training alone, then what became of the paper's claims."""
    return _view(table, verdicts)


def distributions_view(table: DistributionsTable, verdicts: Sequence[Verdict]) -> RenderableType:
    """FedAvg under three distributions, then what became of the paper's claims."""
    return _view(table, verdicts)


def _view(table: Table, verdicts: Sequence[Verdict]) -> RenderableType:
    parts: list[RenderableType] = [Text(heading(table), style="bold"), _Fitting(table), Text("")]
    if isinstance(table, ResultsTable):
        parts.append(
            Text(
                "¹ best, ² second best of its section. Dim: not what the theory is about.",
                style="dim",
            )
        )
    parts += [Text(note, style="dim") for note in notes(table)]
    if verdicts:
        parts += [
            Text(""),
            Text("What the paper says of this table, tested on ours", style="bold"),
            _verdict_grid(verdicts),
        ]
        parts.append(
            Text(
                "Paired t-tests over seeds, 5%. Not decidable: not at this number of seeds.",
                style="dim",
            )
        )
    return Group(*parts)


class _Fitting:
    """The table with a number and its interval side by side, or one below the other where that is too wide."""

    def __init__(self, table: Table) -> None:
        self.table = table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        wide = _grid(self.table, beside=" ")
        unlimited = options.update(width=MOST_WIDTH)
        fits = Measurement.get(console, unlimited, wide).maximum <= options.max_width
        yield wide if fits else _grid(self.table, beside="\n")


def _grid(table: Table, beside: str) -> Grid:
    grid = Grid(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    grid.add_column(
        {"results": "Method", "solo": "Client and its shards"}.get(table.kind, "Setting"),
        overflow="fold",
    )
    for column in table.columns:
        title = f"{NARROW.get(column.key, column.title)}{beside}{ARROW[column.better]}".strip()
        grid.add_column(title, justify="right", no_wrap=True)
    section = ""
    for row in table.rows:
        if section_of(row) != section:
            section = section_of(row)
            grid.add_row(Text(section, style="bold italic"))
        grid.add_row(
            _name(row, table, beside),
            *(_cell(table, row, column, beside) for column in table.columns),
        )
    return grid


def _name(row: Row, table: Table, beside: str) -> Text:
    """The row's name, and what the published line is; our own names of methods are too long for a terminal."""
    indent = "  " if isinstance(row, ResultsRow) else ""
    lines = [f"{indent}{_greek(row.name)}"]
    if not isinstance(row, ResultsRow) and row.below:
        lines.append(row.below)
    elif table.published_for is not None:
        lines += ["", f"{indent}published"] if beside == "\n" else [f"{indent}published"]
    return Text.assemble(lines[0], ("".join(f"\n{line}" for line in lines[1:]), "dim"))


def _greek(text: str) -> str:
    return text.replace("beta=", "β=").replace("gamma=", "γ=")


def _cell(table: Table, row: Row, column: Column, beside: str) -> Text:
    """Ours with its interval; below it the published number and the difference."""
    cell = table.cell(row, column.key)
    dim = "" if cell.relevant else " dim"
    if cell.ours.mean is None:
        ours = Text.assemble(("–", "dim"), "\n" if beside == "\n" else "")
    else:
        shown = number(cell.ours.mean, column) + SIGN[cell.mark]
        half = half_width(cell, column)
        ours = Text.assemble(
            (shown, f"{STYLE[cell.mark]}{dim}".strip()), (f"{beside}{half}".rstrip(" "), "dim")
        )
    if table.published_for is None:
        return ours
    return Text("\n").join(
        [ours, Text(published_text(cell, column).replace(" ", beside), style="dim")]
    )


def _verdict_grid(verdicts: Sequence[Verdict]) -> Grid:
    grid = Grid(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    for verdict in verdicts:
        outcome = verdict.outcome
        grid.add_row(
            Text(
                SHORT_OUTCOME.get(outcome, outcome), style=f"bold {COLOUR[outcome]}", no_wrap=True
            ),
            _told(verdict),
        )
    return grid


def _told(verdict: Verdict) -> Text:
    told = Text(f"{verdict.claim.says} [{verdict.claim.where}]")
    told.append(f"\n{_greek(verdict.reason)}", "dim")
    if verdict.published_agrees is not None:
        told.append(f" The paper's own means agree: {AGREES[verdict.published_agrees]}.", "dim")
    for one in deciding(verdict):
        told.append(f"\n{_greek(comparison_text(one))}", "dim")
    return told


def markdown(table: Table, verdicts: Sequence[Verdict]) -> str:
    """The table, its notes and every claim with all its numbers, as GitHub's Markdown. Second best is underlined."""
    sections = isinstance(table, ResultsTable)
    titles = [f"{column.title} {ARROW[column.better]}".strip() for column in table.columns]
    lines = [f"### {_escaped(heading(table))}", ""]
    lines += _pipes([*(["Theory"] if sections else []), "", *titles], right=len(titles))
    for row in table.rows:
        first = [_escaped(section_of(row))] if sections else []
        name = _escaped(row.name) + (f"<br>{_escaped(row.below)}" if row.below else "")
        lines.append(
            _piped(
                [*first, name, *(_markdown_cell(table, row, column) for column in table.columns)]
            )
        )
    lines += ["", *(f"- {_escaped(note)}" for note in notes(table))]
    if verdicts:
        lines += ["", "### What the paper says of this table, tested on ours", ""]
        lines += _pipes(
            [
                "Claim",
                "Where",
                "Verdict",
                "Comparisons (paired t-tests over seeds)",
                "The paper's own means agree",
            ]
        )
        lines += [_piped(_markdown_verdict(verdict)) for verdict in verdicts]
    return "\n".join(lines) + "\n"


def _markdown_cell(table: Table, row: Row, column: Column) -> str:
    cell = table.cell(row, column.key)
    ours = "–"
    if cell.ours.mean is not None:
        shown = number(cell.ours.mean, column)
        shown = {"best": f"**{shown}**", "second": f"<ins>{shown}</ins>", None: shown}[cell.mark]
        ours = f"{shown} {half_width(cell, column)}".strip()
    return (
        ours
        if table.published_for is None
        else f"{ours}<br>{published_text(cell, column, with_std=True)}"
    )


def _markdown_verdict(verdict: Verdict) -> list[str]:
    numbers = "<br>".join(_escaped(comparison_text(one)) for one in verdict.comparisons)
    outcome = f"**{verdict.outcome}**<br>{_escaped(verdict.reason)}"
    return [
        _escaped(verdict.claim.says),
        verdict.claim.where,
        outcome,
        numbers,
        AGREES[verdict.published_agrees],
    ]


def _pipes(titles: Sequence[str], right: int = 0) -> list[str]:
    rules = ["---"] * (len(titles) - right) + ["---:"] * right
    return [_piped(titles), _piped(rules)]


def _piped(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _escaped(text: str) -> str:
    escaped = "".join(f"\\{letter}" if letter in "\\|*_<>`" else letter for letter in text)
    return escaped.replace("\n", " ")


def csv_rows(table: Table) -> tuple[list[str], list[list[str]]]:
    """Header and one line for each row and metric. Nothing is rounded; what there is not is empty."""
    header = [
        "theory",
        "row",
        "method",
        "metric",
        "mean",
        "low",
        "high",
        "seeds",
        "published",
        "published_std",
    ]
    lines = []
    for row in table.rows:
        for column in table.columns:
            cell = table.cell(row, column.key)
            low, high = cell.ours.ci95 or (None, None)
            printed = (
                (None, None)
                if cell.published is None
                else (cell.published.mean, cell.published.std)
            )
            values = [cell.ours.mean, low, high, cell.ours.n, *printed, cell.difference]
            lines.append(
                [*_row_key(row), column.key, *(_plain(value) for value in values), cell.mark or ""]
            )
    return [*header, "difference", "mark"], lines


def seed_rows(table: Table) -> tuple[list[str], list[list[str]]]:
    """Header and one line for each row, seed and metric, unrounded; empty where a seed has no value."""
    lines = [
        [*_row_key(row), str(seed), column.key, _plain(value)]
        for row in table.rows
        for column in table.columns
        for seed, value in zip(table.seeds, table.value(row, column.key).values, strict=True)
    ]
    return ["theory", "row", "method", "seed", "metric", "value"], lines


def _row_key(row: Row) -> list[str]:
    return (
        [row.theory, row.name, row.method_label]
        if isinstance(row, ResultsRow)
        else ["", row.name, ""]
    )


def _plain(value: float | None) -> str:
    return "" if value is None else repr(value)
