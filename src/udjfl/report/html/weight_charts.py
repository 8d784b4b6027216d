"""Figures of how much each client steered the model, beside the two plain choices of weights."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from udjfl._ids import printable, sort_ids
from udjfl.report.html.bins import MOST_CLIENTS
from udjfl.report.html.curves import Curves
from udjfl.report.html.figure import WIDTH, Figure, finish_rows, import_altair, make_chart, number
from udjfl.report.html.theme import INK, SERIES

MOST_METHODS = 10  # the weights of more are one map


def mean_shares(curves: Curves) -> dict[str, float]:
    """Return each client's mean share of the weight over rounds; empty if there is none."""
    metric = next((m for m in ("step_share", "weight") if curves.of_clients.get(m)), None)
    if metric is None:
        return {}
    means = {
        client: statistics.fmean(points.values())
        for client, points in curves.of_clients[metric].items()
    }
    total = sum(abs(value) for value in means.values())
    return {client: abs(value) / total for client, value in means.items()} if total else {}


def weight_figures(
    all_curves: Sequence[Curves], sizes: Mapping[str, int], width: int = WIDTH
) -> list[Figure]:
    """Draw the weights of each method, or those of many methods as one map."""
    shares = [mean_shares(curves) for curves in all_curves]
    clients = sort_ids({client for of_method in shares for client in of_method})
    if not clients or len(clients) > MOST_CLIENTS:
        return []
    if len(all_curves) > MOST_METHODS:
        return [_weight_map(all_curves, shares, clients, width)]
    largest = max(share for of_method in (*shares, _by_size(sizes)) for share in of_method.values())
    figures = [
        _weight_figure(curves, sizes, i, largest, width) for i, curves in enumerate(all_curves)
    ]
    return [figure for figure in figures if figure is not None]


def _by_size(sizes: Mapping[str, int]) -> dict[str, float]:
    total = sum(sizes.values())
    return {client: size / total for client, size in sizes.items()} if total else {}


def _weight_map(
    all_curves: Sequence[Curves],
    shares: Sequence[Mapping[str, float]],
    clients: Sequence[str],
    width: int,
) -> Figure:
    alt = import_altair()
    values, table = [], []
    for curves, of_method in zip(all_curves, shares, strict=True):
        if not of_method:
            continue
        table.append([curves.label, *(number(of_method.get(c), 3) for c in clients)])
        values += [
            {
                "method": curves.label,
                "client": printable(client),
                "share": share,
                "tip": f"{curves.label}, {printable(client)}: {share:.3f}",
            }
            for client, share in of_method.items()
        ]
    names = [printable(client) for client in clients]
    base = make_chart(values).encode(
        x=alt.X("client:N", title=None, sort=names, axis=alt.Axis(labelAngle=-40)),
        y=alt.Y("method:N", title=None, sort=None),
    )
    chart = base.mark_rect(color=SERIES[0]).encode(
        opacity=alt.Opacity("share:Q", legend=None, scale=alt.Scale(range=[0, 1])),
        description=alt.Description("tip:N"),
    )
    return Figure(
        "weights",
        "Share of the step by method and client",
        f"The darker, the larger the share, mean over rounds; equal shares are "
        f"{number(1 / len(clients), 3)}.",
        finish_rows(chart, width, len(table)),
        ["Method", *names],
        table,
    )


def _weight_figure(
    curves: Curves, sizes: Mapping[str, int], index: int, largest: float, width: int
) -> Figure | None:
    """Draw the shares that a method gave its clients beside equal shares and shares by size."""
    alt = import_altair()
    shares = mean_shares(curves)
    if not shares:
        return None
    clients, of_sizes = sort_ids(shares), _by_size(sizes)
    by_size = {c: of_sizes[c] for c in clients if c in of_sizes}
    equal = 1 / len(shares)
    values, table = [], []
    for client in clients:
        name, size = printable(client), by_size.get(client)
        tip = f"{name}: {shares[client]:.3f}, equal {equal:.3f}"
        tip += f", by size {size:.3f}" if size is not None else ""
        values.append({"client": name, "share": shares[client], "size": size, "tip": tip})
        table.append([name, number(shares[client], 3), number(equal, 3), number(size, 3)])
    y = alt.Y("client:N", title=None, sort=None)
    scale = alt.Scale(domain=[0, largest])
    x = alt.X("share:Q", title="Share of the step, mean over rounds", scale=scale)
    bars = make_chart(values).mark_bar(color=SERIES[0], opacity=0.85)
    chart = bars.encode(x=x, y=y, description=alt.Description("tip:N"))
    rule = make_chart([{"equal": equal}]).mark_rule(color=INK, strokeDash=[3, 3])
    chart += rule.encode(x=alt.X("equal:Q"))
    if by_size:
        ticks = make_chart(values).mark_tick(color=INK, thickness=3, size=13)
        chart += ticks.encode(x=alt.X("size:Q"), y=y)
    return Figure(
        f"weights-{index + 1}",
        curves.label,
        "Bars: the share that the method gave; dashed line: equal shares; ticks: by examples.",
        finish_rows(chart, width, len(values)),
        ["Client", "Chosen", "Equal", "By examples"],
        table,
    )
