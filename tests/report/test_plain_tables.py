"""Tables for other programs: what comes from outside is printed, never computed or run."""

from __future__ import annotations

import csv
import io
import re
import unicodedata
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from udjfl.report.plain_tables import to_csv, to_latex, to_markdown

TITLES = ["Client", "Score"]


def test_csv_by_hand() -> None:
    assert to_csv(TITLES, [["a, b", "-1.5"], ['say "hi"', "+2e-3"]]) == (
        'Client,Score\n"a, b",-1.5\n"say ""hi""",+2e-3\n'
    )


@pytest.mark.parametrize(
    "text", ["=1+1", "+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "\t=1", "\r=1", "＝1+1"]
)
def test_a_formula_stays_a_text(text: str) -> None:
    ((_, cell),) = list(csv.reader(io.StringIO(to_csv(TITLES, [["a", text]]), newline="")))[1:]
    assert cell == "'" + text.replace("\r", "\n")


@settings(deadline=None)
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


@pytest.mark.parametrize("write", [to_csv, to_markdown, to_latex])
@settings(deadline=None)
@given(text=st.text(max_size=20))
def test_no_character_that_steers_a_terminal_is_left(
    write: Callable[[list[str], list[list[str]]], str], text: str
) -> None:
    table = write(TITLES, [["a", text + "\x1b[31m\x9b\u202e\x07"]])
    left = {c for c in table if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")}
    assert left <= {"\n", "\t"}
    assert "x1b" in table


LATEX_WORD = re.compile(r"\\([a-zA-Z]+|.)")
ALLOWED = "textbackslash textasciitilde textasciicircum textless textgreater pm beta gamma uparrow"


@settings(deadline=None)
@given(st.text(alphabet="\\{}%$#&_^~<>ab\n", max_size=12))
def test_latex_of_any_text_has_no_command_of_its_own(text: str) -> None:
    (line,) = to_latex(["A"], [[text]]).splitlines()[5:-2] or [""]
    cell = line.removesuffix(r" \\")
    words = {match[1] for match in LATEX_WORD.finditer(cell)}
    assert words <= {*ALLOWED.split(), *"&%$#_{}"}
    # Outside of these every special character is gone: nothing begins a group or a comment.
    assert not set("%#&_^~") & set(re.sub(r"\\.", "", cell))
    plain = re.sub(r"\\[{}]", "", cell)
    assert plain.count("{") == plain.count("}") == plain.count("{}")
