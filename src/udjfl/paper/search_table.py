"""The outcome of a search over parameters: on a terminal, and as Markdown."""

from collections.abc import Sequence
from itertools import groupby

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from udjfl.paper.formatting import ARROW, format_half_width
from udjfl.paper.render import table_markdown, verdicts_view
from udjfl.paper.search_choice import SearchOutcome, find_outcomes
from udjfl.paper.tables import SearchTable
from udjfl.paper.verdicts import Verdict
from udjfl.report.output import markdown_table
from udjfl.statistics import Summary, metric_of
from udjfl.verdicts import MARGIN

EXPLANATION = (
    "Chosen on a fifth of each client's train part, by the mean over seeds of the theory's "
    "measure; tested on test data after training on whole train parts. "
    "± is the 95% interval over seeds."
)
FLOOR = (
    f"Only candidates whose clients have a mean accuracy at most {MARGIN:g} points below FedAvg's "
    "can be chosen: a model that has learned little has a low STD, too. FedAvg is that at the "
    "learning rate that is best for it, for all candidates; their Psi is measured from it."
)


def search_view(table: SearchTable, verdicts: Sequence[Verdict]) -> RenderableType:
    """Return the chosen parameters of each method and their scores, for a terminal."""
    grid = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for title in ("Method", "Chosen", "Rate", "By"):
        grid.add_column(title, justify="right" if title == "Rate" else "left", no_wrap=True)
    for title in ("Held out", "Test", "Global"):
        grid.add_column(title, justify="right")
    for theory, outcomes in groupby(find_outcomes(table), lambda outcome: outcome.range.theory):
        grid.add_row(Text(theory.capitalize(), style="bold italic"))
        measure = f"{metric_of(theory).heading} {ARROW[metric_of(theory).better]}"
        for outcome in outcomes:
            grid.add_row(f"  {outcome.range.title}", *_chosen(outcome), measure, *_scores(outcome))
    notes = Text(f"{EXPLANATION} {FLOOR} Rate: learning rate.", style="dim")
    heading = Text(_heading(table), style="bold")
    return Group(heading, grid, Text(""), notes, *verdicts_view(verdicts))


def search_markdown(table: SearchTable, verdicts: Sequence[Verdict]) -> str:
    """Return the same as Markdown, with all candidates and claims below."""
    titles = ["theory", "method", "searched", "too far below FedAvg", "chosen", "learning rate"]
    titles += ["measure", "held out", "test", "global accuracy"]
    lines = [
        f"### {_heading(table)}",
        "",
        *markdown_table(titles, map(_found_cells, find_outcomes(table)), right=3),
        "",
        f"- {EXPLANATION}",
        f"- {FLOOR}",
        "",
        table_markdown(table, verdicts),
    ]
    return "\n".join(lines)


def _heading(table: SearchTable) -> str:
    run = f"{len(table.seeds)} seeds, {table.rounds} rounds"
    return f"Parameters for {table.data}, profile {table.profile}: {run}"


def _found_cells(outcome: SearchOutcome) -> list[str]:
    searched = outcome.range
    values = f"{searched.parameter}: {', '.join(f'{value:g}' for value in searched.values)}"
    n_left_out = sum(candidate.left_out is not None for candidate in outcome.candidates)
    left_out = f"{n_left_out} of {len(outcome.candidates)}"
    metric = metric_of(searched.theory)
    measure = f"{metric.title} {ARROW[metric.better]}"
    cells = [searched.theory, searched.title, values, left_out]
    return [*cells, *_chosen(outcome), measure, *_scores(outcome)]


def _chosen(outcome: SearchOutcome) -> list[str]:
    """Return the chosen value and its learning rate."""
    if outcome.chosen is None:
        any_left_out = any(candidate.left_out for candidate in outcome.candidates)
        return ["none near FedAvg" if any_left_out else "none finished", "–"]
    return [f"{outcome.range.parameter} = {outcome.chosen.value:g}", f"{outcome.chosen.lr:g}"]


def _scores(outcome: SearchOutcome) -> list[str]:
    """Return the chosen candidate's metric on held-out and test data, and its global accuracy."""
    if outcome.chosen is None or outcome.tested is None:
        return ["–"] * 3
    tested = outcome.tested.values
    summaries = (tested[metric_of(outcome.range.theory).key], tested["global_accuracy"])
    return [_format_score(score) for score in (outcome.chosen.score, *summaries)]


def _format_score(score: Summary) -> str:
    return "–" if score.mean is None else f"{score.mean:.2f} {format_half_width(score)}".strip()
