"""The paper's tables beside ours, as LaTeX."""

from dataclasses import astuple, replace
from itertools import groupby

from udjfl.paper.formatting import (
    format_half_width,
    format_number,
    heading,
    notes,
    section_title,
)
from udjfl.paper.tables import PRINTED_DIGITS, Cell, Column, Mark, ResultsTable, Table
from udjfl.report.plain_tables import escape_latex

ARROW = {1: r" $\uparrow$", -1: r" $\downarrow$", 0: ""}
MARK = {"best": "textbf", "second": "underline"}


def latex(table: Table) -> str:
    r"""Return a `tabular` with best in \textbf and second best in \underline.

    It needs the packages booktabs and xcolor. The notes are comments above it. Each row has a
    second line with the published numbers, if there are any.
    """
    sections = isinstance(table, ResultsTable)
    titles = [escape_latex(column.title) + ARROW[column.better] for column in table.columns]
    first = ["Theory", "Method"] if sections else [""]
    lines = [
        *("% " + line.replace("\n", " ") for line in (heading(table), *notes(table))),
        r"% \usepackage{booktabs,xcolor}",
        rf"\begin{{tabular}}{{{'l' * len(first)}{'r' * len(titles)}}}",
        r"\toprule",
        _line([*first, *titles]),
    ]
    for section, rows in groupby(table.rows, section_title):
        lines.append(r"\midrule")
        names = [escape_latex(section)] if sections else []
        for row in rows:
            cells = [(table.cell(row, column.key), column) for column in table.columns]
            lines.append(_line([*names, escape_latex(row.name), *(_ours(*of) for of in cells)]))
            names = [""] * len(names)
            if table.published_for is not None:
                lines.append(
                    _line([*names, r"\quad published", *[_published(*of) for of in cells]])
                )
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


def _line(cells: list[str]) -> str:
    return " & ".join(cells) + r" \\"


def _ours(cell: Cell, column: Column) -> str:
    return _number(
        cell, cell.ours.mean, column, format_half_width(cell.ours, column.digits), cell.mark
    )


def _published(cell: Cell, column: Column) -> str:
    mean, std = astuple(cell.published) if cell.published else (None, None)
    std_text = "" if std is None else f"±{std:.{PRINTED_DIGITS}f}"
    return _number(cell, mean, replace(column, digits=PRINTED_DIGITS), std_text)


def _number(
    cell: Cell, mean: float | None, column: Column, spread: str, mark: Mark | None = None
) -> str:
    if mean is None:
        return "--"
    text = format_number(mean, column).replace("-", "$-$")
    if mark:
        text = rf"\{MARK[mark]}{{{text}}}"
    if spread:
        text += rf"\,{{\scriptsize {escape_latex(spread)}}}"
    return text if cell.relevant else rf"\textcolor{{gray}}{{{text}}}"
