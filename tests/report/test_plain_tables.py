"""Tables for other programs: what comes from outside is printed, never computed or run."""

from __future__ import annotations

import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from udjfl.report.plain_tables import to_csv, to_latex, to_markdown

TITLES = ["Client", "Score"]


def test_csv_by_hand() -> None:
    assert to_csv(TITLES, [["a, b", "-1.5"], ['say "hi"', "+2e-3"]]) == (
        'Client,Score\n"a, b",-1.5\n"say ""hi""",+2e-3\n'
    )


@pytest.mark.parametrize("text", ["=1+1", "+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "\t=1", "\r=1"])
def test_a_formula_stays_a_text(text: str) -> None:
    ((_, cell),) = list(csv.reader(io.StringIO(to_csv(TITLES, [["a", text]]), newline="")))[1:]
    assert cell == "'" + text.replace("\r", "\n")


@given(st.lists(st.text(alphabet="=+-@,\"'\n ab1.e", max_size=8), min_size=2, max_size=2))
def test_csv_comes_back(row: list[str]) -> None:
    (read,) = list(csv.reader(io.StringIO(to_csv(TITLES, [row]), newline="")))[1:] or [["", ""]]
    assert [cell.removeprefix("'") for cell in read] == [cell.removeprefix("'") for cell in row]


def test_markdown_by_hand() -> None:
    table = to_markdown(TITLES, [["a|b_<script>", "-1.5"], ["x\ny", "[z](u)"]])
    assert table.splitlines() == [
        "| Client | Score |",
        "| --- | ---: |",
        r"| a\|b\_\<script\> | -1.5 |",
        r"| x y | \[z\](u) |",
    ]


def test_latex_by_hand() -> None:
    table = to_latex(TITLES, [["a&b_1", r"\input{x}"], ["50%\nof", "±1"]])
    assert table.splitlines()[4:] == [
        r"\midrule",
        r"a\&b\_1 & \textbackslash{}input\{x\} \\",
        r"50\% of & $\pm$1 \\",
        r"\bottomrule",
        r"\end{tabular}",
    ]
