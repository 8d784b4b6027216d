"""A tuned point on a terminal."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rich.console import Console
from small_runs import make_federation

from udjfl.report.tune_table import remark_on_choice, tune_view
from udjfl.search.settings import TuneSettings
from udjfl.search.tune import Tuned, tune


@pytest.fixture(scope="module")
def tuned() -> Tuned:
    small = {"rounds": 3, "hidden": 8, "uncertainty_epochs": 2, "seeds": [0, 1], "workers": 1}
    settings = TuneSettings(theory="desert", budget=50.0, cost=14.0, **small)
    return tune(settings, data=lambda seed: make_federation(seed=seed))


@pytest.mark.parametrize("width", [70, 120])
def test_it_has_the_choice_the_neighbours_the_search_and_the_test(tuned: Tuned, width: int) -> None:
    console = Console(width=width, highlight=False)
    with console.capture() as capture:
        console.print(tune_view(tuned))
    text = capture.get()
    assert max(map(len, text.splitlines())) <= width
    words = " ".join(text.split())
    for part in (
        "Chosen for the desert theory: UDJ-FL desert",
        "within a budget of 50 points",
        "Slope, steeper",
        "The search",
        "a plain grid of as many points",
        "The test, on test data that nothing above has seen",
        "Was the theory delivered?",
    ):
        assert part in words


def test_every_point_that_breaks_a_limit_is_explained(tuned: Tuned) -> None:
    choice = tuned.choice
    one = replace(choice.default, broken={"budget": 0.62})
    two = replace(choice.neighbours[0], broken={"north has 61.0": 4.0})
    changed = replace(choice, default=one, neighbours=(two, *choice.neighbours[1:]))
    explained = [remark for remark in remark_on_choice(changed) if remark.startswith("!")]
    labels = [each.candidate.method.label for each in (one, two)]
    assert explained == [
        f"! breaks a limit: {labels[0]}: budget by 0.6; {labels[1]}: north has 61.0 by 4.0."
    ]


@pytest.mark.parametrize(
    ("theory", "gain", "moved", "is_said"),
    [
        ("desert", -0.21, 1.0, True),
        ("desert", 0.0, 1.0, True),
        ("desert", 0.3, 1.0, False),
        ("desert", -0.21, -1.0, False),  # the measure is not better
        ("utilitarian", -0.21, 1.0, False),  # its measure is on shared data, not of these clients
    ],
)
def test_a_choice_that_levels_down_says_so(
    tuned: Tuned, theory: str, gain: float, moved: float, is_said: bool
) -> None:
    chosen = replace(tuned.choice.chosen, gain=gain, moved=(moved, moved))
    remarks = " ".join(remark_on_choice(replace(tuned.choice, chosen=chosen, theory=theory)))
    assert ("better only because others lose" in remarks) == is_said
    assert (f"({gain:+.2f})" in remarks) == is_said


def test_why_a_point_with_a_better_measure_was_not_chosen(tuned: Tuned) -> None:
    choice = tuned.choice
    rest = [each for each in choice.rungs[-1].scores if each != choice.chosen]
    for near, words in ((True, "keeps the budget by less than one standard error"), (False, "")):
        best = replace(rest[0], near=near)
        rungs = (*choice.rungs[:-1], replace(choice.rungs[-1], scores=(best, *rest[1:])))
        remarks = " ".join(remark_on_choice(replace(choice, rungs=rungs)))
        assert words in remarks
        assert (best.candidate.method.label in remarks) == near
