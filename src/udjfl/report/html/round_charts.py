"""Figures over rounds: scores, losses, shares of the step, its length, the price of a budget."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from udjfl._ids import printable, sort_ids
from udjfl.report.html.bins import quantiles
from udjfl.report.html.curves import Curves, Points
from udjfl.report.html.figure import TICKS, WIDTH, Figure, finish, import_altair, make_chart, number
from udjfl.report.html.theme import DASHES, INK, SERIES

HEIGHT = 150
MOST_LINES = len(SERIES)  # more clients are shown as a band
TABLE_ROUNDS = 5
SHARE = "Share of the step"
# What is drawn for each client: the first metric of a line that has enough rounds. Titles and axes
# name the score that records have.
PER_CLIENT = (
    (("test_accuracy",), "{0.heading} on each client's test data", "{0.with_unit}", 1.0),
    (("score",), "{0.heading} on each client's training data", "{0.with_unit}", 100.0),
    (("test_loss", "train_loss"), "Loss of each client", "Loss", 1.0),
    (("step_share", "weight"), "Who steered the model", SHARE, 1.0),
)
OF_SERVER = (
    ("step_norm", "Length of the server's step", "Length"),
    ("price", "Price of the budget", "Multiplier of the mean's limit"),
    ("violation", "Distance from the budget's limit", "Above 0: over the limit"),
)


def round_figures(
    curves: Curves, index: int, width: int = WIDTH, most: int | None = None
) -> list[Figure]:
    """Draw one method over its rounds, or the first figures of that."""
    drawn: list[Callable[[], Figure]] = []
    for metrics, title, axis, factor in PER_CLIENT:
        metric = next((m for m in metrics if _has_a_course(curves.of_clients.get(m, {}))), None)
        if metric is not None:
            words = title.format(curves.score), axis.format(curves.score)
            drawn.append(partial(_client_lines, curves, index, metric, *words, factor, width))
    drawn += [
        partial(_server_line, curves, index, metric, title, axis, width)
        for metric, title, axis in OF_SERVER
        if len(curves.of_server.get(metric, {})) > 1
    ]
    return [draw() for draw in drawn[:most]]


def _has_a_course(of_clients: Mapping[str, Points]) -> bool:
    """Tell if there are values of more than two rounds."""
    return len({round for points in of_clients.values() for round in points}) > 2


def _client_lines(
    curves: Curves,
    index: int,
    metric: str,
    title: str,
    axis: str,
    factor: float,
    width: int,
) -> Figure:
    of_clients = curves.of_clients[metric]
    scaled = {
        printable(client): {r: value * factor for r, value in of_clients[client].items()}
        for client in sort_ids(of_clients)
    }
    if len(scaled) > MOST_LINES:
        chart, caption = _band(scaled, axis), _BAND
        columns, table = ["Round", "Lowest", "Median", "Highest"], _band_table(scaled)
    else:
        chart, caption = _lines(scaled, axis), _seeds(curves)
        columns, table = ["Round", *scaled], _line_table(scaled)
    return Figure(
        f"rounds-{index + 1}-{metric}".replace("_", "-"),
        title,
        caption,
        finish(chart, width, HEIGHT),
        columns,
        table,
    )


_BAND = "Line: the median client; dark band: the middle half; light band: all clients."


def _seeds(curves: Curves) -> str:
    n = len(curves.seeds)
    return f"Seed {curves.seeds[0]}." if n == 1 else f"Mean of the first {n} seeds."


def _lines(scaled: Mapping[str, Points], axis: str) -> Any:
    alt = import_altair()
    names = list(scaled)
    values = [
        {"round": r, "value": v, "client": name}
        for name, points in scaled.items()
        for r, v in sorted(points.items())
    ]
    last = [
        {
            "round": r,
            "value": points[r],
            "client": name,
            "tip": f"{name}, round {r}: {points[r]:.4g}",
        }
        for name, points in scaled.items()
        for r in _some_rounds(points)
    ]
    colours = list(SERIES[: len(names)])
    encoding = {
        "x": alt.X("round:Q", title="Round", axis=alt.Axis(tickMinStep=1, tickCount=TICKS)),
        "y": alt.Y("value:Q", title=axis, scale=alt.Scale(zero=axis == SHARE)),
        "color": alt.Color(
            "client:N",
            title=None,
            sort=None,
            scale=alt.Scale(domain=names, range=colours),
            legend=alt.Legend(symbolType="stroke"),
        ),
    }
    dash = alt.StrokeDash(
        "client:N",
        title=None,
        sort=None,
        scale=alt.Scale(domain=names, range=[list(d) for d in DASHES[: len(names)]]),
    )
    lines = make_chart(values).mark_line(strokeWidth=1.6, aria=False)
    points = make_chart(last).mark_point(filled=True, size=16)
    return lines.encode(**encoding, strokeDash=dash) + points.encode(
        **encoding, description=alt.Description("tip:N")
    )


def _some_rounds(points: Mapping[int, float]) -> list[int]:
    """Choose a few of the rounds, the last among them."""
    rounds = sorted(points)
    step = max(1, -(-len(rounds) // TABLE_ROUNDS))
    return sorted({*rounds[::step], rounds[-1]})


def _line_table(scaled: Mapping[str, Points]) -> list[list[str]]:
    union: Points = {r: 0.0 for points in scaled.values() for r in points}
    return [
        [str(r), *(number(points.get(r), 3) for points in scaled.values())]
        for r in _some_rounds(union)
    ]


def _of_rounds(scaled: Mapping[str, Points]) -> dict[int, list[float]]:
    by_round: dict[int, list[float]] = {}
    for points in scaled.values():
        for r, value in points.items():
            by_round.setdefault(r, []).append(value)
    return dict(sorted(by_round.items()))


def _band(scaled: Mapping[str, Points], axis: str) -> Any:
    alt = import_altair()
    values = []
    for r, numbers in _of_rounds(scaled).items():
        low, _, quarter, median, upper, _, high = quantiles(numbers)
        tip = f"Round {r}: lowest {low:.4g}, median {median:.4g}, highest {high:.4g}"
        values.append(
            {
                "round": r,
                "low": low,
                "quarter": quarter,
                "median": median,
                "upper": upper,
                "high": high,
                "tip": tip,
            }
        )
    scale = alt.Scale(zero=False)
    base = make_chart(values).encode(
        x=alt.X("round:Q", title="Round", axis=alt.Axis(tickMinStep=1, tickCount=TICKS))
    )
    areas = base.mark_area(color=SERIES[0], opacity=0.2, aria=False)
    return (
        areas.encode(y=alt.Y("low:Q", title=axis, scale=scale), y2=alt.Y2("high:Q"))
        + areas.encode(y=alt.Y("quarter:Q"), y2=alt.Y2("upper:Q"))
        + base.mark_line(color=SERIES[0], aria=False).encode(y=alt.Y("median:Q"))
        + base.mark_point(color=SERIES[0], filled=True, size=16).encode(
            y=alt.Y("median:Q"), description=alt.Description("tip:N")
        )
    )


def _band_table(scaled: Mapping[str, Points]) -> list[list[str]]:
    by_round = _of_rounds(scaled)
    chosen = _some_rounds(dict.fromkeys(by_round, 0.0))
    return [
        [str(r), *(number(f(by_round[r]), 3) for f in (min, statistics.median, max))]
        for r in chosen
    ]


def _server_line(
    curves: Curves, index: int, metric: str, title: str, axis: str, width: int
) -> Figure:
    alt = import_altair()
    points = curves.of_server[metric]
    values = [{"round": r, "value": v} for r, v in sorted(points.items())]
    few = [
        {"round": r, "value": points[r], "tip": f"Round {r}: {points[r]:.4g}"}
        for r in _some_rounds(points)
    ]
    encoding = {
        "x": alt.X("round:Q", title="Round", axis=alt.Axis(tickMinStep=1, tickCount=TICKS)),
        "y": alt.Y("value:Q", title=axis, scale=alt.Scale(zero=metric == "violation")),
    }
    chart = make_chart(values).mark_line(color=INK, strokeWidth=1.6, aria=False).encode(**encoding)
    marks = make_chart(few).mark_point(color=INK, filled=True, size=16)
    return Figure(
        f"rounds-{index + 1}-{metric}".replace("_", "-"),
        title,
        _seeds(curves),
        finish(
            chart + marks.encode(**encoding, description=alt.Description("tip:N")), width, HEIGHT
        ),
        ["Round", title],
        [[str(v["round"]), f"{v['value']:.4g}"] for v in few],
    )
