"""The section "Was the theory delivered?" on the screen."""

from __future__ import annotations

import io

import pytest
from paired_comparison import compare_gains
from rich.console import Console, Group

from udjfl.methods import method
from udjfl.report.verdict_lines import COLOURS, verdict_parts
from udjfl.simulation.comparison import Comparison
from udjfl.verdicts import KINDS

GAINS = {
    method("rawls"): (0, 0, 0, 0, 4),
    method("afl"): (-4, -4, -4, -4, -1),
    method("desert"): (0.1, 0, 0, 0, 0),
}


def printed(comparison: Comparison, width: int, colours: bool = False) -> str:
    console = Console(
        file=io.StringIO(),
        width=width,
        highlight=False,
        force_terminal=colours,
        color_system="standard" if colours else None,
    )
    console.print(Group(*verdict_parts(comparison, width)))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("width", [60, 80, 120])
def test_every_sentence_is_shown_whole(width: int) -> None:
    comparison = compare_gains(GAINS)
    text = printed(comparison, width)
    assert all(len(line.rstrip()) <= width for line in text.splitlines())
    assert "…" not in text
    words = text.split()
    for row in comparison.verdicts:
        for verdict in row:
            assert set(verdict.sentence.split()) <= set(words)
    assert "corrected for the 3 tests (Holm) here" in " ".join(words)
    assert "Budget: 2 points of the clients' mean accuracy." in " ".join(words)


def test_the_theory_is_named_unless_the_method_says_it() -> None:
    text = printed(compare_gains(GAINS), 120)
    assert "UDJ-FL rawls  " in text
    assert "AFL, rawls" in text


def test_every_kind_has_a_colour() -> None:
    assert set(COLOURS) == set(KINDS)
    assert {kind for kind, colour in COLOURS.items() if colour == "green"} == {"kept"}
    text = printed(compare_gains(GAINS), 120, colours=True)
    assert "\x1b[32mkept\x1b[0m: " in text
    assert "\x1b[31mlevelled down\x1b[0m: " in text


def test_without_a_theory_there_is_no_section() -> None:
    assert verdict_parts(compare_gains({}), 80) == []
