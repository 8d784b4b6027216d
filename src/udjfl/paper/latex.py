"""The paper's tables beside ours, as LaTeX for a paper of one's own."""

from __future__ import annotations

from dataclasses import replace

from udjfl.paper.formatting import half_width, heading, notes, number, section_of
from udjfl.paper.tables import PRINTED_DIGITS, Cell, Column, ResultsTable, Row, Table

ARROW = {1: r" $\uparrow$", -1: r" $\downarrow$", 0: ""}
_ESCAPED = {letter: f"\\{letter}" for letter in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "±": r"$\pm$",
    "–": "--",
    "β": r"$\beta$",
    "γ": r"$\gamma$",
}


def latex(table: Table) -> str:
    r"""A `tabular` with best in \textbf and second best in \underline; the notes are comments above it.

    It needs the packages booktabs and xcolor. Each row has a second line with the published numbers, if there are any.
    """
    sections = isinstance(table, ResultsTable)
    titles = [escaped(column.title) + ARROW[column.better] for column in table.columns]
    first = ["Theory", "Method"] if sections else [""]
    lines = [f"% {line}" for line in (heading(table), *notes(table))]
    lines = [line.replace("\n", " ") for line in lines]
    lines += [
        r"% \usepackage{booktabs,xcolor}",
        rf"\begin{{tabular}}{{{'l' * len(first)}{'r' * len(titles)}}}",
        r"\toprule",
    ]
    lines += [_line([*first, *titles]), r"\midrule"]
    before = section_of(table.rows[0]) if table.rows else ""
    for place, row in enumerate(table.rows):
        begins = place == 0 or section_of(row) != before
        if begins and place:
            lines.append(r"\midrule")
        before = section_of(row)
        named = [escaped(before) if begins else ""] if sections else []
        lines.append(
            _line(
                [
                    *named,
                    escaped(row.name),
                    *(_ours(table, row, column) for column in table.columns),
                ]
            )
        )
        if table.published_for is not None:
            blank = [""] if sections else []
            below = [_published(table.cell(row, column.key), column) for column in table.columns]
            lines.append(_line([*blank, r"\quad published", *below]))
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


def escaped(text: str) -> str:
    """Text that LaTeX prints as it is."""
    return "".join(_ESCAPED.get(letter, letter) for letter in text)


def _line(cells: list[str]) -> str:
    return " & ".join(cells) + r" \\"


def _ours(table: Table, row: Row, column: Column) -> str:
    cell = table.cell(row, column.key)
    if cell.ours.mean is None:
        return "--"
    shown = _minus(number(cell.ours.mean, column))
    shown = {"best": rf"\textbf{{{shown}}}", "second": rf"\underline{{{shown}}}", None: shown}[
        cell.mark
    ]
    half = half_width(cell, column)
    if half:
        shown += rf"\,{{\scriptsize {escaped(half)}}}"
    return shown if cell.relevant else rf"\textcolor{{gray}}{{{shown}}}"


def _published(cell: Cell, column: Column) -> str:
    if cell.published is None:
        return "--"
    shown = _minus(number(cell.published.mean, replace(column, digits=PRINTED_DIGITS)))
    if cell.published.std is not None:
        shown += rf"\,{{\scriptsize $\pm${cell.published.std:.2f}}}"
    return shown if cell.relevant else rf"\textcolor{{gray}}{{{shown}}}"


def _minus(shown: str) -> str:
    """A hyphen is too short for a minus."""
    return f"$-${shown[1:]}" if shown.startswith("-") else shown
