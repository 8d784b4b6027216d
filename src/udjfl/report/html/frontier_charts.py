"""Figures of a frontier: the two trade-offs with every point, and a map of each measure."""

from __future__ import annotations

from typing import Any

from udjfl.metrics import METRICS
from udjfl.report.html.figure import (
    TICKS,
    WIDTH,
    Figure,
    finish,
    import_altair,
    make_chart,
    name_method,
    number,
)
from udjfl.report.html.labels import Axis, label_layers
from udjfl.report.html.score_text import axis_title
from udjfl.report.html.theme import (
    INK,
    NEUTRAL,
    OTHER_SHAPE,
    REFERENCE_SHAPE,
    THEORY_COLOURS,
    THEORY_SHAPES,
)
from udjfl.report.judged_metrics import for_score
from udjfl.search.frontier import FRONTS, MAPPED, Frontier, Point

HEIGHT, MAP_HEIGHT, GRID_SIZE = 260, 180, 18
TITLES = {
    "clients": "The most against the least uncertain client, all points",
    "shared": "The shared model against the spread, all points",
}
CAPTION = (
    "Every point is a mean over seeds on test data. Small grey dots are the grid; colours and "
    "shapes are the theories', filled with a budget, hollow as the paper has them; triangles down "
    "are other methods, the cross is FedAvg. The line joins the points that none beats on both "
    "axes; faint points cost more mean accuracy than the margin and are on no line."
)
MAP_CAPTION = (
    "By exponent p of the loss and power gamma of the uncertainty; mean over seeds. The darker, "
    "the better for the theory that it measures."
)


def frontier_figures(frontier: Frontier, width: int = WIDTH) -> list[Figure]:
    """Draw both trade-offs, and a map of the measure of each theory."""
    maps = [_map_figure(frontier, key, width) for key in MAPPED]
    fronts = [_front_figure(frontier, key, width) for key in FRONTS]
    return [figure for figure in (*fronts, *maps) if figure is not None]


def _front_figure(frontier: Frontier, key: str, width: int) -> Figure | None:
    alt = import_altair()
    x_key, y_key = FRONTS[key]
    records = [r for p in frontier.points if (r := _record(frontier, p, x_key, y_key)) is not None]
    if not records:
        return None
    x_metric, y_metric = (for_score(METRICS[k], frontier.score) for k in (x_key, y_key))
    across = Axis.of_metric(x_metric, [r["x"] for r in records], width)
    up = Axis.of_metric(y_metric, [r["y"] for r in records], HEIGHT)
    ticks = alt.Axis(tickCount=TICKS)
    x = alt.X("x:Q", title=axis_title(x_metric), scale=across.scale, axis=ticks)
    y = alt.Y("y:Q", title=axis_title(y_metric), scale=up.scale, axis=ticks)
    on_front = {point.name for point in frontier.front(key)}
    line = make_chart([r for r in records if r["key"] in on_front]).mark_line(
        color=INK, opacity=0.35, aria=False
    )
    points = make_chart(records).mark_point(strokeWidth=1.5)
    chart = line.encode(x=x, y=y) + points.encode(
        x=x,
        y=y,
        stroke=alt.Stroke("colour:N", scale=None),
        fill=alt.Fill("fill:N", scale=None),
        shape=alt.Shape("shape:N", scale=None),
        size=alt.Size("size:Q", scale=None),
        opacity=alt.Opacity("opacity:Q", scale=None),
        description=alt.Description("tip:N"),
    )
    named = [(r["x"], r["y"], r["name"]) for r in records if r["name"]]
    others = [(r["x"], r["y"]) for r in records if not r["name"] and r["size"] > GRID_SIZE]
    labels = label_layers(named, across, up, others)
    chart = chart if labels is None else chart + labels
    digits = frontier.score.digits
    rows = [[r["label"], number(r["x"], digits), number(r["y"], digits)] for r in records]
    return Figure(
        f"frontier-{key}",
        TITLES[key],
        CAPTION,
        finish(chart, width, HEIGHT),
        ["Point", x_metric.title, y_metric.title],
        rows,
    )


def _record(frontier: Frontier, point: Point, x_key: str, y_key: str) -> dict[str, Any] | None:
    metrics = frontier.metrics[point.name]
    x, y = metrics[x_key].mean, metrics[y_key].mean
    if x is None or y is None:
        return None
    across, up = (for_score(METRICS[key], frontier.score) for key in (x_key, y_key))
    digits = _digits(frontier)
    colour = THEORY_COLOURS.get(point.theory or "", NEUTRAL)
    shape = THEORY_SHAPES.get(point.theory or "", OTHER_SHAPE)
    if point.kind == "reference":
        colour, shape = INK, REFERENCE_SHAPE
    elif point.kind == "grid":
        shape = "circle"
    hollow = point.kind == "theory"
    return {
        "key": point.name,
        "label": point.label,
        # Sixty names would hide the points: the grid and budgets have none.
        "name": "" if point.kind in ("grid", "budget") else name_method(point.method),
        "x": x,
        "y": y,
        "colour": colour,
        "fill": "transparent" if hollow else colour,
        "shape": shape,
        "size": GRID_SIZE if point.kind == "grid" else 60,
        "opacity": 0.35 if point.name in frontier.left_out else 1.0,
        "tip": f"{point.label}: {across.title} {number(x, digits)}, {up.title} {number(y, digits)}",
    }


def _digits(frontier: Frontier) -> int:
    """Return the number of decimals in a figure: fewer than in tables where these are percent."""
    return 1 if frontier.score.percent else frontier.score.digits


def _map_figure(frontier: Frontier, key: str, width: int) -> Figure | None:
    alt = import_altair()
    values = frontier.map(key)
    if len(values) < 2:
        return None
    metric = for_score(METRICS[key], frontier.score)
    digits = 2 if metric.bounds == (-1.0, 1.0) else _digits(frontier)
    records: list[dict[str, Any]] = [
        {"p": f"{p:g}", "gamma": f"{gamma:g}", "value": value, "text": number(value, digits)}
        for (p, gamma), value in sorted(values.items())
    ]
    exponents, gammas = ([f"{v:g}" for v in sorted({k[i] for k in values})] for i in (0, 1))
    base = make_chart(records).encode(
        x=alt.X("gamma:N", title="gamma", sort=gammas, axis=alt.Axis(labelAngle=0)),
        y=alt.Y("p:N", title="exponent p", sort=exponents[::-1]),
    )
    # The better end is the darker one, whichever way the measure goes.
    colours = alt.Scale(scheme="blues", reverse=metric.better < 0)
    tiles = base.mark_rect(opacity=0.55).encode(
        color=alt.Color("value:Q", scale=colours, legend=None),
        description=alt.Description("text:N"),
    )
    chart = tiles + base.mark_text(fontSize=9, color=INK, aria=False).encode(
        text=alt.Text("text:N")
    )
    return Figure(
        f"frontier-map-{key}".replace("_", "-"),
        f"{metric.title} over the grid",
        MAP_CAPTION,
        finish(chart, width, MAP_HEIGHT),
        ["Exponent p", "gamma", metric.title],
        [[record["p"], record["gamma"], record["text"]] for record in records],
    )
