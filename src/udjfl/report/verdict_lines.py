"""Answers to "Was the theory delivered?", a verdict for each method and theory."""

from __future__ import annotations

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from udjfl.report.cells import doubt, footer, heading
from udjfl.report.output import NARROW
from udjfl.simulation.comparison import Comparison
from udjfl.simulation.method_summary import MethodSummary
from udjfl.statistics import FEWEST_SEEDS
from udjfl.verdicts import Verdict

NO_VERDICT = "no verdict: nobody learned, so there is nothing to distribute"
COLOURS = {
    "kept": "green",
    "kept at a price": "yellow",
    "over budget": "red",
    "levelled down": "red",
    "opposite": "red",
    "at its ceiling": "yellow",
    "not decided": "yellow",
}


def verdict_parts(comparison: Comparison, width: int) -> list[RenderableType]:
    """Show a verdict per line, beside the method or, if there is little room, below it."""
    lines = [
        (_label(row, verdict), _sentence(verdict))
        for row, verdicts in zip(comparison.rows, comparison.verdicts, strict=True)
        for verdict in verdicts
    ]
    if comparison.warning is not None:
        return [Text(""), heading("Was the theory delivered?"), Text(f"{NO_VERDICT}.")]
    if not lines:
        return []
    parts: list[RenderableType] = [Text(""), heading("Was the theory delivered?")]
    if width < NARROW:
        for label, sentence in lines:
            parts += [label, Padding(sentence, (0, 0, 0, 2), expand=False)]
    else:
        table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
        for label, sentence in lines:
            table.add_row(label, sentence)
        parts.append(table)
    return [*parts, footer(_explanation(comparison, len(lines)))]


def _label(row: MethodSummary, verdict: Verdict) -> Text:
    """Return the method, and the theory unless the method's name says it."""
    label = row.label
    if verdict.theory not in label.lower():
        label += f", {verdict.theory}"
    return Text(f"{label} ({doubt(row)})" if doubt(row) else label)


def _sentence(verdict: Verdict) -> Text:
    text = Text(verdict.sentence)
    text.stylize(COLOURS[verdict.kind], 0, len(verdict.kind))
    return text


def _explanation(comparison: Comparison, n_tests: int) -> str:
    score = comparison.score
    theories = {verdict.theory for row in comparison.verdicts for verdict in row}
    gap = (
        f"Gap: {score.title} of the least uncertain clients minus that of the most uncertain. "
        if "desert" in theories
        else ""
    )
    own = any(row.budget is not None for row in comparison.rows) and not comparison.margin_for_all
    unless = ", unless a method has its own" if own else ""
    tests = "one test" if n_tests == 1 else f"{n_tests} tests (Holm)"
    lower = "" if score.better > 0 else f"; a lower {score.title} is a gain"
    return (
        f"Gains are against FedAvg, in {score.gain_basis}{lower}. {gap}Budget: "
        f"{score.say_gain(f'{comparison.margin:g}')} of the clients' mean "
        f"{score.title}{unless}. p: paired t-tests over seeds, corrected for the {tests} "
        f"here; intervals are not corrected. Fewer than {FEWEST_SEEDS} seeds decide nothing; how "
        "many would decide: at 80% power, if the difference and its spread stay as they are."
    )
