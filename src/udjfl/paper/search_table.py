"""What a search over parameters found: on a terminal, and as Markdown."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from udjfl.paper.formatting import ARROW
from udjfl.paper.search import Candidate, Found, Search
from udjfl.statistics import Summary, metric_of

EXPLANATION = (
    "Chosen on a fifth of each client's train part, by the mean over seeds of the theory's measure; tested on test data "
    "after training on whole train parts. ± is the 95% interval over seeds."
)
CAUTION = "STD, Psi and r can be good in a model that has learned little: see its global accuracy on test data, in the last column."
NARROW = {"global_accuracy": "Global", "std": "STD", "psi": "Psi", "pearson_r": "r"}


def search_view(found: Search) -> RenderableType:
    """What was chosen for each method, and how it does."""
    grid = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for title, justify in (
        ("Method", "left"),
        ("Chosen", "left"),
        ("Rate", "right"),
        ("By", "left"),
    ):
        grid.add_column(title, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    for title in ("Held out", "Test", "Global"):
        grid.add_column(title, justify="right")
    section = ""
    for one in found.found:
        if one.range.theory != section:
            section = one.range.theory
            grid.add_row(Text(section.capitalize(), style="bold italic"))
        metric = metric_of(section)
        chosen = [_chosen(one), "–" if one.chosen is None else f"{one.chosen.lr:g}"]
        grid.add_row(
            f"  {one.range.title}",
            *chosen,
            f"{NARROW[metric.key]} {ARROW[metric.better]}",
            *_scores(one),
        )
    explained = Text(f"{EXPLANATION} {CAUTION} Rate: learning rate.", style="dim")
    return Group(Text(_heading(found), style="bold"), grid, Text(""), explained)


def search_markdown(found: Search) -> str:
    """The same, with every candidate below; of each method's the chosen one in bold."""
    lines = [f"### {_heading(found)}", ""]
    titles = ["theory", "method", "searched", "chosen", "learning rate", "measure"]
    lines += [
        f"| {' | '.join([*titles, 'held out', 'test', 'global accuracy'])} |",
        f"|{'---|' * 6}{'--:|' * 3}",
    ]
    for one in found.found:
        values = ", ".join(f"{value:g}" for value in one.range.values)
        rate = "–" if one.chosen is None else f"{one.chosen.lr:g}"
        about = [
            one.range.theory,
            one.range.title,
            f"{one.range.parameter}: {values}",
            _chosen(one),
            rate,
            _measure(one),
        ]
        lines.append(f"| {' | '.join([*about, *_scores(one)])} |")
    lines += [
        "",
        f"- {EXPLANATION}",
        f"- {CAUTION}",
        "",
        "### Everything tried, on what was held out",
        "",
    ]
    lines += [
        "| theory | method | learning rate | value | measure | held out |",
        "|---|---|--:|---|---|--:|",
    ]
    for one in found.found:
        lines += [f"| {' | '.join(_tried(one, candidate))} |" for candidate in one.tried]
    return "\n".join(lines) + "\n"


def _heading(found: Search) -> str:
    return f"Parameters for {found.data}, profile {found.profile}: {len(found.seeds)} seeds, {found.rounds} rounds"


def _chosen(one: Found) -> str:
    return (
        "none finished" if one.chosen is None else f"{one.range.parameter} = {one.chosen.value:g}"
    )


def _scores(one: Found) -> list[str]:
    """Of what was chosen: its measure on what was held out and on test data, and the global accuracy of the latter."""
    score = "–" if one.chosen is None else _shown(one.chosen.score)
    keys = (metric_of(one.range.theory).key, "global_accuracy")
    return [
        score,
        *("–" if one.tested is None else _shown(one.tested.metrics[key]) for key in keys),
    ]


def _tried(one: Found, candidate: Candidate) -> list[str]:
    score = _shown(candidate.score)
    cells = [
        one.range.theory,
        one.range.title,
        f"{candidate.lr:g}",
        f"{one.range.parameter} = {candidate.value:g}",
    ]
    return [*cells, _measure(one), f"**{score}**" if candidate == one.chosen else score]


def _measure(one: Found) -> str:
    metric = metric_of(one.range.theory)
    return f"{metric.title} {ARROW[metric.better]}"


def _shown(score: Summary) -> str:
    if score.mean is None:
        return "–"
    half = "" if score.ci95 is None else f" ±{(score.ci95[1] - score.ci95[0]) / 2:.2f}"
    return f"{score.mean:.2f}{half}"
