"""Colours: every one has its counterpart in dark mode, and can be seen on both backgrounds."""

from __future__ import annotations

import re

import pytest

from udjfl.report.html import theme
from udjfl.report.html.page import TEMPLATES

STYLE = (TEMPLATES / "page.css").read_text(encoding="utf-8")
COLOURS = {
    *(theme.INK, theme.MUTED, theme.RULE, theme.GAIN, theme.LOSS, theme.NEUTRAL),
    *theme.THEORY_COLOURS.values(),
    *theme.SERIES,
}


def luminance(colour: str) -> float:
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    light, dark = sorted([luminance(one), luminance(other)], reverse=True)
    return (light + 0.05) / (dark + 0.05)


def dark_background() -> str:
    dark = STYLE.split("prefers-color-scheme: dark", 1)[1]
    found = re.search(r"--card: (#\w{6})", dark)
    assert found
    return found[1]


def test_every_colour_is_replaced_in_dark_mode() -> None:
    assert set(theme.DARK) == COLOURS
    for colour in COLOURS:
        for kind in ("fill", "stroke"):
            assert f'svg [{kind}="{colour}"]' in STYLE


@pytest.mark.parametrize("colour", sorted(COLOURS - {theme.RULE}))
def test_colours_can_be_seen_on_both_backgrounds(colour: str) -> None:
    """At least 3 to 1 for graphics (WCAG 2.2, 1.4.11); text is 4.5 to 1."""
    needed = 4.5 if colour in (theme.INK, theme.MUTED) else 3.0
    assert contrast(colour, "#ffffff") >= needed
    assert contrast(theme.DARK[colour], dark_background()) >= needed
