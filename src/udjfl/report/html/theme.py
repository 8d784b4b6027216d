"""Colours and fonts of the figures.

The colours are Okabe and Ito's, darkened where they would be too light on white, and tell apart
for colour-blind readers; shapes and labels say the same once more. On a page, its style sheet
replaces each of these colours by a lighter one in dark mode (`templates/page.css`).
"""

from __future__ import annotations

from typing import Any

INK, MUTED, RULE = "#1c2128", "#57606a", "#d5dae0"
GAIN, LOSS, NEUTRAL = "#0b62a4", "#b3420a", "#6b7280"
THEORY_COLOURS = {
    "rawls": "#0b62a4",
    "egalitarian": "#08795a",
    "utilitarian": "#946200",
    "desert": "#a3407d",
}
THEORY_SHAPES = {
    "rawls": "circle",
    "egalitarian": "square",
    "utilitarian": "triangle-up",
    "desert": "diamond",
}
REFERENCE_SHAPE, OTHER_SHAPE = "cross", "triangle-down"
# For lines that stand beside each other, as clients over rounds.
SERIES = ("#0b62a4", "#b3420a", "#08795a", "#a3407d", "#946200", "#3b6f8f", "#6b4fa0", "#57606a")
DASHES = ([1, 0], [6, 3], [2, 2], [8, 3, 2, 3], [4, 2], [10, 3], [3, 5], [1, 3])
# Each colour in dark mode, on a page and in pictures of their own.
DARK = {
    INK: "#e8ebef",
    MUTED: "#a9b3be",
    RULE: "#3c454f",
    "#0b62a4": "#79b8ff",
    "#b3420a": "#ff9b66",
    NEUTRAL: "#a9b3be",
    "#08795a": "#56d3a6",
    "#946200": "#e8b84a",
    "#a3407d": "#ee9bcb",
    "#3b6f8f": "#8fc4e3",
    "#6b4fa0": "#bda6f0",
}
FONT_SIZE = 11
FONT = "DejaVu Sans, Helvetica, Arial, sans-serif"


def chart_config() -> dict[str, Any]:
    """Return the configuration that all figures share."""
    text = {"labelColor": INK, "titleColor": INK, "labelFont": FONT, "titleFont": FONT}
    sizes = {"labelFontSize": FONT_SIZE, "titleFontSize": FONT_SIZE, "titleFontWeight": "normal"}
    return {
        "background": "transparent",
        "font": FONT,
        "axis": {
            **text,
            **sizes,
            "gridColor": RULE,
            "ticks": False,
            "domain": False,
            "labelPadding": 4,
            "labelFlush": False,
            "labelOverlap": "greedy",
            "labelLimit": 130,
        },
        "legend": {**text, **sizes, "orient": "bottom", "columns": 2, "labelLimit": 150},
        "title": {
            "color": INK,
            "subtitleColor": MUTED,
            "subtitleFont": FONT,
            "font": FONT,
            "fontSize": 12,
            "anchor": "start",
        },
        "view": {"stroke": None},
    }
