"""The outcome of a search over parameters: on a terminal, and as Markdown."""

from itertools import groupby

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from udjfl.paper.formatting import ARROW, format_half_width
from udjfl.paper.search import Candidate, Search, SearchOutcome
from udjfl.report.output import markdown_table
from udjfl.statistics import Summary, metric_of

EXPLANATION = (
    "Chosen on a fifth of each client's train part, by the mean over seeds of the theory's "
    "measure; tested on test data after training on whole train parts. "
    "± is the 95% interval over seeds."
)
CAUTION = (
    "STD, Psi and r can be good in a model that has learned little: see its global accuracy on "
    "test data, in the last column."
)


def search_view(search: Search) -> RenderableType:
    """Return the chosen parameters of each method and their scores, for a terminal."""
    grid = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for title in ("Method", "Chosen", "Rate", "By"):
        grid.add_column(title, justify="right" if title == "Rate" else "left", no_wrap=True)
    for title in ("Held out", "Test", "Global"):
        grid.add_column(title, justify="right")
    for theory, outcomes in groupby(search.outcomes, lambda outcome: outcome.range.theory):
        grid.add_row(Text(theory.capitalize(), style="bold italic"))
        measure = f"{metric_of(theory).heading} {ARROW[metric_of(theory).better]}"
        for outcome in outcomes:
            grid.add_row(f"  {outcome.range.title}", *_chosen(outcome), measure, *_scores(outcome))
    notes = Text(f"{EXPLANATION} {CAUTION} Rate: learning rate.", style="dim")
    return Group(Text(_heading(search), style="bold"), grid, Text(""), notes)


def search_markdown(search: Search) -> str:
    """Return the same as Markdown, with all candidates below; the chosen ones are bold."""
    names = ["theory", "method"]
    found = [*names, "searched", "chosen", "learning rate", "measure"]
    found += ["held out", "test", "global accuracy"]
    lines = [
        f"### {_heading(search)}",
        "",
        *markdown_table(found, map(_found_cells, search.outcomes), right=3),
        "",
        f"- {EXPLANATION}",
        f"- {CAUTION}",
        "",
        "### Everything tried, on what was held out",
        "",
        *markdown_table(
            [*names, "learning rate", "value", "measure", "held out"],
            (
                _tried_cells(outcome, one)
                for outcome in search.outcomes
                for one in outcome.candidates
            ),
            right=1,
        ),
    ]
    return "\n".join(lines) + "\n"


def _heading(search: Search) -> str:
    run = f"{len(search.seeds)} seeds, {search.rounds} rounds"
    return f"Parameters for {search.data}, profile {search.profile}: {run}"


def _found_cells(outcome: SearchOutcome) -> list[str]:
    searched = outcome.range
    values = f"{searched.parameter}: {', '.join(f'{value:g}' for value in searched.values)}"
    measure = _measure(searched.theory)
    return [searched.theory, searched.title, values, *_chosen(outcome), measure, *_scores(outcome)]


def _chosen(outcome: SearchOutcome) -> list[str]:
    """Return the chosen value and its learning rate."""
    if outcome.chosen is None:
        return ["none finished", "–"]
    return [f"{outcome.range.parameter} = {outcome.chosen.value:g}", f"{outcome.chosen.lr:g}"]


def _scores(outcome: SearchOutcome) -> list[str]:
    """Return the chosen candidate's metric on held-out and test data, and its global accuracy."""
    if outcome.chosen is None or outcome.tested is None:
        return ["–"] * 3
    tested = outcome.tested.metrics
    summaries = (tested[metric_of(outcome.range.theory).key], tested["global_accuracy"])
    return [_format_score(score) for score in (outcome.chosen.score, *summaries)]


def _tried_cells(outcome: SearchOutcome, candidate: Candidate) -> list[str]:
    searched, score = outcome.range, _format_score(candidate.score)
    return [
        searched.theory,
        searched.title,
        f"{candidate.lr:g}",
        f"{searched.parameter} = {candidate.value:g}",
        _measure(searched.theory),
        f"**{score}**" if candidate == outcome.chosen else score,
    ]


def _measure(theory: str) -> str:
    return f"{metric_of(theory).title} {ARROW[metric_of(theory).better]}"


def _format_score(score: Summary) -> str:
    return "–" if score.mean is None else f"{score.mean:.2f} {format_half_width(score)}".strip()
