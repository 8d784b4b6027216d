"""Charts as SVG for a page: without a network, small, and with text to show on hover."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from udjfl.errors import SettingsError
from udjfl.report.html.theme import FONT_SIZE, INK, chart_config

if TYPE_CHECKING:
    import altair

NAMESPACE = "http://www.w3.org/2000/svg"
LONG_NUMBER = re.compile(r"-?\d+\.\d{2,}(?:e-?\d+)?")
# Attributes with the value that they have anyway, or that only Vega's own scripts read.
DROPPED = ("class", "pointer-events", "role", "aria-roledescription", "aria-hidden")
DEFAULTS = {"opacity": "1", "stroke-width": "1", "fill-opacity": "1", "stroke-opacity": "1"}
CIRCLE = re.compile(r"M(-?[\d.]+),0A\1,\1,0,1,1,-\1,0A\1,\1,0,1,1,\1,0")
# Attributes that can refer to an id; any other may have a text that only looks like it.
REFERENCES = ("clip-path", "fill", "stroke", "mask", "filter")
REFERENCE = re.compile(r"url\(#(.*)\)")
GEOMETRY = ("d", "transform", "x", "y", "x1", "y1", "x2", "y2", "width", "height")
MISSING = "a report needs more packages; install them with: pip install 'udjfl[report]'"


def render_svg(chart: altair.TopLevelMixin, name: str) -> str:
    """Render a chart; `name` makes its ids unique on a page."""
    svg = import_converter().vegalite_to_svg(chart_spec(chart), show_warnings=False)
    root = ElementTree.fromstring(svg)
    # Vega counts ids on from chart to chart; here each chart has its own, whatever came before it.
    found = [element.attrib["id"] for element in root.iter() if "id" in element.attrib]
    ids = {old: f"{name}-{number}" for number, old in enumerate(found, start=1)}
    for element in root.iter():
        element.tag = element.tag.removeprefix(f"{{{NAMESPACE}}}")
        _clean(element, ids)
    _drop_empty(root)
    for key in ("width", "height"):
        root.set(key, str(round(float(root.get(key, "0")))))
    root.set("aria-hidden", "true")  # the figure around it has the name, and a table
    root.set("focusable", "false")
    return ElementTree.tostring(root, encoding="unicode")


def import_converter() -> Any:
    """Import vl-convert, or say how to install it."""
    try:
        import vl_convert
    except ImportError:
        raise SettingsError(MISSING) from None
    return vl_convert


def chart_spec(chart: altair.TopLevelMixin) -> dict[str, Any]:
    """Return the Vega-Lite specification of a chart, with our colours and fonts.

    It is not checked against the schema, which would take longer than drawing; the tests do that.
    """
    spec: dict[str, Any] = chart.to_dict(validate=False)
    return {**spec, "config": chart_config()}


def _clean(element: ElementTree.Element, ids: Mapping[str, str]) -> None:
    label = element.attrib.pop("aria-label", None)
    is_mark = element.get("aria-roledescription") not in (None, "axis", "legend", "title")
    if label and is_mark and element.get("aria-roledescription") != "group mark container":
        element.set("data-tip", label)
    for key in DROPPED:
        element.attrib.pop(key, None)
    for key, value in list(element.attrib.items()):
        if DEFAULTS.get(key) == value or key == "font-family":
            del element.attrib[key]
        elif key in GEOMETRY:
            element.set(key, LONG_NUMBER.sub(_round, value))
        elif key == "id":
            element.set(key, ids[value])
        elif key in REFERENCES and (found := REFERENCE.fullmatch(value)):
            element.set(key, f"url(#{ids.get(found[1], found[1])})")
    _shorten(element)


def _shorten(element: ElementTree.Element) -> None:
    """Write circles as circles, and leave out what the page's style sheet says once for all."""
    circle = CIRCLE.fullmatch(element.get("d", ""))
    if circle:
        element.tag = "circle"
        del element.attrib["d"]
        element.set("r", circle[1])
    if "stroke" not in element.attrib:
        element.attrib.pop("stroke-width", None)
    if element.tag == "text":
        for key, value in {"font-size": f"{FONT_SIZE}px", "fill": INK}.items():
            if element.get(key) == value:
                del element.attrib[key]


def _round(number: re.Match[str]) -> str:
    return f"{float(number[0]):.1f}".removesuffix(".0")


def _drop_empty(element: ElementTree.Element) -> None:
    """Drop groups without content and invisible paths, most of what Vega writes."""
    for child in list(element):
        _drop_empty(child)
        empty_group = child.tag == "g" and not len(child)
        invisible = child.tag == "path" and (
            child.get("display") == "none" or not (child.get("fill") or child.get("stroke"))
        )
        if empty_group or (invisible and child.get("data-tip") is None):
            element.remove(child)
