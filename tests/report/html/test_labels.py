"""Names of points: none covers another, and each is inside the chart."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from udjfl.report.html.labels import LETTER, LINE, Axis, Box, place_labels

NAMES = ("FedAvg", "Rawls budget=2", "AFL", "TERM", "Desert", "q-FFL")


def boxes_of(points: list[tuple[float, float, str]], across: Axis, up: Axis) -> list[Box]:
    boxes = []
    for record in place_labels(points, across, up):
        edge, middle = across.pixel(record["x"]), up.pixel(record["y"])
        width = LETTER * len(record["name"])
        left = edge if record["align"] == "left" else edge - width
        boxes.append(Box(left, left + width, middle - LINE / 2 + 1, middle + LINE / 2 - 1))
    return boxes


@settings(deadline=None, max_examples=50)
@given(
    st.lists(
        st.tuples(st.floats(0, 100, width=16), st.floats(0, 100, width=16)),
        min_size=1,
        max_size=len(NAMES),
    )
)
def test_no_name_covers_another_or_leaves_the_chart(places: list[tuple[float, float]]) -> None:
    points = [(x, y, name) for (x, y), name in zip(places, NAMES, strict=False)]
    across = Axis.around([x for x, _ in places], 300)
    up = Axis.around([y for _, y in places], 240)
    boxes = boxes_of(points, across, up)
    for one, other in itertools.combinations(boxes, 2):
        assert not one.meets(other)
    for box in boxes:
        assert box.left > -1
        assert box.right < 301


def test_a_name_alone_stands_beside_its_point() -> None:
    across, up = Axis.around([0.0, 1.0], 300), Axis.around([0.0, 1.0], 240)
    [record] = place_labels([(0.2, 0.5, "AFL")], across, up)
    assert (record["align"], record["moved"], record["y"]) == ("left", False, 0.5)


def test_a_name_at_the_right_end_goes_to_the_left() -> None:
    across, up = Axis.around([0.0, 1.0], 300), Axis.around([0.0, 1.0], 240)
    [record] = place_labels([(1.0, 0.5, "Rawls budget=2")], across, up)
    assert record["align"] == "right"


def test_an_axis_can_run_from_high_to_low() -> None:
    axis = Axis.around([1.0, 3.0], 100, reverse=True)
    assert axis.pixel(3.0) < axis.pixel(1.0)
    assert axis.value(axis.pixel(2.5)) == 2.5
    assert axis.scale.to_dict()["reverse"]
