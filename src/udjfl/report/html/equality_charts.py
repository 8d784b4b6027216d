"""Figures of inequality: the Lorenz curve, and score over uncertainty."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from typing import Any

from udjfl.metrics import METRICS
from udjfl.report.html.bins import Bin, split_by_uncertainty
from udjfl.report.html.figure import (
    TICKS,
    WIDTH,
    Figure,
    finish,
    import_altair,
    make_chart,
    number,
    style_of,
)
from udjfl.report.html.material import Material
from udjfl.report.html.score_text import ScoreText
from udjfl.report.judged_metrics import for_score
from udjfl.simulation.method_summary import MethodSummary

MOST_METHODS = 10  # more share a figure
LORENZ_POINTS = 50
AXIS = "Uncertainty, nats"


def lorenz_figures(material: Material, width: int = WIDTH) -> list[Figure]:
    """Draw the Lorenz curve of the clients' scores under every method.

    There is none for one client, nor for scores below 0, which are no shares of their sum.
    """
    shares = {id(row): _shares(row) for row in material.rows}
    rows = [row for row in material.rows if shares[id(row)]]
    if len(material.client_ids) < 2 or not rows or len(rows) < len(material.rows):
        return []
    score = material.score.kind.title
    values, table = [], []
    for row in rows:
        name, own = style_of(row, row is material.reference).name, shares[id(row)]
        n = len(own) - 1
        half = own[n // 2] if n % 2 == 0 else (own[n // 2] + own[n // 2 + 1]) / 2
        table.append([name, number(100 * half)])
        values += [
            {
                "method": name,
                "clients": 100 * i / n,
                # The distance from equality: the curves themselves nearly coincide.
                "short": 100 * (own[i] - i / n),
                "tip": f"{name}: the lower {100 * i / n:.0f}% of the clients have "
                f"{100 * own[i]:.1f}% of all {score}",
            }
            for i in (*range(0, n, max(1, n // LORENZ_POINTS)), n)
        ]
    return [
        Figure(
            "lorenz",
            "Lorenz curve, as its distance from equality",
            f"0 everywhere: all clients have the same {score}. The deeper a curve hangs, the less "
            f"of all {score} the clients with the lowest have.",
            finish(_lorenz_chart(material, values), width, 220),
            ["Method", f"Share of all {score} of the lower half of the clients, %"],
            table,
        )
    ]


def _shares(row: MethodSummary) -> list[float]:
    """Return the shares that the lowest 0, 1, 2, ... clients have of all; empty if undefined."""
    scores = sorted(s.mean for s in row.client_scores.values() if s.mean is not None)
    total = sum(scores)
    if not scores or scores[0] < 0 or not total:
        return []
    return [0.0, *itertools.accumulate(score / total for score in scores)]


def _lorenz_chart(material: Material, values: Sequence[dict[str, Any]]) -> Any:
    alt = import_altair()
    styles = [style_of(row, row is material.reference) for row in material.rows]
    names = [style.name for style in styles]
    # Of two methods for one theory, that with a budget has the full line.
    full = [row.budget is not None or row is material.reference for row in material.rows]
    dashes = [[1, 0] if is_full else [5, 3] for is_full in full]
    base = make_chart(values).encode(
        x=alt.X("clients:Q", title=f"Clients, from the lowest {material.score.kind.title}, %"),
        y=alt.Y("short:Q", title="Their share less equal shares, points"),
        color=alt.Color(
            "method:N",
            title=None,
            sort=None,
            scale=alt.Scale(domain=names, range=[style.colour for style in styles]),
            legend=alt.Legend(symbolType="stroke"),
        ),
        description=alt.Description("tip:N"),
    )
    dash = alt.StrokeDash(
        "method:N", sort=None, scale=alt.Scale(domain=names, range=dashes), title=None
    )
    lines = base.mark_line(strokeWidth=1.6, aria=False).encode(strokeDash=dash)
    return lines + base.mark_point(filled=True, size=18)


def desert_figures(material: Material, width: int = WIDTH) -> list[Figure]:
    """Draw score over uncertainty under each method, all on one scale."""
    of_rows = [
        [b for b in split_by_uncertainty(material, row) if None not in (b.uncertainty, b.score)]
        for row in material.rows
    ]
    scores = [b.score for bins in of_rows for b in bins if b.score is not None]
    scores += [end for bins in of_rows for _, end in _fit_line(bins)]
    if len(material.rows) > MOST_METHODS:
        figure = _desert_lines(material, of_rows, width)
        return [figure] if figure is not None else []
    return [
        _desert_figure(material, row, bins, index, scores, width)
        for index, (row, bins) in enumerate(zip(material.rows, of_rows, strict=True))
        if len({b.uncertainty for b in bins}) > 1
    ]


def _fit_line(bins: Sequence[Bin]) -> list[tuple[float, float]]:
    """Return the ends of the line of score over uncertainty; empty if uncertainty is the same."""
    us = [b.uncertainty for b in bins if b.uncertainty is not None]
    if len(set(us)) < 2:
        return []
    fit = statistics.linear_regression(us, [b.score or 0.0 for b in bins])
    return [(u, fit.intercept + fit.slope * u) for u in (min(us), max(us))]


def _say_fit(row: MethodSummary, text: ScoreText) -> tuple[str, str, str]:
    """Return the slope, its unit, and r, as means over seeds."""
    slope = for_score(METRICS["slope"], text.kind)
    digits = text.metric_digits(slope)
    r = number(row.metrics["pearson_r"].mean, 2)
    return number(row.metrics["slope"].mean, digits), slope.unit, r


def _desert_lines(
    material: Material, of_rows: Sequence[Sequence[Bin]], width: int
) -> Figure | None:
    """Draw the fitted lines of many methods in one figure."""
    alt = import_altair()
    text, unit = material.score, ""
    values: list[dict[str, Any]] = []
    table = []
    for row, bins in zip(material.rows, of_rows, strict=True):
        ends = _fit_line(bins)
        if not ends:
            continue
        style = style_of(row, row is material.reference)
        slope, unit, r = _say_fit(row, text)
        table.append([style.name, slope, r])
        tip = f"{style.name}: slope {slope}, r = {r}"
        values += [
            {"u": u, "score": y, "method": style.name, "colour": style.colour, "tip": tip}
            for u, y in ends
        ]
    if not values:
        return None
    scale = text.scale(value["score"] for value in values)
    base = make_chart(values).encode(
        x=alt.X("u:Q", title=AXIS, scale=alt.Scale(zero=False), axis=alt.Axis(tickCount=TICKS)),
        y=alt.Y("score:Q", title=text.axis, scale=scale),
        color=alt.Color("colour:N", scale=None),
        description=alt.Description("tip:N"),
    )
    chart = base.mark_line(strokeWidth=1.4, aria=False).encode(detail="method:N")
    chart += base.mark_point(filled=True, size=30)
    return Figure(
        "desert",
        "Fitted lines of all methods",
        "A line for each method; its ends tell which. The steeper it falls, the more good data is "
        "rewarded. The table has slopes and r, as means over seeds.",
        finish(chart, width, 240),
        ["Method", f"Slope, {unit}", "r"],
        table,
    )


def _desert_figure(
    material: Material,
    row: MethodSummary,
    bins: Sequence[Bin],
    index: int,
    scores: Sequence[float],
    width: int,
) -> Figure:
    """Draw score over uncertainty with the fitted line."""
    alt = import_altair()
    text, style = material.score, style_of(row, row is material.reference)
    values = [
        {
            "u": one.uncertainty,
            "score": one.score,
            "tip": f"{one.label}: {text.value(one.score)} at uncertainty "
            f"{number(one.uncertainty, 3)}",
        }
        for one in bins
    ]
    slope, unit, r = _say_fit(row, text)
    x = alt.X("u:Q", title=AXIS, scale=alt.Scale(zero=False), axis=alt.Axis(tickCount=TICKS))
    y = alt.Y("score:Q", title=text.axis, scale=text.scale(scores))
    ends = [{"u": u, "score": value} for u, value in _fit_line(bins)]
    line = make_chart(ends).mark_line(
        color=style.colour, strokeWidth=1.6, strokeDash=[5, 3], aria=False, clip=True
    )
    line = line.encode(x=x, y=y)
    points = make_chart(values).encode(x=x, y=y)
    points = points.mark_point(
        filled=True, size=55, color=style.colour, shape=style.shape, opacity=1
    )
    return Figure(
        f"desert-{index + 1}",
        style.name,
        f"Slope {slope} {unit} of uncertainty, r = {r} (means over seeds). The steeper the line "
        "falls, the more good data is rewarded.",
        finish(line + points.encode(description=alt.Description("tip:N")), width, 170),
        ["Client", "Uncertainty", text.kind.with_unit],
        [[one.label, number(one.uncertainty, 3), text.number(one.score)] for one in bins],
    )
