"""Charts as SVG: small, the same every time, and safe to put on a page."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from udjfl.report.html.figure import import_altair, make_chart
from udjfl.report.html.svg import chart_spec, render_svg

HOSTILE = "<script>alert(1)</script>&\"'"


def chart(name: str = "a") -> object:
    alt = import_altair()
    values = [{"x": 1.23456, "y": name, "tip": f"{name} is here"}]
    return (
        make_chart(values)
        .mark_point()
        .encode(x="x:Q", y=alt.Y("y:N", title=None), description="tip:N")
        .properties(width=100, height=40)
    )


def test_the_same_chart_gives_the_same_bytes() -> None:
    assert render_svg(chart(), "one") == render_svg(chart(), "one")


def test_marks_have_their_text_and_axes_have_none() -> None:
    root = ElementTree.fromstring(render_svg(chart(), "one"))
    assert [mark.get("data-tip") for mark in root.iter() if mark.get("data-tip")] == ["a is here"]


def test_text_in_a_chart_is_escaped() -> None:
    svg = render_svg(chart(HOSTILE), "one")
    assert "<script" not in svg
    root = ElementTree.fromstring(svg)
    assert any(element.text and "<script>" in element.text for element in root.iter("text"))
    assert f"{HOSTILE} is here" in {element.get("data-tip") for element in root.iter()}


def test_a_name_that_looks_like_a_reference_is_a_text() -> None:
    root = ElementTree.fromstring(render_svg(chart("url(#clip0)"), "one"))
    assert "url(#clip0) is here" in {element.get("data-tip") for element in root.iter()}


def test_references_are_to_ids_of_the_chart() -> None:
    svg = render_svg(chart().mark_point(clip=True), "one")  # type: ignore[attr-defined]
    found = re.findall(r"url\(#([^)]*)\)", svg)
    assert found
    assert set(found) <= set(re.findall(r'id="([^"]*)"', svg))


def test_ids_are_unique_on_a_page() -> None:
    ids = re.findall(r'id="([^"]*)"', render_svg(chart(), "one"))
    assert all(name.startswith("one-") for name in ids)


def test_nothing_refers_outside() -> None:
    svg = render_svg(chart(), "one")
    assert not re.search(r"(href|src|url\((?!#))", svg.replace('xmlns="http', ""))


def test_a_specification_has_our_fonts() -> None:
    assert chart_spec(chart())["config"]["background"] == "transparent"
