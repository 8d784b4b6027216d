"""A figure: a chart, what it is called, and the numbers behind it."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from udjfl._ids import printable
from udjfl.errors import SettingsError
from udjfl.methods import Method
from udjfl.report.html.svg import MISSING
from udjfl.report.html.theme import (
    INK,
    NEUTRAL,
    OTHER_SHAPE,
    REFERENCE_SHAPE,
    THEORY_COLOURS,
    THEORY_SHAPES,
)
from udjfl.simulation.method_summary import MethodSummary

if TYPE_CHECKING:
    import altair

ROW = 17  # pixels of one method or client in a figure
BESIDE_NAMES = 0.78  # of the width, where names of methods or clients stand beside the plot
TICKS = 6  # at most about so many numbers on an axis: more would touch on a phone
WIDTH = 300  # pixels of the plot itself: legible on a phone, and enlarged where there is room


@dataclass(frozen=True)
class Figure:
    """One figure.

    name     of its files, and of its parts on a page
    title    one line that stands above it, and its name for screen readers
    caption  how to read it
    chart    an Altair chart
    columns  headings of the table behind it
    rows     that table
    """

    name: str
    title: str
    caption: str
    chart: altair.TopLevelMixin
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


def import_altair() -> Any:
    """Import Altair, or say how to install it."""
    try:
        import altair
    except ImportError:
        raise SettingsError(MISSING) from None
    return altair


def without_checks() -> contextlib.AbstractContextManager[None]:
    """Return a context in which charts are made without checking each part: five times as fast.

    The tests check all charts.
    """
    import_altair()
    from altair.utils.schemapi import debug_mode

    context: contextlib.AbstractContextManager[None] = debug_mode(False)
    return context


def make_chart(values: Sequence[Mapping[str, Any]]) -> Any:
    """Return a chart of these records.

    They are a tuple, which Altair does not copy with every step of making a chart.
    """
    alt = import_altair()
    return alt.Chart(alt.Data(values=tuple(values)))


def finish(chart: Any, width: int, height: int) -> Any:
    """Give a chart its size. Colours and fonts are set where it is rendered or shown."""
    return chart.properties(width=width, height=height)


def finish_rows(chart: Any, width: int, rows: int) -> Any:
    """Give a chart with so many rows its size; it is narrower, as their names stand beside it."""
    return finish(chart, round(BESIDE_NAMES * width), ROW * max(1, rows))


@dataclass(frozen=True)
class MethodStyle:
    """The name, colour and shape that stand for a method in every figure."""

    name: str
    colour: str
    shape: str


def style_of(row: MethodSummary, is_reference: bool = False) -> MethodStyle:
    """Return the style of a method: that of its theory, if it serves one alone."""
    name = method_name(row)
    if is_reference:
        return MethodStyle(name, INK, REFERENCE_SHAPE)
    theory = row.theories[0] if len(row.theories) == 1 else ""
    return MethodStyle(
        name, THEORY_COLOURS.get(theory, NEUTRAL), THEORY_SHAPES.get(theory, OTHER_SHAPE)
    )


def method_name(row: MethodSummary) -> str:
    """Return a short name: of the theory or method, what was changed, and the service."""
    return name_method(row.method, row.service)


def name_method(method: Method, service: str = "none") -> str:
    """Return the short name of a method, with a service if there is one."""
    parts = (method.short, method.changed_text, "" if service == "none" else f"served {service}")
    return printable(" ".join(part for part in parts if part))


def number(value: float | None, digits: int = 1, sign: str = "") -> str:
    """Return a number as text; a dash where there is none.

    Sums in another order differ in the last bits: halves are rounded alike all the same.
    """
    if value is None:
        return "–"
    return f"{round(round(value, digits + 6), digits) + 0.0:{sign}.{digits}f}"


def interval(ends: Sequence[float] | None, digits: int = 1) -> str:
    """Return an interval as text; empty where there is none."""
    return "" if ends is None else f"{number(ends[0], digits)} to {number(ends[1], digits)}"
