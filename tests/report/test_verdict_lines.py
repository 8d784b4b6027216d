"""The section "Was the theory delivered?" on the screen."""

from __future__ import annotations

import io

import pytest
from paired_comparison import compare_gains
from rich.console import Console, Group

from udjfl.methods import method
from udjfl.report.verdict_lines import COLOURS, verdict_parts
from udjfl.simulation.comparison import Comparison
from udjfl.tasks import SCORES, ScoreKind
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


@pytest.mark.parametrize(
    ("name", "gain", "basis"),
    [
        ("accuracy", "client-5 gains +4.0 points", "in points. Gap"),
        ("auroc", "client-5 gains +4.0 points", "in points. Gap: AUROC"),
        # FedAvg's errors are 6, 10, 16, 26 and 32 hundredths, 18 in the mean: 4 are 22.2% of it.
        ("log-loss", "client-5 gains +22.2%", "in % of FedAvg's mean log loss; a lower log loss"),
        ("rmse", "client-5 gains +22.2%", "in % of FedAvg's mean RMSE; a lower RMSE is a gain"),
    ],
)
def test_gains_are_told_in_the_unit_of_the_score(name: str, gain: str, basis: str) -> None:
    kind = SCORES[name].kind
    comparison = compare_gains(GAINS, score=kind)
    text = " ".join(printed(comparison, 120).split())
    assert gain in text
    assert f"Gains are against FedAvg, {basis}" in text
    assert f"mean {kind.title}." in text
    if not kind.percent:
        assert "points" not in text
        assert "accuracy" not in text
    [[kept], [harmed]] = [comparison.verdicts[row] for row in (1, 2)]
    assert kept.kind == "kept"
    assert harmed.kind in ("over budget", "levelled down")
    assert "client-1 pays most (-" in harmed.sentence


def test_a_score_without_a_scale_is_never_at_its_ceiling() -> None:
    """In hundredths of FedAvg's mean, that mean is 100 whatever it is."""
    own = ScoreKind("own", "own", percent=False)
    gains = {method("utilitarian"): (0.1, -0.1, 0.1, -0.1, 0)}
    [verdict] = compare_gains(gains, score=own).verdicts[1]
    assert verdict.kind == "not decided"
