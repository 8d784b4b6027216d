"""Tables as text for other programs: CSV, Markdown and LaTeX.

Ids and labels come from outside. In CSV they cannot become a formula of a spreadsheet, in Markdown
and LaTeX they are printed as they are. Characters that steer a terminal are escapes in all three.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from unicodedata import category

from udjfl._ids import printable

FORMULA = re.compile(r"[=+\-@\t\n＝＋－＠]")
NUMBER = re.compile(r"[+-]?\d*\.?\d+(e[+-]?\d+)?")
MARKDOWN = re.compile(r"([\\`*_\[\]<>|~$&])")
_LATEX = {letter: f"\\{letter}" for letter in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "±": r"$\pm$",
    "–": "--",
    "β": r"$\beta$",
    "γ": r"$\gamma$",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
}


def to_csv(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a CSV file; a text that a spreadsheet would compute gets an apostrophe before it."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([_without_formula(cell) for cell in row] for row in (titles, *rows))
    return text.getvalue()


def _without_formula(cell: str) -> str:
    cell = _escape_steering(re.sub("\r\n?", "\n", cell))  # csv does not quote a lone \r
    is_formula = FORMULA.match(cell) and not NUMBER.fullmatch(cell)
    return f"'{cell}" if is_formula else cell


def _escape_steering(text: str) -> str:
    """Write invisible characters as escapes, but for tabs and the ends of lines."""
    # One by one: a text of blanks alone stays one.
    return "".join(c if c in "\t\n" or category(c) == "Zs" else printable(c) for c in text)


def to_markdown(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table; all columns but the first are aligned to the right."""
    rules = ["---", *["---:"] * (len(titles) - 1)]
    escaped = [[_in_markdown(cell) for cell in row] for row in (titles, *rows)]
    lines = [escaped[0], rules, *escaped[1:]]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _in_markdown(cell: str) -> str:
    if NUMBER.fullmatch(cell):
        return cell
    return MARKDOWN.sub(r"\\\1", _escape_steering(" ".join(cell.split())))


def to_latex(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    r"""Return a `tabular`, which needs the package booktabs."""
    lines = [[_in_latex(cell) for cell in row] for row in (titles, *rows)]
    head, *body = (" & ".join(line) + r" \\" for line in lines)
    columns = "l" + "r" * (len(titles) - 1)
    begin = [r"% \usepackage{booktabs}", rf"\begin{{tabular}}{{{columns}}}", r"\toprule", head]
    return "\n".join([*begin, r"\midrule", *body, r"\bottomrule", r"\end{tabular}"]) + "\n"


def markdown_note(text: str) -> str:
    """Return a paragraph for below a Markdown table."""
    return f"\n{_in_markdown(text)}\n"


def latex_note(text: str) -> str:
    """Return a comment for below a LaTeX table: an author copies it into the caption."""
    return f"% {_in_latex(text)}\n"


def _in_latex(cell: str) -> str:
    return escape_latex(_escape_steering(" ".join(cell.split())))


def escape_latex(text: str) -> str:
    """Escape a text so that LaTeX prints it as it is."""
    return "".join(_LATEX.get(letter, letter) for letter in text)
