"""Places for the names of points, so that no name covers another.

A name stands beside its point where there is room; else further away, with a line to its point.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from udjfl.metrics import Metric
from udjfl.report.html.figure import import_altair, make_chart
from udjfl.report.html.score_text import is_reversed
from udjfl.report.html.theme import INK, MUTED

FONT_SIZE, LETTER = 9, 5.1  # pixels; the mean width of a letter at this size
LINE = 11.0  # pixels from one line of text to the next
GAP = 7.0  # between a point and its name
STEPS = 9  # lines up or down that a name may be away from its point
MARGIN = 0.06  # of the range, at both ends of an axis


@dataclass(frozen=True)
class Axis:
    """An axis of a chart: the values at its two ends, and its length in pixels."""

    start: float
    end: float
    length: float

    @classmethod
    def around(cls, values: Sequence[float], length: float, reverse: bool = False) -> Axis:
        """Return an axis with room around these values."""
        low, high = min(values), max(values)
        room = MARGIN * (high - low) or 1.0
        ends = (low - room, high + room)
        return cls(*(ends[::-1] if reverse else ends), length)

    @classmethod
    def of_metric(cls, metric: Metric, values: Sequence[float], length: float) -> Axis:
        """Return an axis of a metric."""
        return cls.around(values, length, is_reversed(metric))

    def pixel(self, value: float) -> float:
        """Return where a value is, in pixels from the start."""
        return (value - self.start) / (self.end - self.start) * self.length

    def value(self, pixel: float) -> float:
        """Return the value at a pixel."""
        return self.start + pixel / self.length * (self.end - self.start)

    @property
    def scale(self) -> Any:
        """The scale of the chart."""
        alt = import_altair()
        low, high = sorted((self.start, self.end))
        return alt.Scale(domain=[low, high], nice=False, zero=False, reverse=self.end < self.start)


@dataclass(frozen=True)
class Box:
    """A rectangle in pixels."""

    left: float
    right: float
    low: float
    high: float

    def meets(self, other: Box) -> bool:
        """Tell if the two have a point in common."""
        apart = self.right < other.left or other.right < self.left
        return not (apart or self.high < other.low or other.high < self.low)


def label_layers(
    points: Sequence[tuple[float, float, str]],
    across: Axis,
    up: Axis,
    others: Sequence[tuple[float, float]] = (),
) -> Any:
    """Return the names of points as layers of a chart; None without names.

    `others` are points without a name that names should not cover.
    """
    alt = import_altair()
    records = place_labels(points, across, up, others)
    if not records:
        return None
    x = alt.X("x:Q", scale=across.scale)
    y = alt.Y("y:Q", scale=up.scale)
    chart = None
    for align in ("left", "right"):
        own = [record for record in records if record["align"] == align]
        if own:
            marks = make_chart(own).mark_text(
                align=align, baseline="middle", fontSize=FONT_SIZE, color=INK, aria=False
            )
            layer = marks.encode(x=x, y=y, text=alt.Text("name:N"))
            chart = layer if chart is None else chart + layer
    moved = [record for record in records if record["moved"]]
    if moved:
        lines = make_chart(moved).mark_rule(color=MUTED, strokeWidth=0.7, aria=False)
        chart += lines.encode(x=x, y=y, x2=alt.X2("to_x:Q"), y2=alt.Y2("to_y:Q"))
    return chart


def place_labels(
    points: Sequence[tuple[float, float, str]],
    across: Axis,
    up: Axis,
    others: Sequence[tuple[float, float]] = (),
) -> list[dict[str, Any]]:
    """Return for each name where it stands and to which side it goes, in the order given."""
    pixels = [(across.pixel(x), up.pixel(y)) for x, y in (*((x, y) for x, y, _ in points), *others)]
    taken = [Box(x - 4, x + 4, y - 4, y + 4) for x, y in pixels]
    records = []
    for (x, y, name), (px, py) in zip(points, pixels, strict=False):
        box, align = _find_room(px, py, LETTER * len(name), taken, across.length, up.length)
        taken.append(box)
        edge, middle = box.left if align == "left" else box.right, (box.low + box.high) / 2
        moved = abs(middle - py) > LINE / 2
        records.append(
            {
                "name": name,
                "align": align,
                "x": across.value(edge),
                "y": up.value(middle),
                "moved": moved,
                "to_x": x,
                "to_y": y,
            }
        )
    return records


def _find_room(
    x: float, y: float, width: float, taken: Sequence[Box], right: float, top: float
) -> tuple[Box, str]:
    """Return the nearest free place for a name of this width; the last tried if none is free."""
    box, align = Box(x, x, y, y), "left"
    for step in range(STEPS + 1):
        for sign in (1, -1) if step else (1,):
            middle = y + sign * step * LINE
            for align in ("left", "right"):
                left = x + GAP if align == "left" else x - GAP - width
                box = Box(left, left + width, middle - LINE / 2 + 1, middle + LINE / 2 - 1)
                inside = box.left >= 0 and box.right <= right and box.low >= 0 and box.high <= top
                if inside and not any(box.meets(other) for other in taken):
                    return box, align
    return box, align
