"""Figures of who pays for whom: each client's gain or loss against FedAvg."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from udjfl.report.html.bins import MOST_CLIENTS, Bin, split_by_uncertainty
from udjfl.report.html.figure import (
    ROW,
    WIDTH,
    Figure,
    finish_rows,
    import_altair,
    interval,
    make_chart,
    number,
    style_of,
)
from udjfl.report.html.material import Material
from udjfl.report.html.score_text import ScoreText
from udjfl.report.html.theme import GAIN, INK, LOSS
from udjfl.simulation.method_summary import MethodSummary


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
    kind = material.score.kind
    values = [_change_record(one, material.score) for one in bins]
    label = "Client, the least uncertain first"
    if len(material.client_ids) > MOST_CLIENTS:
        label = "Clients in ten groups, the least uncertain first"
    base = make_chart(values).encode(
        y=alt.Y("client:N", title=None, sort=None), description=alt.Description("tip:N")
    )
    colour = alt.condition("datum.change >= 0", alt.value(GAIN), alt.value(LOSS))
    title = f"Gain over FedAvg, {kind.gain_basis}"
    chart = base.mark_bar(height=ROW - 5, opacity=0.85).encode(
        x=alt.X("change:Q", title=title, scale=alt.Scale(domain=domain)), color=colour
    )
    if any(v["low"] is not None for v in values):
        chart += base.mark_rule(color=INK, strokeWidth=1.3).encode(
            x=alt.X("low:Q"), x2=alt.X2("high:Q")
        )
    zero = make_chart([{"x": 0}]).mark_rule(color=INK).encode(x=alt.X("x:Q"))
    lower = "" if kind.better > 0 else f" A gain is a lower {kind.title}."
    return Figure(
        f"changes-{index + 1}",
        style_of(row).name,
        f"{label}. Bars: mean gain over seeds, or loss below 0; lines: 95% intervals.{lower}",
        finish_rows(chart + zero, width, len(values)),
        ["Client", "Uncertainty", f"Gain, {kind.gain_basis}", "95% interval"],
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


def _change_record(one: Bin, text: ScoreText) -> dict[str, Any]:
    low, high = one.interval or (None, None)
    u = f", uncertainty {number(one.uncertainty, 3)}" if one.uncertainty is not None else ""
    sure = f" ({interval(one.interval)})" if one.interval else ""
    return {
        "client": one.label,
        "uncertainty": one.uncertainty,
        "change": one.change,
        "low": low,
        "high": high,
        "tip": f"{one.label}: {text.gain(one.change)}{sure}{u}",
    }
