"""A tuned point on a terminal: the choice, its neighbours, what it cost, and its test."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from udjfl.report.cells import footer, heading
from udjfl.report.comparison_table import comparison_view
from udjfl.report.output import FitWidth, make_blocks
from udjfl.search.scoring import Score
from udjfl.search.tune import Choice, Tuned

MEASURES = {
    "rawls": "Psi",
    "egalitarian": "STD, less",
    "utilitarian": "Shared",
    "desert": "Slope, steeper",
}
HELD_OUT = (
    "On a fifth of each client's train part, against FedAvg: the theory's measure (higher is "
    "better) ± its standard error over seeds, the clients whom it should benefit, and the mean of "
    "all clients, in points."
)
NOT_CLEAR = (
    "The default stays: the best point was not better by more than one standard error, seed by "
    "seed."
)


def tune_view(tuned: Tuned) -> RenderableType:
    """Lay out a tuned point and its test."""
    return Group(*_choice_parts(tuned.choice), Text(""), _test_view(tuned))


def _choice_parts(choice: Choice) -> list[RenderableType]:
    chosen, default = choice.chosen, choice.default
    kept = chosen.candidate.name in {d.candidate.name for d in _defaults(choice)}
    rows = [("chosen", chosen), *(("default", each) for each in _defaults(choice))]
    rows += [("neighbour", each) for each in choice.neighbours]
    limits = f"a budget of {choice.limits.budget:g} points"
    floors = ", ".join(f"{client} {floor:g}%" for client, floor in choice.limits.floors.items())
    parts: list[RenderableType] = [
        heading(f"Chosen for the {choice.theory} theory: {chosen.candidate.method.label}"),
        Text(f"within {limits}" + (f" and floors of {floors}" if floors else "")),
        Text(""),
        _scores_view(choice.theory, rows),
        footer(HELD_OUT),
    ]
    if kept and chosen.candidate.name != choice.rungs[-1].scores[0].candidate.name:
        parts.append(footer(NOT_CLEAR))
    if default.broken:
        broken = ", ".join(f"{name} by {value:.1f}" for name, value in default.broken.items())
        parts.append(footer(f"! {default.candidate.method.label} breaks a limit: {broken}."))
    return [*parts, Text(""), heading("The search"), _rungs_view(choice), footer(_cost(choice))]


def _defaults(choice: Choice) -> list[Score]:
    """Return the defaults as the last rung has them, the method's own first."""
    own = choice.default.candidate.name
    others = [
        each
        for each in choice.rungs[-1].scores
        if each.candidate.name in choice.default_names and each.candidate.name != own
    ]
    return [choice.default, *others]


def _scores_view(theory: str, rows: Sequence[tuple[str, Score]]) -> RenderableType:
    headings = [Text(title) for title in (MEASURES[theory], "±", "Benefit", "Mean", "Shared")]
    names = [Text(f"{role}: {each.candidate.method.label}") for role, each in rows]
    cells = [[Text(cell) for cell in _cells(each)] for _, each in rows]
    return FitWidth(lambda width: make_blocks(width, "Point", headings, names, cells))


def _cells(each: Score) -> list[str]:
    if each.failed:
        return ["failed", "", "", "", ""]
    mark = "!" if each.broken else ""
    return [
        f"{each.value:+.2f}",
        "–" if each.error is None else f"{each.error:.2f}",
        f"{each.gain:+.2f}",
        f"{mark}{each.mean:+.2f}",
        "–" if each.shared is None else f"{each.shared:+.2f}",
    ]


def _rungs_view(choice: Choice) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("Rounds", justify="right")
    table.add_column("Points", justify="right")
    table.add_column("Best within the limits")
    for rung in choice.rungs:
        best = rung.scores[0]
        label = best.candidate.method.label if best.violation == 0 else "none"
        table.add_row(str(rung.rounds), str(len(rung.scores)), label)
    return table


def _cost(choice: Choice) -> str:
    return (
        f"Cost: {choice.cost:.1f} trainings for each seed, counted in whole ones, FedAvg, defaults "
        f"and neighbours included; a plain grid of as many points: {choice.grid_cost:.0f}."
    )


def _test_view(tuned: Tuned) -> RenderableType:
    title = heading("The test, on test data that nothing above has seen")
    return Group(title, comparison_view(tuned.test))
