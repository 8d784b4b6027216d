"""The paper's tables beside ours, as LaTeX."""

from __future__ import annotations

from dataclasses import replace

from udjfl.paper.formatting import (
    format_half_width,
    format_number,
    heading,
    notes,
    section_title,
)
from udjfl.paper.tables import PRINTED_DIGITS, Cell, Column, ResultsTable, Table

ARROW = {1: r" $\uparrow$", -1: r" $\downarrow$", 0: ""}
MARK = {"best": "textbf", "second": "underline"}
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
    r"""Return a `tabular` with best in \textbf and second best in \underline.

    It needs the packages booktabs and xcolor. The notes are comments above it. Each row has a
    second line with the published numbers, if there are any.
    """
    sections = isinstance(table, ResultsTable)
    titles = [escape_latex(column.title) + ARROW[column.better] for column in table.columns]
    first = ["Theory", "Method"] if sections else [""]
    comments = (heading(table), *notes(table))
    lines = [
        *("% " + comment.replace("\n", " ") for comment in comments),
        r"% \usepackage{booktabs,xcolor}",
        rf"\begin{{tabular}}{{{'l' * len(first)}{'r' * len(titles)}}}",
        r"\toprule",
        _line([*first, *titles]),
    ]
    section = None
    for row in table.rows:
        begins = section_title(row) != section
        section = section_title(row)
        if begins:
            lines.append(r"\midrule")
        names = [escape_latex(section) if begins else ""] if sections else []
        ours = [_ours(table.cell(row, column.key), column) for column in table.columns]
        lines.append(_line([*names, escape_latex(row.name), *ours]))
        if table.published_for is not None:
            blank = [""] if sections else []
            below = [_published(table.cell(row, column.key), column) for column in table.columns]
            lines.append(_line([*blank, r"\quad published", *below]))
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


def escape_latex(text: str) -> str:
    """Escape a text so that LaTeX prints it as it is."""
    return "".join(_ESCAPED.get(letter, letter) for letter in text)


def _line(cells: list[str]) -> str:
    return " & ".join(cells) + r" \\"


def _ours(cell: Cell, column: Column) -> str:
    if cell.ours.mean is None:
        return "--"
    text = _minus(format_number(cell.ours.mean, column))
    if cell.mark:
        text = rf"\{MARK[cell.mark]}{{{text}}}"
    half_width = format_half_width(cell, column)
    if half_width:
        text += rf"\,{{\scriptsize {escape_latex(half_width)}}}"
    return text if cell.relevant else rf"\textcolor{{gray}}{{{text}}}"


def _published(cell: Cell, column: Column) -> str:
    if cell.published is None:
        return "--"
    text = _minus(format_number(cell.published.mean, replace(column, digits=PRINTED_DIGITS)))
    if cell.published.std is not None:
        text += rf"\,{{\scriptsize $\pm${cell.published.std:.2f}}}"
    return text if cell.relevant else rf"\textcolor{{gray}}{{{text}}}"


def _minus(text: str) -> str:
    """Replace a leading hyphen by a minus sign."""
    return f"$-${text[1:]}" if text.startswith("-") else text
