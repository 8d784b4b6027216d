"""Figures that place the methods beside each other: what one measure costs in another."""

from __future__ import annotations

from typing import Any

from udjfl.metrics import METRICS, Metric
from udjfl.report.html.figure import (
    TICKS,
    WIDTH,
    Figure,
    finish,
    import_altair,
    interval,
    make_chart,
    number,
    style_of,
)
from udjfl.report.html.labels import Axis, label_layers
from udjfl.report.html.material import Material
from udjfl.report.html.score_text import ScoreText, axis_title
from udjfl.report.judged_metrics import for_score
from udjfl.statistics import Summary

HEIGHT = 240
# Pairs of measures: x, y, title and how to read it.
PAIRS = (
    (
        "accuracy_least_uncertain",
        "accuracy_most_uncertain",
        "The most against the least uncertain client",
        "Up: better for the client with the most uncertain data; right: better for the one with "
        "the least. Of two methods neither is better for both unless it is above and to the right.",
    ),
    (
        "std",
        "global_accuracy",
        "The shared model against the spread between clients",
        "Up: a better model on data that nobody trained on; right: clients served more alike.",
    ),
    (
        "mean_accuracy",
        "worst_accuracy",
        "The worst client against the mean",
        "Up: better for the client that is served worst; right: a better mean of all clients.",
    ),
)


def tradeoff_figures(material: Material, width: int = WIDTH) -> list[Figure]:
    """Draw the methods by pairs of measures; pairs without values are left out."""
    if len(material.rows) < 2:
        return []
    figures = [_tradeoff(material, *pair, width=width) for pair in PAIRS]
    return [figure for figure in figures if figure is not None]


def _tradeoff(
    material: Material, x_key: str, y_key: str, title: str, caption: str, width: int
) -> Figure | None:
    alt = import_altair()
    x, y = (for_score(METRICS[key], material.score.kind) for key in (x_key, y_key))
    values = _points(material, x, y)
    if not values:
        return None
    across = Axis.of_metric(x, [v[key] for v in values for key in ("x_low", "x_high")], width)
    up = Axis.of_metric(y, [v[key] for v in values for key in ("y_low", "y_high")], HEIGHT)
    base = make_chart(values).encode(
        x=alt.X("x:Q", title=axis_title(x), scale=across.scale, axis=alt.Axis(tickCount=TICKS)),
        y=alt.Y("y:Q", title=axis_title(y), scale=up.scale, axis=alt.Axis(tickCount=TICKS)),
        color=alt.Color("colour:N", scale=None),
        description=alt.Description("tip:N"),
    )
    points = base.mark_point(filled=True, size=70, opacity=1).encode(
        shape=alt.Shape("shape:N", scale=None)
    )
    errors = base.mark_rule(opacity=0.35, aria=False)
    chart = (
        errors.encode(x=alt.X("x_low:Q"), x2=alt.X2("x_high:Q"))
        + errors.encode(y=alt.Y("y_low:Q"), y2=alt.Y2("y_high:Q"))
        + points
    )
    chart += label_layers([(v["x"], v["y"], v["name"]) for v in values], across, up)
    return Figure(
        f"tradeoff-{y_key}-{x_key}".replace("_", "-"),
        title,
        caption,
        finish(chart, width, HEIGHT),
        ["Method", axis_title(x), "95% interval", axis_title(y), "95% interval"],
        [[v["name"], v["x_text"], v["x_interval"], v["y_text"], v["y_interval"]] for v in values],
    )


def _points(material: Material, x: Metric, y: Metric) -> list[dict[str, Any]]:
    values = []
    for row in material.rows:
        across, up = row.metrics[x.key], row.metrics[y.key]
        if across.mean is None or up.mean is None:
            continue
        style = style_of(row, row is material.reference)
        record = {
            "name": style.name,
            "colour": style.colour,
            "shape": style.shape,
            **_coordinate("x", x, across, material.score),
            **_coordinate("y", y, up, material.score),
        }
        record["tip"] = f"{style.name}: {x.title} {record['x_text']}, {y.title} {record['y_text']}"
        values.append(record)
    return values


def _coordinate(axis: str, metric: Metric, summary: Summary, text: ScoreText) -> dict[str, Any]:
    """Return the place of a method on one axis, its interval, and both as text."""
    mean, digits = summary.mean or 0.0, text.metric_digits(metric)
    low, high = metric.clip(summary.ci95) if summary.ci95 else (mean, mean)
    return {
        axis: mean,
        f"{axis}_low": low,
        f"{axis}_high": high,
        f"{axis}_text": number(mean, digits),
        f"{axis}_interval": interval((low, high), digits),
    }
