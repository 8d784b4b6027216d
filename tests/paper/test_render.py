"""The paper's tables beside ours in every format."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console, RenderableType

from udjfl.paper.claims import judge_table
from udjfl.paper.latex import latex
from udjfl.paper.published import published_distributions, published_results, published_solo
from udjfl.paper.render import csv_rows, seed_rows, table_markdown, table_view
from udjfl.paper.tables import (
    DistributionsTable,
    ResultsTable,
    Row,
    SoloTable,
    Table,
)
from udjfl.report.plain_tables import escape_latex
from udjfl.statistics import summarise

SHIFTS = (-0.1, 0.0, 0.4)  # ours is the published number and a little, 0.1 on average
COMMON: dict[str, Any] = {
    "profile": "paper",
    "seeds": (3, 5, 8),
    "setting": {"step": "50% of a_b & more"},
}


def like(numbers: Any) -> Any:
    return {
        key: summarise([number.mean + shift for shift in SHIFTS]) for key, number in numbers.items()
    }


def results_row(theory: Any, name: str, method: str, values: Any) -> Row:
    return Row(theory=theory, name=name, subtitle=method, details={"method": method}, values=values)


def results(
    data: str = "mine", published_for: str | None = "dirty-mnist", same_data: bool = False
) -> ResultsTable:
    rows = [
        results_row(theory, label, f"our_{label}", like(numbers))
        for (theory, label), numbers in published_results("dirty-mnist").items()
    ]
    failed = replace(
        results_row("desert", "CFFL", "cffl", {}),
        failed={3: "it blew up", 5: "it blew up"},
        note="odd",
    )
    rows = [failed if row.name == "CFFL" else row for row in rows]
    return ResultsTable(
        data=data,
        rows=tuple(rows),
        rounds=500,
        published_for=published_for,
        same_data=same_data,
        **COMMON,
    )


def solo() -> SoloTable:
    rows = tuple(
        Row(
            name=f"client {client}",
            subtitle=f"{20 - client} clean, {client} ambiguous",
            values=like(numbers),
        )
        for client, numbers in published_solo("cure-tsr").items()
    )
    return SoloTable(
        data="signs", rows=rows, rounds=400, published_for="cure-tsr", same_data=False, **COMMON
    )


def distributions() -> DistributionsTable:
    rows = tuple(
        Row(name=setting, values=like(numbers))
        for setting, numbers in published_distributions("dirty-mnist").items()
    )
    return DistributionsTable(
        data="Dirty-MNIST",
        rows=rows,
        rounds=100,
        published_for="dirty-mnist",
        same_data=True,
        **COMMON,
    )


def shown(view: RenderableType, width: int = 120, **console: Any) -> str:
    file = io.StringIO()
    Console(file=file, width=width, **console).print(view)
    return file.getvalue()


def view_of(table: Table) -> RenderableType:
    return table_view(table, judge_table(table))


EVERY = pytest.mark.parametrize(
    "table", [results(), solo(), distributions()], ids=lambda table: table.kind
)


@EVERY
@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_terminal_shows_all_numbers_whole(table: Table, width: int) -> None:
    text = shown(view_of(table), width)
    assert "…" not in text
    assert all(row.name.partition(":")[0] in text for row in table.rows)
    # Shifts of -0.1, 0, 0.4 have s = 0.2646: half the interval is 4.303 * 0.2646 / sqrt(3) = 0.657.
    assert "±0.66" in text
    assert "(+0.10)" in text


def test_ours_stands_above_the_published_number() -> None:
    lines = shown(view_of(results())).splitlines()
    index = next(index for index, line in enumerate(lines) if line.startswith("  FedAvg"))
    assert lines[index].split()[1:3] == ["93.93", "±0.66"]  # 93.83 + 0.1
    assert lines[index + 1].split()[:3] == ["published", "93.83", "(+0.10)"]


def test_on_a_narrow_terminal_numbers_stand_one_below_the_other() -> None:
    lines = shown(view_of(results()), 80).splitlines()
    index = next(index for index, line in enumerate(lines) if line.startswith("  FedAvg"))
    below = [
        line.split()[: 2 if line.startswith("  ") and line[2] != " " else 1]
        for line in lines[index : index + 4]
    ]
    assert below == [["FedAvg", "93.93"], ["±0.66"], ["published", "93.83"], ["(+0.10)"]]
    assert any(line.startswith("  UDJ-FL: β=per-client, γ=-1 ") for line in lines)


def test_on_a_very_narrow_terminal_names_stand_above_their_numbers() -> None:
    lines = shown(view_of(results()), 60).splitlines()
    index = lines.index("UDJ-FL: β=per-client, γ=-1")
    # The published numbers are 83.11 and 58.60; ours are 0.1 above.
    assert [line.split()[:2] for line in lines[index + 1 : index + 5]] == [
        ["83.21", "58.70"],
        ["±0.66", "±0.66"],
        ["83.11", "58.60"],
        ["(+0.10)", "(+0.10)"],
    ]
    assert all(len(line) <= 60 for line in lines)
    solo_lines = shown(view_of(solo()), 50).splitlines()
    assert "client 5 (15 clean, 5 ambiguous)" in solo_lines


def test_marks_survive_a_pipe_and_are_styled_on_a_terminal() -> None:
    assert "94.36¹ ±0.66" in shown(view_of(results()))
    assert "93.54² ±0.66" in shown(view_of(results()))
    styled = shown(view_of(results()), force_terminal=True, color_system="standard")
    assert "\x1b[1m94.36¹" in styled
    assert "\x1b[4m93.54²" in styled


def test_other_data_are_named() -> None:
    text = " ".join(shown(view_of(solo())).split())
    assert (
        "Clients training alone on signs, beside those published for CURE-TSR (other data)" in text
    )
    assert "measured on CURE-TSR, not on signs" in text
    assert "400 epochs" in text
    same = " ".join(shown(view_of(distributions())).split())
    assert "other data" not in same
    assert "compare orderings" not in same


def test_without_published_numbers_none_are_shown() -> None:
    text = shown(view_of(results("heart", published_for=None)))
    assert "has no numbers for this data" in text
    assert "  published " not in text
    assert "own means agree" not in text
    assert "<br>93.83" not in table_markdown(results("heart", published_for=None), [])
    assert "published" not in re.sub(r"(?m)^%.*$", "", latex(results("heart", published_for=None)))


def test_failures_notes_and_the_setting_are_shown() -> None:
    text = shown(view_of(results()))
    assert "CFFL failed on seeds 3, 5: it blew up" in text
    assert "CFFL: odd" in text
    assert "Profile paper, 500 rounds, seeds 3, 5, 8; step: 50% of a_b & more." in text


def test_verdicts_are_listed_with_numbers() -> None:
    text = " ".join(shown(view_of(distributions())).split())
    assert (
        "holds In the dirty setting the global model does worse than in both others. [Appendix A]"
        in text
    )
    assert (
        "Global accuracy: even > dirty: +4.19 [+4.19, +4.19], always the same, n = 3" in text
    )  # 87.74 - 83.55
    assert "even: client 2 > global accuracy: +3.76" in text
    assert "not tested" in shown(view_of(results()))


def test_one_seed_has_no_interval() -> None:
    row = results_row("none", "FedAvg", "fedavg", {"std": summarise([4.0])})
    common = COMMON | {"seeds": (0,)}
    table = ResultsTable(
        data="mine", rows=(row,), rounds=1, published_for=None, same_data=False, **common
    )
    text = shown(view_of(table))
    assert "one seed, so without an interval" in text
    assert "±" not in text
    assert "±" not in table_markdown(table, [])


def cells(line: str) -> int:
    return len(re.findall(r"(?<!\\)\|", line)) - 1


@EVERY
def test_markdown_tables_are_regular(table: Table) -> None:
    verdicts = judge_table(table)
    text = table_markdown(table, verdicts)
    numbers, claims = (part for part in re.findall(r"(?:^\|.*\n)+", text, re.M))
    lead = 2 if table.kind == "results" else 1
    assert {cells(line) for line in numbers.splitlines()} == {len(table.columns) + lead}
    assert {cells(line) for line in claims.splitlines()} == {5}
    assert "|  |" not in numbers.splitlines()[0]
    assert len(numbers.splitlines()) == len(table.rows) + 2
    assert len(claims.splitlines()) == len(verdicts) + 2


def test_markdown_shows_marks_and_the_published_deviation() -> None:
    text = table_markdown(results(), [])
    assert "| **94.36** ±0.66<br>94.26 ±1.40 (+0.10) |" in text
    assert "<ins>93.54</ins> ±0.66" in text
    assert "UDJ-FL: beta=1, gamma=1<br>our\\_UDJ-FL" in text
    assert "What the paper says" not in text


@EVERY
def test_csv_can_be_read_back(table: Table) -> None:
    header, lines = csv_rows(table)
    file = io.StringIO()
    csv.writer(file).writerows([header, *lines])
    back = list(csv.DictReader(io.StringIO(file.getvalue())))
    assert len(back) == len(table.rows) * len(table.columns)
    expected = [(row, column.key) for row in table.rows for column in table.columns]
    for line, (row, key) in zip(back, expected, strict=True):
        cell = table.cell(row, key)
        assert (line["row"], line["metric"], line["mark"]) == (row.name, key, cell.mark or "")
        assert (float(line["mean"]) if line["mean"] else None) == cell.ours.mean
        ends = (float(line["low"]), float(line["high"])) if line["low"] else None
        assert ends == cell.ours.ci95
        assert int(line["seeds"]) == cell.ours.n
        assert (float(line["published"]) if line["published"] else None) == (
            cell.published and cell.published.mean
        )
        assert (float(line["difference"]) if line["difference"] else None) == cell.difference


def test_values_of_seeds_can_be_read_back() -> None:
    table = results()
    header, lines = seed_rows(table)
    assert header == ["theory", "row", "method", "seed", "metric", "value"]
    assert len(lines) == 20 * 6 * 3
    assert lines[:3] == [
        ["none", "FedAvg", "our_FedAvg", str(seed), "global_accuracy", repr(93.83 + shift)]
        for seed, shift in zip((3, 5, 8), SHIFTS, strict=True)
    ]
    assert {line[-1] for line in lines if line[1] == "CFFL"} == {""}


@EVERY
def test_latex_is_a_regular_tabular(table: Table) -> None:
    code = [line for line in latex(table).splitlines() if not line.startswith("%")]
    text = re.sub(r"\\[{}&]", "", "\n".join(code))
    depth = 0
    for letter in text:
        depth += {"{": 1, "}": -1}.get(letter, 0)
        assert depth >= 0
    assert depth == 0
    assert text.count("$") % 2 == 0
    lead = 2 if table.kind == "results" else 1
    assert code[0] == rf"\begin{{tabular}}{{{'l' * lead}{'r' * len(table.columns)}}}"
    assert code[-1] == r"\end{tabular}"
    rows = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert {line.count("&") for line in rows} == {len(table.columns) + lead - 1}
    assert len(rows) == 1 + 2 * len(table.rows)
    assert [line for line in code[1:-1] if not line.endswith(r"\\")].count(r"\toprule") == 1
    assert code.count(r"\midrule") == (5 if table.kind == "results" else 1)
    assert text.isascii()


def test_latex_shows_marks_and_greys_irrelevant_numbers() -> None:
    text = latex(results())
    assert r"\textbf{94.36}\,{\scriptsize $\pm$0.66}" in text
    assert r"\underline{93.54}" in text
    assert r"\textcolor{gray}{$-$4.88\,{\scriptsize $\pm$0.66}}" in text  # Psi of a utilitarian row


def test_latex_escapes_special_characters() -> None:
    assert escape_latex("a_b & 50% #1 {x} ~^\\") == (
        r"a\_b \& 50\% \#1 \{x\} \textasciitilde{}\textasciicircum{}\textbackslash{}"
    )
