"""Figures that place the methods beside each other: what one measure costs in another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from udjfl.metrics import METRICS
from udjfl.report.html.figure import (
    WIDTH,
    Figure,
    finish,
    import_altair,
    interval,
    make_chart,
    number,
    style_of,
)
from udjfl.report.html.material import Material
from udjfl.report.html.theme import INK

HEIGHT = 240
# Pairs of measures: x, y, title and how to read it.
PAIRS = (
    (
        "accuracy_least_uncertain",
        "accuracy_most_uncertain",
        "The most against the least uncertain client",
        "Up: better for the client with the most uncertain data; right: better for the one with "
        "the least. No method can be said to be better than another up and to the left of it.",
    ),
    (
        "std",
        "global_accuracy",
        "The shared test against the spread between clients",
        "Up: a better model on data that nobody trained on; left: clients served more alike.",
    ),
    (
        "mean_accuracy",
        "worst_accuracy",
        "The worst client against the mean",
        "Up: the lowest score of any client; right: the mean of all clients.",
    ),
)


def tradeoff_figures(material: Material, width: int = WIDTH) -> list[Figure]:
    """Draw the methods by pairs of measures; pairs without values are left out."""
    figures = [_tradeoff(material, *pair, width=width) for pair in PAIRS]
    return [figure for figure in figures if figure is not None]


def _tradeoff(
    material: Material, x_key: str, y_key: str, title: str, caption: str, width: int
) -> Figure | None:
    alt = import_altair()
    values = _points(material, x_key, y_key)
    if not values:
        return None
    x_title, y_title = _axis(x_key), _axis(y_key)
    scale = alt.Scale(zero=False, padding=12)
    base = make_chart(values).encode(
        x=alt.X("x:Q", title=x_title, scale=scale),
        y=alt.Y("y:Q", title=y_title, scale=scale),
        color=alt.Color("colour:N", scale=None),
        description="tip:N",
    )
    points = base.mark_point(filled=True, size=70, opacity=1).encode(
        shape=alt.Shape("shape:N", scale=None)
    )
    errors = base.mark_rule(opacity=0.35, aria=False)
    chart = (
        errors.encode(x="x_low:Q", x2="x_high:Q")
        + errors.encode(y="y_low:Q", y2="y_high:Q")
        + points
    )
    labels = base.mark_text(align="left", dx=7, dy=-5, fontSize=9, aria=False, color=INK)
    chart += labels.encode(text="name:N", color=alt.value(INK))
    return Figure(
        f"tradeoff-{y_key}-{x_key}".replace("_", "-"),
        title,
        caption,
        finish(chart, width, HEIGHT),
        ["Method", x_title, "95% interval", y_title, "95% interval"],
        [
            [
                v["name"],
                number(v["x"]),
                interval((v["x_low"], v["x_high"])),
                number(v["y"]),
                interval((v["y_low"], v["y_high"])),
            ]
            for v in values
        ],
    )


def _axis(key: str) -> str:
    metric = METRICS[key]
    return f"{metric.title}, {metric.unit}" if metric.unit else metric.title


def _points(material: Material, x_key: str, y_key: str) -> list[dict[str, Any]]:
    values = []
    for row in material.rows:
        x, y = row.metrics[x_key], row.metrics[y_key]
        if x.mean is None or y.mean is None:
            continue
        style = style_of(row, row is material.reference)
        values.append(
            {
                "name": style.name,
                "x": x.mean,
                "y": y.mean,
                "colour": style.colour,
                "shape": style.shape,
                "tip": f"{style.name}: {METRICS[x_key].title} {number(x.mean)}, "
                f"{METRICS[y_key].title} {number(y.mean)}",
                **_ends("x", x_key, x.ci95, x.mean),
                **_ends("y", y_key, y.ci95, y.mean),
            }
        )
    return values


def _ends(axis: str, key: str, ends: Sequence[float] | None, mean: float) -> dict[str, float]:
    low, high = METRICS[key].clip((ends[0], ends[1])) if ends else (mean, mean)
    return {f"{axis}_low": low, f"{axis}_high": high}
