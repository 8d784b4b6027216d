"""The main table under two protocols, side by side: as the paper says, and as its authors' code.

`make_results_page.py` puts it into RESULTS.md as soon as both tables are stored.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence

from udjfl.paper.claims import judge_table
from udjfl.paper.formatting import AGREES, format_half_width, format_number, section_title
from udjfl.paper.published import Published
from udjfl.paper.tables import Column, ResultsTable, Row
from udjfl.paper.verdicts import Verdict
from udjfl.report.output import markdown_table
from udjfl.statistics import Summary, summarise

SHORT = {"not decidable at this number of seeds": "undecided"}
FOLLOWED = ("global_accuracy", "accuracy_most_uncertain", "accuracy_least_uncertain", "std")
INTRODUCTION = """## The main table under both protocols

The first number of a cell is the published one, the second that of profile `paper` (no image on
both sides of a split), the third that of profile `authors` (shards with copies on both sides,
momentum 0.9, losses while training, the authors' step and uncertainties); ± is half the 95%
interval over seeds. [DEVIATIONS.md](DEVIATIONS.md) has the two protocols choice by choice. The
tables below have tests and notes.
"""
FOLLOW = """### How far the published numbers follow

Ours less published: the mean over the rows that have both, ± half its 95% interval over seeds, and
of FedAvg alone. "Apart" is the median over rows of the absolute differences of means, which a few
rows that hardly train do not move.
"""
CLAIMS = """### The claims under both protocols

As in the section above: paired t-tests over seeds at 5%. The second column says whether the
paper's own means are in the claimed order.
"""


def side_by_side(paper: ResultsTable, authors: ResultsTable, less: str = "") -> str:
    """Return the section on both tables; `less` says what is missing from the second."""
    seeds = ", ".join(
        f"profile `{table.profile}` {len(table.seeds)}, {table.rounds} rounds"
        for table in (paper, authors)
    )
    lines = [INTRODUCTION, f"Seeds: {seeds}. {less}".strip(), ""]
    rows = [[section_title(row), row.name, *_cells(row, paper, authors)] for row in paper.rows]
    titles = [column.title for column in paper.columns]
    lines += markdown_table(["Theory", "Method", *titles], rows, right=len(titles))
    lines += ["", FOLLOW, *_follow(paper, authors), "", CLAIMS, *_claims(paper, authors)]
    return "\n".join(lines) + "\n"


def _cells(row: Row, paper: ResultsTable, authors: ResultsTable) -> list[str]:
    other = authors.find(row.name)
    cells = []
    for column in paper.columns:
        published = paper.published_rows().get(row.name, {}).get(column.key)
        ours = paper.value(row, column.key)
        theirs = None if other is None else authors.value(other, column.key)
        texts = [_show_published(published, column), _show(ours, column), _show(theirs, column)]
        cells.append("<br>".join(texts))
    return cells


def _show_published(value: Published | None, column: Column) -> str:
    if value is None:
        return "–"
    spread = "" if value.std is None else f" (std {value.std:.2f})"
    return f"{format_number(value.mean, column)}{spread}"


def _show(value: Summary | None, column: Column) -> str:
    if value is None or value.mean is None:
        return "–"
    return f"{format_number(value.mean, column)} {format_half_width(value)}".strip()


def _follow(paper: ResultsTable, authors: ResultsTable) -> list[str]:
    lines = []
    for column in paper.columns:
        if column.key not in FOLLOWED:
            continue
        names = [row.name for row in paper.rows if _is_in_all(row.name, column, paper, authors)]
        for title, chosen in ((f"{len(names)} rows", names), ("FedAvg", ["FedAvg"])):
            texts = [column.title, title]
            for table in (paper, authors):
                mean, apart = _differences(table, chosen, column)
                texts += [f"{_signed(mean, column)} {format_half_width(mean)}".strip()]
                texts += [f"{apart:.2f}"]
            lines.append(texts)
    head = ["", "of", "profile `paper`", "apart", "profile `authors`", "apart"]
    return markdown_table(head, lines, right=4)


def _is_in_all(name: str, column: Column, *tables: ResultsTable) -> bool:
    """Tell whether the paper and both tables have a number in a cell, on every seed."""
    for table in tables:
        row = table.find(name)
        if row is None or None in table.value(row, column.key).values:
            return False
    return column.key in tables[0].published_rows().get(name, {})


def _differences(
    table: ResultsTable, names: Sequence[str], column: Column
) -> tuple[Summary, float]:
    """Return ours less published, over seeds, and the median of the rows' absolute differences."""
    cells = [table.cell(row, column.key) for name in names if (row := table.find(name))]
    published = [cell.published.mean for cell in cells if cell.published]
    by_seed = zip(*(cell.ours.values for cell in cells), strict=True)
    means = [
        statistics.mean(
            (value or 0.0) - known for value, known in zip(values, published, strict=True)
        )
        for values in by_seed
    ]
    return summarise(means), statistics.median(abs(cell.difference or 0.0) for cell in cells)


def _signed(value: Summary, column: Column) -> str:
    return "–" if value.mean is None else format_number(value.mean, column, signed=True)


def _claims(paper: ResultsTable, authors: ResultsTable) -> list[str]:
    judged = {table.profile: judge_table(table) for table in (paper, authors)}
    others = {verdict.claim.id: verdict for verdict in judged[authors.profile]}
    rows = [
        [
            verdict.claim.says,
            AGREES[verdict.published_agrees],
            _short(verdict),
            _short(others[verdict.claim.id]),
        ]
        for verdict in judged[paper.profile]
        if verdict.claim.id in others
    ]
    lines = markdown_table(["claim", "published", *(f"profile `{name}`" for name in judged)], rows)
    for name, verdicts in judged.items():
        counted = Counter(_short(verdict) for verdict in verdicts).most_common()
        counts = ", ".join(f"{outcome}: {count}" for outcome, count in counted)
        lines += ["", f"Profile `{name}`, {len(verdicts)} claims: {counts}."]
    return lines


def _short(verdict: Verdict) -> str:
    return SHORT.get(verdict.outcome, verdict.outcome)
