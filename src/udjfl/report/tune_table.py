"""A tuned point on a terminal: the choice, its neighbours, what it cost, and its test."""

from __future__ import annotations

from pathlib import Path

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from udjfl.report.cells import footer, heading
from udjfl.report.comparison_table import comparison_view
from udjfl.report.output import FitWidth, make_blocks
from udjfl.search.scoring import ROUNDING, CandidateScore
from udjfl.search.tune import HeldOutChoice, Tuned
from udjfl.training.resuming import advise_to_resume

MEASURES = {
    "rawls": "Psi",
    "egalitarian": "STD, less",
    "utilitarian": "Global",
    "desert": "Slope, steeper",
}
HELD_OUT = (
    "On a fifth of each client's train part, against FedAvg: the theory's measure (higher is "
    "better) ± its standard error over seeds, the clients whom it should benefit, and the mean of "
    "all clients, in {unit}."
)
RUNG_HEADINGS = ("Rounds", "Points", "Best within the limits")
NOT_CLEAR = (
    "The default stays: the best point was not better by more than one standard error, seed by "
    "seed."
)
NEAR = (
    "{label} had the best measure, but keeps the budget by less than one standard error: on other "
    "data it may cost more."
)
LEVELLED_DOWN = (
    "The clients whom the theory should benefit do not gain at the chosen point ({gain}): its "
    "measure is better only because others lose. Verdicts call that levelled down."
)


def tune_view(tuned: Tuned) -> RenderableType:
    """Lay out a tuned point and its test."""
    return Group(*_choice_parts(tuned.choice), Text(""), _test_view(tuned))


def choice_view(choice: HeldOutChoice, folder: Path) -> RenderableType:
    """Lay out a tuned point whose test, in the same folder, is not finished."""
    not_tested = f"The test is not finished; {advise_to_resume(folder)} continues it."
    return Group(*_choice_parts(choice), Text(""), Text(not_tested))


def _choice_parts(choice: HeldOutChoice) -> list[RenderableType]:
    return [
        heading(f"Chosen for the {choice.theory} theory: {choice.chosen.candidate.method.label}"),
        Text(f"within {say_limits(choice)}"),
        Text(""),
        _scores_view(choice),
        footer(say_held_out(choice)),
        *(footer(remark) for remark in remark_on_choice(choice)),
        Text(""),
        heading("The search"),
        _rungs_view(choice),
        footer(say_cost(choice)),
    ]


def say_held_out(choice: HeldOutChoice) -> str:
    """Say what the numbers of points are."""
    return HELD_OUT.format(unit=choice.score.gain_basis)


def say_limits(choice: HeldOutChoice) -> str:
    """Say which limits the points had to keep."""
    limits, score = choice.limits, choice.score
    floors = ", ".join(f"{client} {value:g}{score.unit}" for client, value in limits.floors.items())
    budget = f"a budget of {score.say_gain(f'{limits.budget:g}')}"
    return budget + (f" and floors of {floors}" if floors else "")


def remark_on_choice(choice: HeldOutChoice) -> list[str]:
    """Say why a better measure was not chosen, whom the choice serves, and who breaks a limit."""
    chosen, best, remarks = choice.chosen, choice.rungs[-1].scores[0], []
    kept = chosen.candidate.name in {each.candidate.name for each in _defaults(choice)}
    if best.near and not chosen.near:
        remarks.append(NEAR.format(label=best.candidate.method.label))
    elif kept and chosen.candidate.name != best.candidate.name:
        remarks.append(NOT_CLEAR)
    is_better = chosen.value > ROUNDING and choice.theory != "utilitarian"
    if is_better and chosen.gain <= ROUNDING:
        remarks.append(LEVELLED_DOWN.format(gain=f"{chosen.gain:+.2f}"))
    broken = [_say_broken(each) for _, each in list_points(choice) if each.broken]
    return [*remarks, *([f"! breaks a limit: {'; '.join(broken)}."] if broken else [])]


def _say_broken(each: CandidateScore) -> str:
    limits = ", ".join(f"{name} by {value:.1f}" for name, value in (each.broken or {}).items())
    return f"{each.candidate.method.label}: {limits}"


def list_points(choice: HeldOutChoice) -> list[tuple[str, CandidateScore]]:
    """Return the chosen point, the defaults and the neighbours, each with its role."""
    chosen, defaults = choice.chosen, _defaults(choice)
    others = [each for each in defaults if each.candidate.name != chosen.candidate.name]
    role = "chosen" if len(others) == len(defaults) else "chosen, a default"
    points = [(role, chosen), *(("default", each) for each in others)]
    return [*points, *(("neighbour", each) for each in choice.neighbours)]


def _defaults(choice: HeldOutChoice) -> list[CandidateScore]:
    """Return the defaults as the last rung has them, the method's own first."""
    own = choice.default.candidate.name
    others = [
        each
        for each in choice.rungs[-1].scores
        if each.candidate.name in choice.default_names and each.candidate.name != own
    ]
    return [choice.default, *others]


def point_headings(choice: HeldOutChoice) -> list[str]:
    """Return the headings of the numbers of a point."""
    return [MEASURES[choice.theory], "±", "Benefit", "Mean", "Global"]


def point_cells(each: CandidateScore) -> list[str]:
    """Return the numbers of a point as text."""
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


def list_rungs(choice: HeldOutChoice) -> list[list[str]]:
    """Return for each rung its rounds, its points, and the best that kept the limits."""
    return [
        [
            str(rung.rounds),
            str(len(rung.scores)),
            rung.scores[0].candidate.method.label if rung.scores[0].violation == 0 else "none",
        ]
        for rung in choice.rungs
    ]


def say_cost(choice: HeldOutChoice) -> str:
    """Say what the search cost, beside a plain grid."""
    return (
        f"Cost: {choice.cost:.1f} trainings for each seed, counted in whole ones, FedAvg, defaults "
        f"and neighbours included; a plain grid of as many points: {choice.grid_cost:.0f}."
    )


def _scores_view(choice: HeldOutChoice) -> RenderableType:
    rows = list_points(choice)
    headings = [Text(title) for title in point_headings(choice)]
    names = [Text(f"{role}: {each.candidate.method.label}") for role, each in rows]
    cells = [[Text(cell) for cell in point_cells(each)] for _, each in rows]
    return FitWidth(lambda width: make_blocks(width, "Point", headings, names, cells))


def _rungs_view(choice: HeldOutChoice) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title in RUNG_HEADINGS:
        table.add_column(title, justify="left" if title == RUNG_HEADINGS[-1] else "right")
    for cells in list_rungs(choice):
        table.add_row(*(Text(cell) for cell in cells))
    return table


def _test_view(tuned: Tuned) -> RenderableType:
    title = heading("The test, on test data that nothing above has seen")
    return Group(title, comparison_view(tuned.test))
