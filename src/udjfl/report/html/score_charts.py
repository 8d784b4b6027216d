"""Figures of what each client has: its score under every method, or the distribution of many."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from udjfl._ids import printable
from udjfl.report.html.bins import MOST_CLIENTS, quantiles
from udjfl.report.html.figure import (
    WIDTH,
    Figure,
    finish_rows,
    import_altair,
    make_chart,
    style_of,
)
from udjfl.report.html.material import Material
from udjfl.report.html.theme import INK, MUTED
from udjfl.simulation.method_summary import MethodSummary

QUANTILES = ("worst", "tenth", "quarter", "median", "upper", "ninety", "best")


def score_figures(material: Material, width: int = WIDTH) -> list[Figure]:
    """Draw each client's score under every method, or their distribution if there are many."""
    if not material.rows:
        return []
    if len(material.client_ids) > MOST_CLIENTS:
        return [_score_distribution(material, width)]
    scale = material.score.scale(_all_ends(material.rows))
    return [
        _client_scores(material, client, index, scale, width)
        for index, client in enumerate(material.client_ids)
    ]


def _axis(material: Material) -> str:
    kind = material.score.kind
    unit = f", {kind.unit}" if kind.unit else ""
    lower = "" if kind.better > 0 else " (lower is better)"
    return f"{kind.heading} on its own test data{unit}{lower}"


def _all_ends(rows: Sequence[MethodSummary]) -> list[float]:
    return [
        end
        for row in rows
        for summary in row.client_scores.values()
        for end in (summary.mean, *(summary.ci95 or ()))
        if end is not None
    ]


def _client_scores(material: Material, client: str, index: int, scale: Any, width: int) -> Figure:
    alt = import_altair()
    values = _score_records(material, client)
    base = make_chart(values).encode(
        y=alt.Y("method:N", title=None, sort=None),
        color=alt.Color("colour:N", scale=None),
        description=alt.Description("tip:N"),
    )
    chart = base.mark_rule(strokeWidth=2, opacity=0.55).encode(
        x=alt.X("low:Q", title=_axis(material), scale=scale), x2=alt.X2("high:Q")
    )
    x = alt.X("score:Q", title=_axis(material), scale=scale)
    points = base.mark_point(filled=True, size=60, opacity=1)
    chart += points.encode(x=x, shape=alt.Shape("shape:N", scale=None))
    before = material.reference and material.reference.client_scores[client].mean
    if before is not None:
        line = make_chart([{"score": before}]).mark_rule(color=MUTED, strokeDash=[3, 3])
        chart = line.encode(x=x) + chart
    many, text = len(material.seeds) > 1, material.score
    return Figure(
        f"client-{index + 1}-scores",
        printable(client),
        "Mean over seeds and its 95% interval. Dashed: FedAvg."
        if many
        else "One seed: there is no interval.",
        finish_rows(chart, width, len(values)),
        ["Method", text.kind.with_unit, "95% interval"],
        [
            [
                v["method"],
                text.number(v["score"]),
                text.interval((v["low"], v["high"])) if many else "",
            ]
            for v in values
        ],
    )


def _score_records(material: Material, client: str) -> list[dict[str, Any]]:
    text, records = material.score, []
    for row in material.rows:
        summary = row.client_scores[client]
        if summary.mean is None:
            continue
        style = style_of(row, row is material.reference)
        low, high = summary.ci95 or (summary.mean, summary.mean)
        ends = f" ({text.interval(summary.ci95)})" if summary.ci95 else ""
        records.append(
            {
                "method": style.name,
                "score": summary.mean,
                "low": text.kind.clip(low),
                "high": text.kind.clip(high),
                "colour": style.colour,
                "shape": style.shape,
                "tip": f"{printable(client)}, {style.name}: {text.value(summary.mean)}{ends}",
            }
        )
    return records


def _score_distribution(material: Material, width: int) -> Figure:
    alt = import_altair()
    text = material.score
    values = [record for row in material.rows if (record := _distribution_record(material, row))]
    base = make_chart(values).encode(
        y=alt.Y("method:N", title=None, sort=None),
        color=alt.Color("colour:N", scale=None),
        description=alt.Description("tip:N"),
    )
    scale = text.scale(value[key] for value in values for key in ("worst", "best"))
    x = alt.X("worst:Q", title=_axis(material), scale=scale)
    chart = (
        base.mark_rule(opacity=0.4).encode(x=x, x2=alt.X2("best:Q"))
        + base.mark_bar(size=4, opacity=0.5).encode(x=alt.X("tenth:Q"), x2=alt.X2("ninety:Q"))
        + base.mark_bar(size=10, opacity=0.8).encode(x=alt.X("quarter:Q"), x2=alt.X2("upper:Q"))
        + base.mark_tick(thickness=2, size=14, color=INK).encode(x=alt.X("median:Q"))
    )
    return Figure(
        "clients-scores",
        f"{text.kind.heading} of {len(material.client_ids)} clients",
        "Line: from the worst to the best client; thin bar: the middle 80% of the clients; thick "
        "bar: the middle half; tick: the median.",
        finish_rows(chart, width, len(values)),
        ["Method", "Worst", "10%", "25%", "Median", "75%", "90%", "Best"],
        [[v["method"], *(text.number(v[key]) for key in QUANTILES)] for v in values],
    )


def _distribution_record(material: Material, row: MethodSummary) -> dict[str, Any] | None:
    """Return the quantiles of the clients' scores, the worst first; None without scores."""
    text, turn = material.score, material.score.kind.better
    benefits = [turn * s.mean for s in row.client_scores.values() if s.mean is not None]
    if not benefits:
        return None
    style = style_of(row, row is material.reference)
    values = dict(zip(QUANTILES, (turn * q for q in quantiles(benefits)), strict=True))
    shown = {key: text.number(value) for key, value in values.items()}
    tip = (
        f"{style.name}: worst {shown['worst']}, a tenth of the clients worse than "
        f"{shown['tenth']}, median {shown['median']}, a tenth better than {shown['ninety']}, "
        f"best {shown['best']}"
    )
    return {"method": style.name, **values, "colour": style.colour, "tip": tip}
