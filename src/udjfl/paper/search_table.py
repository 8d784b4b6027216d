"""The outcome of a search over parameters: on a terminal, and as Markdown."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from udjfl.paper.formatting import ARROW
from udjfl.paper.search import Candidate, Search, SearchOutcome
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
    section = ""
    for outcome in search.outcomes:
        if outcome.range.theory != section:
            section = outcome.range.theory
            grid.add_row(Text(section.capitalize(), style="bold italic"))
        metric = metric_of(section)
        measure = f"{metric.heading} {ARROW[metric.better]}"
        grid.add_row(f"  {outcome.range.title}", *_chosen(outcome), measure, *_scores(outcome))
    notes = Text(f"{EXPLANATION} {CAUTION} Rate: learning rate.", style="dim")
    return Group(Text(_heading(search), style="bold"), grid, Text(""), notes)


def search_markdown(search: Search) -> str:
    """Return the same as Markdown, with all candidates below; the chosen ones are bold."""
    lines = [
        f"### {_heading(search)}",
        "",
        "| theory | method | searched | chosen | learning rate | measure "
        "| held out | test | global accuracy |",
        f"|{'---|' * 6}{'--:|' * 3}",
    ]
    for outcome in search.outcomes:
        searched = outcome.range
        values = ", ".join(f"{value:g}" for value in searched.values)
        names = [searched.theory, searched.title, f"{searched.parameter}: {values}"]
        cells = [*names, *_chosen(outcome), _measure(searched.theory), *_scores(outcome)]
        lines.append(f"| {' | '.join(cells)} |")
    lines += [
        "",
        f"- {EXPLANATION}",
        f"- {CAUTION}",
        "",
        "### Everything tried, on what was held out",
        "",
        "| theory | method | learning rate | value | measure | held out |",
        "|---|---|--:|---|---|--:|",
    ]
    for outcome in search.outcomes:
        for candidate in outcome.candidates:
            lines.append(f"| {' | '.join(_candidate_cells(outcome, candidate))} |")
    return "\n".join(lines) + "\n"


def _heading(search: Search) -> str:
    run = f"{len(search.seeds)} seeds, {search.rounds} rounds"
    return f"Parameters for {search.data}, profile {search.profile}: {run}"


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


def _candidate_cells(outcome: SearchOutcome, candidate: Candidate) -> list[str]:
    searched = outcome.range
    score = _format_score(candidate.score)
    return [
        searched.theory,
        searched.title,
        f"{candidate.lr:g}",
        f"{searched.parameter} = {candidate.value:g}",
        _measure(searched.theory),
        f"**{score}**" if candidate == outcome.chosen else score,
    ]


def _measure(theory: str) -> str:
    metric = metric_of(theory)
    return f"{metric.title} {ARROW[metric.better]}"


def _format_score(score: Summary) -> str:
    if score.mean is None:
        return "–"
    half_width = "" if score.ci95 is None else f" ±{(score.ci95[1] - score.ci95[0]) / 2:.2f}"
    return f"{score.mean:.2f}{half_width}"
