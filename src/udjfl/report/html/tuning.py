"""A tuning on the page: what was chosen, from which points, within which limits."""

from __future__ import annotations

from dataclasses import dataclass

from udjfl._ids import printable
from udjfl.report.html.figure import name_method
from udjfl.report.html.tables import Cell, Table
from udjfl.report.tune_table import (
    RUNG_HEADINGS,
    list_points,
    list_rungs,
    point_cells,
    point_headings,
    remark_on_choice,
    say_cost,
    say_held_out,
    say_limits,
)
from udjfl.search.tune import HeldOutChoice


@dataclass(frozen=True)
class Tuning:
    """The words and tables of a tuning."""

    chosen: str
    limits: str
    remarks: list[str]
    points: Table
    rungs: Table
    cost: str


def describe_tuning(choice: HeldOutChoice) -> Tuning:
    """Collect what the page says of a choice."""
    held_out = say_held_out(choice)
    points = [
        [Cell(f"{role}: {name_method(each.candidate.method)}"), *map(Cell, point_cells(each))]
        for role, each in list_points(choice)
    ]
    rungs = [[Cell(printable(cell)) for cell in cells] for cells in list_rungs(choice)]
    remarks = (
        [held_out, "! breaks a limit."]
        if any(e.broken for _, e in list_points(choice))
        else [held_out]
    )
    return Tuning(
        f"{name_method(choice.chosen.candidate.method)}, for the {choice.theory} theory",
        printable(say_limits(choice)),
        [printable(remark) for remark in remark_on_choice(choice)],
        Table(["Point", *point_headings(choice)], points, remarks),
        Table(list(RUNG_HEADINGS), rungs, []),
        say_cost(choice),
    )
