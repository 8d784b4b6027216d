"""Methods ranked for each theory; those that do not qualify stand below, with the reason."""

from __future__ import annotations

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from udjfl.metrics import Metric
from udjfl.report.cells import (
    doubt,
    footer,
    format_number,
    heading,
    interval_text,
    served,
    with_arrow,
)
from udjfl.report.judged_metrics import for_score
from udjfl.report.output import pack_columns, stack, text_width
from udjfl.simulation.comparison import Comparison
from udjfl.simulation.method_summary import MethodSummary
from udjfl.statistics import THEORY_METRIC, RankedMethod, metric_of, rank_methods

RANKS = (
    "• serves this theory. Ranks go by the mean; where intervals overlap, the order means nothing."
)
GAP = 2


def ranking_parts(comparison: Comparison, width: int) -> list[RenderableType]:
    """Show a ranking for each theory if there is something to rank, and who is left out."""
    if len(comparison.rows) < 3:
        return []
    parts: list[RenderableType] = [
        Text(""),
        heading("Ranked for each theory by its metric: mean and 95% interval"),
    ]
    if len(comparison.left_out) < len(comparison.rows):
        parts += [_tables(comparison, width), footer(RANKS)]
    if comparison.left_out:
        line = footer("─" * min(width, len(RANKS)))
        parts += [line, heading("Not ranked")]
        parts += [
            Text.assemble(_name(comparison.rows[index]), (f": {reason}", "dim"))
            for index, reason in comparison.left_out.items()
        ]
    return parts


def _tables(comparison: Comparison, width: int) -> RenderableType:
    """Show a column for each theory, best first, two lines to a method."""
    summaries = [row.metrics for row in comparison.rows]
    columns = [
        [
            Text(f"{theory.capitalize()}\n{with_arrow(_metric(theory, comparison))}"),
            *(
                _cell(theory, ranked, comparison)
                for ranked in rank_methods(
                    theory, summaries, comparison.left_out, comparison.score.better
                )
                if ranked.reason is None
            ),
        ]
        for theory in THEORY_METRIC
    ]
    tables = []
    for block in pack_columns([max(map(text_width, cells)) + GAP for cells in columns], width):
        table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0))
        for column in block:
            table.add_column(columns[column][0])
        for cells in zip(*(columns[column][1:] for column in block), strict=True):
            table.add_row(*cells)
        tables.append(table)
    return stack(tables)


def _metric(theory: str, comparison: Comparison) -> Metric:
    return for_score(metric_of(theory), comparison.score)


def _name(row: MethodSummary) -> str:
    parts = (row.method.short, row.method.changed_text, served(row))
    name = " ".join(part for part in parts if part)
    return f"{name} ({doubt(row)})" if doubt(row) else name


def _cell(theory: str, ranked: RankedMethod, comparison: Comparison) -> Text:
    row, value, seeds = comparison.rows[ranked.index], ranked.value, len(comparison.seeds)
    serves, metric = theory in row.theories, _metric(theory, comparison)
    rank = "–" if ranked.rank is None else str(ranked.rank)
    shown = "no value"
    if value.mean is not None:
        interval = interval_text(metric, value)
        interval = f"({interval})" if " to " in interval else interval
        shown = f"{format_number(value.mean, metric)} {interval}".strip()
    if 0 < value.n < seeds:
        shown += f" ({value.n} of {seeds} seeds)"
    first = f"{rank:>2} {'• ' if serves else ''}{_name(row)}"
    return Text.assemble((first, "bold" if serves else ""), (f"\n   {shown}", "dim"))
