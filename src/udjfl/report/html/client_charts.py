"""Figures of what each client has: scores, changes from FedAvg, and inequality."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from typing import Any

from udjfl._ids import printable
from udjfl.report.html.bins import MOST_CLIENTS, Bin, quantiles, split_by_uncertainty
from udjfl.report.html.figure import (
    WIDTH,
    Figure,
    MethodStyle,
    finish,
    import_altair,
    interval,
    make_chart,
    number,
    style_of,
)
from udjfl.report.html.material import Material
from udjfl.report.html.theme import GAIN, INK, LOSS, MUTED
from udjfl.simulation.method_summary import MethodSummary

MOST_METHODS = 10  # more share a figure
ROW = 17  # pixels of one method or client in a figure
LORENZ_POINTS = 50


def score_figures(material: Material, width: int = WIDTH) -> list[Figure]:
    """Draw each client's score under every method, or their distribution if there are many."""
    if len(material.client_ids) > MOST_CLIENTS:
        return [_score_distribution(material, width)]
    domain = _score_domain(material.rows)
    return [
        _client_scores(material, client, index, domain, width)
        for index, client in enumerate(material.client_ids)
    ]


def _axis(material: Material) -> str:
    return f"{material.score_title} on its own test data, %"


def _score_domain(rows: Sequence[MethodSummary]) -> list[float]:
    ends = [
        end
        for row in rows
        for summary in row.client_accuracy.values()
        for end in (summary.mean, *(summary.ci95 or ()))
        if end is not None
    ]
    low, high = min(ends, default=0.0), max(ends, default=100.0)
    return [max(0.0, low - 1), min(100.0, high + 1)]


def _client_scores(
    material: Material, client: str, index: int, domain: list[float], width: int
) -> Figure:
    alt = import_altair()
    shown = printable(client)
    values: list[dict[str, Any]] = []
    for row in material.rows:
        summary = row.client_accuracy[client]
        if summary.mean is None:
            continue
        style = style_of(row, row is material.reference)
        low, high = summary.ci95 or (summary.mean, summary.mean)
        tip = f"{shown}, {style.name}: {number(summary.mean)}% {_in_brackets(summary.ci95)}"
        values.append(
            {
                "method": style.name,
                "score": summary.mean,
                "low": max(0.0, low),
                "high": min(100.0, high),
                "colour": style.colour,
                "shape": style.shape,
                "tip": tip.strip(),
            }
        )
    x = alt.X(
        "score:Q", title=_axis(material), scale=alt.Scale(domain=domain, nice=False, clamp=True)
    )
    y = alt.Y("method:N", title=None, sort=None)
    colour = alt.Color("colour:N", scale=None)
    base = make_chart(values).encode(y=y, color=colour, description="tip:N")
    chart = base.mark_rule(strokeWidth=2, opacity=0.55).encode(
        x=alt.X(
            "low:Q", title=_axis(material), scale=alt.Scale(domain=domain, nice=False, clamp=True)
        ),
        x2="high:Q",
    ) + base.mark_point(filled=True, size=60, opacity=1).encode(
        x=x, shape=alt.Shape("shape:N", scale=None)
    )
    if material.reference is not None and material.reference.client_accuracy[client].mean:
        mean = material.reference.client_accuracy[client].mean
        line = make_chart([{"score": mean}]).mark_rule(color=MUTED, strokeDash=[3, 3])
        chart = line.encode(x=x) + chart
    table = [
        [
            v["method"],
            number(v["score"]),
            interval((v["low"], v["high"])) if _many(material) else "",
        ]
        for v in values
    ]
    return Figure(
        f"client-{index + 1}-scores",
        shown,
        "Mean over seeds and its 95% interval. Dashed: FedAvg."
        if _many(material)
        else "One seed: there is no interval.",
        finish(chart, width, ROW * max(1, len(values))),
        ["Method", f"{material.score_title}, %", "95% interval"],
        table,
    )


def _many(material: Material) -> bool:
    return len(material.seeds) > 1


def _in_brackets(ends: Sequence[float] | None) -> str:
    return f"({interval(ends)})" if ends else ""


def _score_distribution(material: Material, width: int) -> Figure:
    alt = import_altair()
    values: list[dict[str, Any]] = []
    for row in material.rows:
        means = [s.mean for s in row.client_accuracy.values() if s.mean is not None]
        if not means:
            continue
        style = style_of(row, row is material.reference)
        worst, tenth, quarter, median, upper, ninety, best = quantiles(means)
        tip = (
            f"{style.name}: worst {number(worst)}, a tenth below {number(tenth)}, "
            f"median {number(median)}, a tenth above {number(ninety)}, best {number(best)}"
        )
        values.append(
            {
                "method": style.name,
                "worst": worst,
                "tenth": tenth,
                "quarter": quarter,
                "median": median,
                "upper": upper,
                "ninety": ninety,
                "best": best,
                "colour": style.colour,
                "tip": tip,
            }
        )
    base = make_chart(values).encode(
        y=alt.Y("method:N", title=None, sort=None),
        color=alt.Color("colour:N", scale=None),
        description="tip:N",
    )
    x = alt.X("worst:Q", title=_axis(material), scale=alt.Scale(zero=False))
    chart = (
        base.mark_rule(opacity=0.4).encode(x=x, x2="best:Q")
        + base.mark_bar(size=4, opacity=0.5).encode(x="tenth:Q", x2="ninety:Q")
        + base.mark_bar(size=10, opacity=0.8).encode(x="quarter:Q", x2="upper:Q")
        + base.mark_tick(thickness=2, size=14, color=INK).encode(x="median:Q")
    )
    keys = ("worst", "tenth", "quarter", "median", "upper", "ninety", "best")
    return Figure(
        "clients-scores",
        f"Scores of {len(material.client_ids)} clients",
        "Line: from the worst to the best client; thin bar: the middle 80% of the clients; thick "
        "bar: the middle half; tick: the median.",
        finish(chart, width, ROW * max(1, len(values))),
        ["Method", "Worst", "10%", "25%", "Median", "75%", "90%", "Best"],
        [[v["method"], *(number(v[key]) for key in keys)] for v in values],
    )


def change_figures(material: Material, width: int = WIDTH) -> list[Figure]:
    """Draw the clients' gains and losses under each method, all on one scale."""
    if material.reference is None:
        return []
    compared = [row for row in material.rows if row is not material.reference]
    bins = [split_by_uncertainty(material, row) for row in compared]
    ends = [0.0, *(end for one in bins for b in one for end in (b.change, *(b.interval or ())))]
    return [
        _change_figure(material, row, of_row, index, [min(ends), max(ends)], width)
        for index, (row, of_row) in enumerate(zip(compared, bins, strict=True))
    ]


def _change_figure(
    material: Material,
    row: MethodSummary,
    bins: Sequence[Bin],
    index: int,
    domain: list[float],
    width: int,
) -> Figure:
    """Draw each client's gain or loss against FedAvg, the least uncertain client first."""
    alt = import_altair()
    name = style_of(row).name
    values = [_change_record(one) for one in bins]
    label = "Client, the least uncertain first"
    if len(material.client_ids) > MOST_CLIENTS:
        label = "Clients in ten groups, the least uncertain first"
    base = make_chart(values).encode(
        y=alt.Y("client:N", title=None, sort=None), description="tip:N"
    )
    colour = alt.condition("datum.change >= 0", alt.value(GAIN), alt.value(LOSS))
    chart = base.mark_bar(height=ROW - 5, opacity=0.85).encode(
        x=alt.X("change:Q", title="Change from FedAvg, points", scale=alt.Scale(domain=domain)),
        color=colour,
    )
    if any(v["low"] is not None for v in values):
        chart += base.mark_rule(color=INK, strokeWidth=1.3).encode(x="low:Q", x2="high:Q")
    zero = make_chart([{"x": 0}]).mark_rule(color=INK).encode(x="x:Q")
    return Figure(
        f"changes-{index + 1}",
        name,
        f"{label}. Bars: mean change over seeds; lines: 95% intervals.",
        finish(chart + zero, width, ROW * max(1, len(values))),
        ["Client", "Uncertainty", "Change, points", "95% interval"],
        [
            [
                v["client"],
                number(v["uncertainty"], 3),
                number(v["change"], sign="+"),
                "" if v["low"] is None else interval((v["low"], v["high"])),
            ]
            for v in values
        ],
    )


def _change_record(one: Bin) -> dict[str, Any]:
    low, high = one.interval or (None, None)
    u = f", uncertainty {number(one.uncertainty, 3)}" if one.uncertainty is not None else ""
    sure = f" ({interval(one.interval)})" if one.interval else ""
    return {
        "client": one.label,
        "uncertainty": one.uncertainty,
        "change": one.change,
        "low": low,
        "high": high,
        "tip": f"{one.label}: {number(one.change, sign='+')} points{sure}{u}",
    }


def lorenz_figure(material: Material, width: int = WIDTH) -> Figure:
    """Draw the Lorenz curve of the clients' scores under every method."""
    alt = import_altair()
    values, table = [], []
    styles = [style_of(row, row is material.reference) for row in material.rows]
    # Of two methods for one theory, that with a budget has the full line.
    full = [row.budget is not None or row is material.reference for row in material.rows]
    dashes = [[1, 0] if is_full else [5, 3] for is_full in full]
    for row, style in zip(material.rows, styles, strict=True):
        scores = sorted(s.mean for s in row.client_accuracy.values() if s.mean is not None)
        total = sum(scores)
        if not total:
            continue
        shares = [0.0, *itertools.accumulate(score / total for score in scores)]
        n = len(scores)
        half = shares[n // 2] if n % 2 == 0 else (shares[n // 2] + shares[n // 2 + 1]) / 2
        table.append([style.name, number(100 * half)])
        step = max(1, n // LORENZ_POINTS)
        kept = [*range(0, n, step), n]
        values += [
            {
                "method": style.name,
                "clients": 100 * i / n,
                # The distance from equality: the curves themselves nearly coincide.
                "short": 100 * (shares[i] - i / n),
                "tip": f"{style.name}: the lower {100 * i / n:.0f}% of the clients have "
                f"{100 * shares[i]:.1f}% of all accuracy",
            }
            for i in kept
        ]
    colour = alt.Color(
        "method:N",
        title=None,
        sort=None,
        scale=alt.Scale(domain=[s.name for s in styles], range=[s.colour for s in styles]),
        legend=alt.Legend(symbolType="stroke"),
    )
    dash = alt.StrokeDash(
        "method:N",
        sort=None,
        scale=alt.Scale(domain=[s.name for s in styles], range=dashes),
        title=None,
    )
    base = make_chart(values).encode(
        x=alt.X("clients:Q", title="Clients, from the lowest score, %"),
        y=alt.Y("short:Q", title="Their share of accuracy less equal shares, points"),
        color=colour,
        description="tip:N",
    )
    chart = base.mark_line(strokeWidth=1.6, aria=False).encode(strokeDash=dash)
    chart += base.mark_point(filled=True, size=18)
    return Figure(
        "lorenz",
        "Lorenz curve, as its distance from equality",
        "0 everywhere: all clients have the same score. The deeper a curve hangs, the less of all "
        "accuracy the lower-scoring clients have.",
        finish(chart, width, 220),
        ["Method", "Share of all accuracy of the lower half of the clients, %"],
        table,
    )


def desert_figures(material: Material, width: int = WIDTH) -> list[Figure]:
    """Draw score over uncertainty under each method, all on one scale."""
    of_rows = [
        [b for b in split_by_uncertainty(material, row) if None not in (b.uncertainty, b.score)]
        for row in material.rows
    ]
    scores = [b.score for bins in of_rows for b in bins if b.score is not None]
    if len(material.rows) > MOST_METHODS:
        figure = _desert_lines(material, of_rows, width)
        return [figure] if figure is not None else []
    return [
        _desert_figure(row, style_of(row, row is material.reference), bins, index, scores, width)
        for index, (row, bins) in enumerate(zip(material.rows, of_rows, strict=True))
        if len({b.uncertainty for b in bins}) > 1
    ]


def _desert_lines(
    material: Material, of_rows: Sequence[Sequence[Bin]], width: int
) -> Figure | None:
    """Draw the fitted lines of many methods in one figure."""
    alt = import_altair()
    values, table = [], []
    for row, bins in zip(material.rows, of_rows, strict=True):
        us = [b.uncertainty for b in bins if b.uncertainty is not None]
        if len(set(us)) < 2:
            continue
        fit = statistics.linear_regression(us, [b.score or 0.0 for b in bins])
        style = style_of(row, row is material.reference)
        slope, r = row.metrics["slope"].mean, row.metrics["pearson_r"].mean
        table.append([style.name, number(slope), number(r, 2)])
        tip = f"{style.name}: slope {number(slope)}, r = {number(r, 2)}"
        ends = [(u, fit.intercept + fit.slope * u) for u in (min(us), max(us))]
        values += [
            {"u": u, "score": y, "method": style.name, "colour": style.colour, "tip": tip}
            for u, y in ends
        ]
    if not values:
        return None
    base = make_chart(values).encode(
        x=alt.X("u:Q", title="Uncertainty, nats", scale=alt.Scale(zero=False)),
        y=alt.Y("score:Q", title=f"{material.score_title}, %", scale=alt.Scale(zero=False)),
        color=alt.Color("colour:N", scale=None),
        description="tip:N",
    )
    chart = base.mark_line(strokeWidth=1.4, aria=False).encode(detail="method:N")
    chart += base.mark_point(filled=True, size=30)
    return Figure(
        "desert",
        "Fitted lines of all methods",
        "A line for each method; its ends tell which. The steeper it falls, the more good data is "
        "rewarded. The table has slopes and r, as means over seeds.",
        finish(chart, width, 240),
        ["Method", "Slope, points per unit", "r"],
        table,
    )


def _desert_figure(
    row: MethodSummary,
    style: MethodStyle,
    bins: Sequence[Bin],
    index: int,
    scores: Sequence[float],
    width: int,
) -> Figure:
    """Draw score over uncertainty with the fitted line."""
    alt = import_altair()
    title = row.score.title[:1].upper() + row.score.title[1:]
    values = [
        {
            "u": one.uncertainty,
            "score": one.score,
            "tip": f"{one.label}: {number(one.score)}% at uncertainty {number(one.uncertainty, 3)}",
        }
        for one in bins
    ]
    slope, r = row.metrics["slope"].mean, row.metrics["pearson_r"].mean
    base = make_chart(values).encode(
        x=alt.X("u:Q", title="Uncertainty, nats", scale=alt.Scale(zero=False)),
        y=alt.Y(
            "score:Q",
            title=f"{title}, %",
            scale=alt.Scale(domain=[min(scores) - 2, max(scores) + 2]),
        ),
    )
    line = base.transform_regression("u", "score").mark_line(
        color=style.colour, strokeWidth=1.6, strokeDash=[5, 3], aria=False, clip=True
    )
    points = base.mark_point(filled=True, size=55, color=style.colour, shape=style.shape, opacity=1)
    return Figure(
        f"desert-{index + 1}",
        style.name,
        f"Slope {number(slope)} points per unit of uncertainty, r = {number(r, 2)} "
        "(means over seeds). The steeper the line falls, the more good data is rewarded.",
        finish(line + points.encode(description="tip:N"), width, 170),
        ["Client", "Uncertainty", f"{title}, %"],
        [[one.label, number(one.uncertainty, 3), number(one.score)] for one in bins],
    )
