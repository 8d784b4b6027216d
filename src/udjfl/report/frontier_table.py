"""A frontier on a terminal: the marked points, the two fronts, and a map of each measure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from udjfl.metrics import METRICS
from udjfl.report.cells import footer, format_number, heading, with_arrow
from udjfl.report.judged_metrics import for_score
from udjfl.report.output import FitWidth, make_blocks, stack
from udjfl.search.frontier import FRONTS, MAPPED, Frontier, Point

COLUMNS = (
    *("global_accuracy", "accuracy_most_uncertain", "accuracy_least_uncertain"),
    *("worst_accuracy", "mean_accuracy", "std", "psi", "pearson_r"),
)
FRONT_TITLES = {
    "clients": "Most against least advantaged: no point is better for both",
    "shared": "Shared model against spread: no point is better in both",
}
CAUTION = (
    "Means over seeds, on test data: neighbours on a front may differ by chance. To choose a point "
    "from here would be to choose on test data; `udjfl tune` chooses on held-out data."
)
ALIKE = (
    "Budgets in one row did exactly the same. Most often the clients have too few examples to tell "
    "so few points from chance, and the goal is FedAvg's own mean; -p caution=0 with `udjfl "
    "compare` takes the risk."
)
MAP_AXES = "p: power of the loss; gamma: power of the uncertainty."


def frontier_view(frontier: Frontier) -> RenderableType:
    """Lay out a frontier."""
    marked = [point for point in frontier.points if point.kind != "grid"]
    n_grid = len(frontier.points) - len(marked)
    seeds = "1 seed" if len(frontier.seeds) == 1 else f"{len(frontier.seeds)} seeds"
    title = (
        f"{frontier.data}: {len(frontier.points)} points, {n_grid} of them of the grid, "
        f"{seeds}, {frontier.settings['rounds']} rounds"
    )
    rows = _join_budgets(frontier, marked)
    parts: list[RenderableType] = [heading(title), _points_view(frontier, rows)]
    if len(rows) < len(marked):
        parts.append(footer(ALIKE))
    for key in FRONTS:
        parts += [Text(""), heading(FRONT_TITLES[key]), _front_view(frontier, key)]
    parts += [Text(""), heading("The grid, by the measure of each theory"), _maps(frontier)]
    parts += [footer(MAP_AXES), *_left_out(frontier), Text(""), footer(CAUTION)]
    return Group(*parts)


def _join_budgets(frontier: Frontier, points: Sequence[Point]) -> list[Point]:
    """Make one row of budgets of a theory that gave every client the same score on every seed."""
    rows: dict[tuple[object, ...], list[Point]] = {}
    for point in points:
        runs = [frontier.runs.get((point.name, seed)) for seed in frontier.seeds]
        scores = tuple(run.accuracies for run in runs if run is not None)
        joined = point.kind == "budget" and all(scores)
        rows.setdefault((point.theory, scores) if joined else (point.name,), []).append(point)
    return [_one_label(group) for group in rows.values()]


def _one_label(points: Sequence[Point]) -> Point:
    """Return the first point, with the budgets of all in its label."""
    first = points[0]
    budgets = ", ".join(f"{point.budget:g}" for point in points if point.budget is not None)
    if not budgets:
        return first
    return replace(
        first, label=first.label.replace(f"budget={first.budget:g}", f"budget={budgets}")
    )


def _points_view(frontier: Frontier, points: Sequence[Point]) -> RenderableType:
    headings = [Text(with_arrow(for_score(METRICS[key], frontier.score))) for key in COLUMNS]
    cells = [[_cell(frontier, p, key) for key in COLUMNS] for p in points]
    names = [Text(point.label) for point in points]
    return FitWidth(lambda width: make_blocks(width, "Method", headings, names, cells))


def _cell(frontier: Frontier, point: Point, key: str) -> Text:
    mean, metric = frontier.metrics[point.name][key].mean, for_score(METRICS[key], frontier.score)
    return Text("–" if mean is None else format_number(mean, metric))


def _front_view(frontier: Frontier, key: str) -> RenderableType:
    points, axes = _join_budgets(frontier, frontier.front(key)), FRONTS[key]
    if not points:
        return footer("No point is within the margin.")
    headings = [Text(with_arrow(for_score(METRICS[axis], frontier.score))) for axis in axes]
    cells = [[_cell(frontier, p, axis) for axis in axes] for p in points]
    names = [Text(point.label) for point in points]
    return FitWidth(lambda width: make_blocks(width, "Point", headings, names, cells))


def _maps(frontier: Frontier) -> RenderableType:
    """Show each measure as a table of exponents by gammas."""
    return stack([table for key in MAPPED if (table := _map(frontier, key)) is not None])


def _map(frontier: Frontier, key: str) -> Table | None:
    values = frontier.map(key)
    if not values:
        return None
    gammas = sorted({gamma for _, gamma in values})
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    metric = for_score(METRICS[key], frontier.score)
    table.add_column(with_arrow(metric).replace("\n", " "), no_wrap=True)
    for gamma in gammas:
        table.add_column(f"gamma {gamma:g}", justify="right", no_wrap=True)
    for exponent in sorted({exponent for exponent, _ in values}):
        row = [values.get((exponent, gamma)) for gamma in gammas]
        cells = ["–" if value is None else format_number(value, metric) for value in row]
        table.add_row(f"p = {exponent:g}", *cells)
    return table


def _left_out(frontier: Frontier) -> list[RenderableType]:
    if not frontier.left_out:
        return []
    margin = frontier.score.say_gain(f"{frontier.margin:g}")
    budget = f"{margin} of mean {frontier.score.title} (a theory with a budget: its budget)"
    n = len(frontier.left_out)
    points = "1 point is" if n == 1 else f"{n} points are"
    return [
        footer(
            f"{points} on no front: more than {budget} below FedAvg, at chance, or not finished."
        )
    ]
