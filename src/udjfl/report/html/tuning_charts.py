"""Figures of a tuning: every point of the search, the chosen one among others, and the cost."""

from __future__ import annotations

from typing import Any

from udjfl._ids import printable, sort_ids
from udjfl.methods import Method
from udjfl.methods.base import format_parameters
from udjfl.report.html.figure import (
    ROW,
    WIDTH,
    Figure,
    finish,
    finish_rows,
    import_altair,
    make_chart,
    name_method,
    number,
)
from udjfl.report.html.labels import Axis, label_layers
from udjfl.report.html.theme import GAIN, INK, MUTED, NEUTRAL, THEORY_COLOURS
from udjfl.report.tune_table import MEASURES, list_points, list_rungs
from udjfl.search.scoring import CandidateScore
from udjfl.search.tune import HeldOutChoice
from udjfl.tasks import ScoreKind

HEIGHT = 240
OPACITY = (0.3, 0.55, 1.0)  # of the rungs: the more rounds, the surer
SHAPES = {"chosen": "diamond", "default": "square", "neighbour": "circle"}
ROOM = 0.75  # of the width, beside the long names of points
MOST_CLIENTS = 24
MEAN_AXIS = "Mean of the clients against FedAvg, {unit}"
HELD_OUT = "On held-out data, against FedAvg, mean over seeds."


def tuning_figures(choice: HeldOutChoice, width: int = WIDTH) -> list[Figure]:
    """Draw the search, the chosen point beside the default and its neighbours, and the cost."""
    return [
        _search_figure(choice, width),
        _points_figure(choice, width),
        *_client_figures(choice, width),
        _cost_figure(choice, width),
    ]


def _measure_axis(choice: HeldOutChoice) -> str:
    return f"{MEASURES[choice.theory]}: gain over FedAvg"


def _search_figure(choice: HeldOutChoice, width: int) -> Figure:
    """Draw the measure of every point against what it costs the mean."""
    alt = import_altair()
    colour, unit = THEORY_COLOURS.get(choice.theory, INK), choice.score.gain_basis
    records = [
        _search_record(choice, each, rung.rounds, OPACITY[min(number, len(OPACITY) - 1)])
        for number, rung in enumerate(choice.rungs)
        for each in rung.scores
        if not each.failed
    ]
    means = [-choice.limits.budget, 0.0, *(r["mean"] for r in records)]
    across = Axis.around(means, width)
    up = Axis.around([0.0, *(r["value"] for r in records)], HEIGHT)
    x = alt.X("mean:Q", title=MEAN_AXIS.format(unit=unit), scale=across.scale)
    y = alt.Y("value:Q", title=_measure_axis(choice), scale=up.scale)
    points = make_chart(records).mark_point(filled=True, size=28, color=NEUTRAL)
    chart = points.encode(
        x=x, y=y, opacity=alt.Opacity("opacity:Q", scale=None), description=alt.Description("tip:N")
    )
    limit = make_chart([{"mean": -choice.limits.budget}])
    chart += limit.mark_rule(color=INK, strokeDash=[4, 3]).encode(x=alt.X("mean:Q"))
    marked = [
        _search_record(choice, each, choice.rungs[-1].rounds, 1.0)
        | {
            "role": _mark_label(role, each.candidate.method),
            "shape": SHAPES[role.partition(",")[0]],
        }
        for role, each in list_points(choice)
        if role != "neighbour" and not each.failed
    ]
    base = make_chart(marked).encode(x=x, y=y)
    chart += base.mark_point(filled=True, size=110, color=colour, opacity=1).encode(
        shape=alt.Shape("shape:N", scale=None), description=alt.Description("tip:N")
    )
    keys = ("value", "mean")
    labels = label_layers([(r["mean"], r["value"], r["role"]) for r in marked], across, up)
    chart = chart if labels is None else chart + labels
    return Figure(
        "tuning-search",
        "Every point of the search",
        f"{HELD_OUT} Up: more of what the theory wants; right: a better mean. Left of the dashed "
        "line is beyond the budget. Faint points were trained for fewer rounds.",
        finish(chart, width, HEIGHT),
        ["Point", "Rounds", MEASURES[choice.theory], f"Mean, {unit}", "Limits"],
        [
            [r["name"], str(r["rounds"]), *(number(r[k], 2, "+") for k in keys), r["limits"]]
            for r in records
        ],
    )


def _search_record(
    choice: HeldOutChoice, each: CandidateScore, rounds: int, opacity: float
) -> dict[str, Any]:
    limits = "broken" if each.broken else "kept"
    name = name_method(each.candidate.method)
    return {
        "name": name,
        "rounds": rounds,
        "mean": each.mean,
        "value": each.value,
        "opacity": opacity,
        "limits": limits,
        "tip": f"{name}, {rounds} rounds: measure {number(each.value, 2, '+')}, mean "
        f"{choice.score.say_gain(number(each.mean, 2, '+'))}, limits {limits}",
    }


def _points_figure(choice: HeldOutChoice, width: int) -> Figure:
    """Draw the measure of the chosen point, the defaults and the neighbours, with its error."""
    alt = import_altair()
    colour = THEORY_COLOURS.get(choice.theory, INK)
    records: list[dict[str, Any]] = []
    for role, each in list_points(choice):
        if each.failed:
            continue
        name, error = f"{role}: {name_method(each.candidate.method)}", each.error or 0.0
        label = _short_label(role, each.candidate.method, choice.chosen.candidate.method)
        records.append(
            {
                "label": label,
                "name": name,
                "value": each.value,
                "low": each.value - error,
                "high": each.value + error,
                "colour": NEUTRAL if each.broken else colour,
                "shape": SHAPES[role.partition(",")[0]],
                "error": each.error,
                "limits": "broken" if each.broken else "kept",
                "tip": f"{name}: {number(each.value, 2, '+')} ± {number(each.error, 2)}",
            }
        )
    base = make_chart(records).encode(
        y=alt.Y("label:N", title=None, sort=None, axis=alt.Axis(labelLimit=190)),
        color=alt.Color("colour:N", scale=None),
        description=alt.Description("tip:N"),
    )
    scale = alt.Scale(zero=False)
    chart = base.mark_rule(strokeWidth=2, opacity=0.55).encode(
        x=alt.X("low:Q", title=_measure_axis(choice), scale=scale), x2=alt.X2("high:Q")
    )
    chart += base.mark_point(filled=True, size=60, opacity=1).encode(
        x=alt.X("value:Q", scale=scale), shape=alt.Shape("shape:N", scale=None)
    )
    return Figure(
        "tuning-neighbours",
        "The chosen point, the defaults and the neighbours",
        "Lines: one standard error over seeds. Where neighbours lie close to the chosen point, "
        "little depends on its exact numbers. Grey: breaks a limit.",
        finish_rows(chart, round(ROOM * width), len(records)),
        ["Point", MEASURES[choice.theory], "Standard error", "Limits"],
        [
            [r["name"], number(r["value"], 2, "+"), number(r["error"], 2), r["limits"]]
            for r in records
        ],
    )


def _short_label(role: str, method: Method, chosen: Method) -> str:
    """Return a name for the side of a figure; of a neighbour only what differs from the choice."""
    if role != "neighbour" or method.spec_name != chosen.spec_name:
        return f"{role}: {name_method(method)}"
    here, there = method.params, chosen.params
    differs = {key: value for key, value in here.items() if value != there.get(key)}
    return printable(f"neighbour: {format_parameters(differs)}")


def _mark_label(role: str, method: Method) -> str:
    """Return the name of a marked point: there may be two defaults."""
    changed = method.changed_text if role == "default" else ""
    return printable(f"{role}: {changed}") if changed else role


def _client_figures(choice: HeldOutChoice, width: int) -> list[Figure]:
    """Draw what each client has at the chosen point and by default, and the floors."""
    alt = import_altair()
    chosen, default = choice.chosen.clients or {}, choice.default.clients or {}
    floors, score = choice.limits.floors, choice.score
    digits = 1 if score.percent else score.digits
    if not chosen or len(chosen) > MOST_CLIENTS:
        return []
    clients = sort_ids(chosen)
    records = [
        {
            "client": printable(client),
            "score": values[client],
            "what": what,
            "tip": f"{printable(client)}, {what}: {number(values[client], digits)}{score.unit}",
        }
        for client in clients
        for what, values in (("chosen", chosen), ("default", default))
        if client in values
    ]
    scale = alt.Scale(zero=False, padding=12)
    x = alt.X("score:Q", title=_with_unit(f"{score.heading} on held-out data", score), scale=scale)
    y = alt.Y("client:N", title=None, sort=None)
    colours = alt.Scale(
        domain=["chosen", "default"], range=[THEORY_COLOURS.get(choice.theory, GAIN), MUTED]
    )
    shapes = alt.Scale(domain=["chosen", "default"], range=["diamond", "square"])
    chart = make_chart(records).mark_point(filled=True, size=60, opacity=1)
    chart = chart.encode(
        x=x,
        y=y,
        color=alt.Color("what:N", title=None, sort=None, scale=colours),
        shape=alt.Shape("what:N", title=None, sort=None, scale=shapes),
        description=alt.Description("tip:N"),
    )
    if floors:
        ticks = [{"client": printable(c), "score": floor} for c, floor in floors.items()]
        chart += make_chart(ticks).mark_tick(color=INK, thickness=3, size=13).encode(x=x, y=y)
    return [
        Figure(
            "tuning-clients",
            "Each client at the chosen point and by default",
            "Mean over seeds." + (" Ticks: the floors that were asked for." if floors else ""),
            finish_rows(chart, width, len(clients)),
            ["Client", *(_with_unit(what, score) for what in ("Chosen", "Default", "Floor"))],
            [
                [printable(c), *(number(own.get(c), digits) for own in (chosen, default, floors))]
                for c in clients
            ],
        )
    ]


def _with_unit(text: str, score: ScoreKind) -> str:
    return f"{text}, {score.unit}" if score.unit else text


def _cost_figure(choice: HeldOutChoice, width: int) -> Figure:
    alt = import_altair()
    costs = {"this search": choice.cost, "a plain grid": choice.grid_cost}
    records = [
        {"what": what, "cost": cost, "tip": f"{what}: {number(cost)} trainings"}
        for what, cost in costs.items()
    ]
    bars = make_chart(records).mark_bar(color=NEUTRAL, opacity=0.85, height=ROW - 5)
    chart = bars.encode(
        x=alt.X("cost:Q", title="Whole trainings for each seed"),
        y=alt.Y("what:N", title=None, sort=None),
        description=alt.Description("tip:N"),
    )
    rungs = "; ".join(f"{points} for {rounds}" for rounds, points, _ in list_rungs(choice))
    return Figure(
        "tuning-cost",
        "What the search cost",
        "A plain grid trains as many points for all rounds; the search trained most of them for "
        f"fewer. Points and rounds of the rungs: {rungs}.",
        finish_rows(chart, width, len(records)),
        ["What", "Trainings for each seed"],
        [[what, number(cost)] for what, cost in costs.items()],
    )
