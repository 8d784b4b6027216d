"""The candidates of a search, the choice among them, and how it is shown."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping

import pytest
from rich.console import Console

from udjfl.paper.claims import judge_table
from udjfl.paper.profiles import PROFILES
from udjfl.paper.search_choice import (
    LEARNING_RATES,
    TESTED,
    Candidate,
    SearchOutcome,
    fedavg_name,
    find_outcomes,
    search_document,
    search_ranges,
)
from udjfl.paper.search_choice import _best as choose_best
from udjfl.paper.search_table import search_markdown, search_view
from udjfl.paper.tables import Row, SearchTable
from udjfl.statistics import summarise

# --- Candidates ---


def test_the_ranges_of_the_appendix():
    assert LEARNING_RATES == (0.1, 0.01, 0.001)
    tried = [
        (one.theory, one.title, one.parameter, one.values)
        for one in search_ranges(PROFILES["paper"])
    ]
    assert tried == [
        ("utilitarian", "PropFair", "M", (2, 3, 4, 5)),
        ("utilitarian", "q-FFL", "q", (0, 0.1, 1, 2, 5)),
        ("utilitarian", "UDJ-FL", "beta", (0, 0.1, 0.5)),
        ("egalitarian", "TERM", "t", (0.01, 0.1, 0.5)),
        ("egalitarian", "FedMGDA+", "epsilon", (0.05, 0.1, 0.5)),
        ("rawls", "PropFair", "M", (2, 3, 4, 5)),
        ("rawls", "q-FFL", "q", (0, 0.1, 1, 2, 5)),
        ("rawls", "UDJ-FL", "beta", (1, 2, 5)),
        ("desert", "CFFL", "alpha", (1, 2, 3, 4, 5)),
    ]


@pytest.mark.parametrize("profile", PROFILES)
def test_candidates_have_the_values_of_their_range(profile):
    for one in search_ranges(PROFILES[profile]):
        assert [candidate.params[one.parameter] for candidate in one.methods] == list(one.values)
        if one.title == "q-FFL":
            assert {candidate.params["lipschitz"] for candidate in one.methods} == {"paper"}


@pytest.mark.parametrize(
    ("profile", "steps"), [("paper", ["safe"] * 6), ("authors", ["normalised"] + ["authors"] * 5)]
)
def test_the_step_of_the_profile_where_it_is_defined(profile, steps):
    ours = [
        candidate
        for one in search_ranges(PROFILES[profile])
        if one.title == "UDJ-FL"
        for candidate in one.methods
    ]
    assert [candidate.params["step"] for candidate in ours] == steps


# --- The choice, with scores made by hand ---


def best_of(theory: str, *scores: list[float | None]) -> int | None:
    """Return the index of the chosen candidate, given each candidate's values over seeds."""
    tried = [Candidate(0.1, index, "", summarise(values)) for index, values in enumerate(scores)]
    taken = choose_best(theory, tried)
    return None if taken is None else int(taken.value)


@pytest.mark.parametrize(
    ("theory", "better"), [("utilitarian", 1), ("rawls", 1), ("egalitarian", 0), ("desert", 0)]
)
def test_the_best_mean_in_the_direction_of_the_theory(theory, better):
    # Means 2 and 3: high is better for accuracy and Psi, low for STD and r. The best single seed
    # belongs to the other candidate.
    scores = [[2.0, 2.0], [5.0, 1.0]]
    assert best_of(theory, *scores) == better
    assert best_of(theory, *scores[::-1]) == 1 - better
    # Below zero too.
    assert best_of(theory, [-2.0, -2.0], [-1.0, -1.0]) == better


def test_of_equal_candidates_the_first_is_chosen():
    assert best_of("rawls", [1.0, 3.0], [2.0, 2.0]) == 0
    assert best_of("egalitarian", [3.0, 3.0], [1.0, 3.0], [2.0, 2.0]) == 1


def test_a_candidate_that_failed_on_some_seed_is_not_chosen():
    assert best_of("rawls", [9.0, None], [1.0, 1.0]) == 1
    assert best_of("rawls", [9.0, None], [None, None]) is None
    assert best_of("rawls") is None


def make_table(
    means: Mapping[str, float], measures: Mapping[str, float] | None = None, tested: str = ""
) -> SearchTable:
    """Return a table with these mean accuracies and measures by row, 80 and 5 by default.

    Two seeds differ by 2. All metrics but the mean are the measure.
    """
    names = [fedavg_name(lr) for lr in LEARNING_RATES]
    names += [
        each.row_name(value, lr)
        for each in search_ranges(PROFILES["paper"])
        for lr in LEARNING_RATES
        for value in each.values
    ]
    rows = []
    for name in [*dict.fromkeys(names), *([tested] if tested else [])]:
        measure = (measures or {}).get(name, 5.0)
        levels = {column.key: measure for column in SearchTable.columns}
        levels["mean_accuracy"] = means.get(name, 80.0)
        values = {key: summarise([level - 1, level + 1]) for key, level in levels.items()}
        rows.append(Row(name=name, values=values))
    return SearchTable(
        data="made up",
        profile="paper",
        seeds=(0, 1),
        rounds=9,
        rows=tuple(rows),
        published_for=None,
        same_data=False,
    )


def outcome_of(table: SearchTable, theory: str, title: str) -> SearchOutcome:
    (found,) = (
        one
        for one in find_outcomes(table)
        if (one.range.theory, one.range.title) == (theory, title)
    )
    return found


def test_a_model_that_has_learned_little_is_not_chosen():
    """TERM has the lowest STD at 0.001, where its mean is 60; FedAvg has 80 at its best rate."""
    low, near = "TERM: t=0.1, rate 0.001", "TERM: t=0.5, rate 0.01"
    means = {low: 60.0, near: 78.5, fedavg_name(0.01): 79.0, fedavg_name(0.001): 60.0}
    found = outcome_of(make_table(means, {low: 1.0, near: 3.0}), "egalitarian", "TERM")
    assert found.chosen is not None
    assert (found.chosen.name, found.chosen.lr, found.chosen.value) == (near, 0.01, 0.5)
    assert [one.name for one in found.candidates if one.left_out] == [low]
    # The limit is 2 points below the best FedAvg, whatever the rate of the candidate.
    just_out = make_table({**means, near: 77.9}, {low: 1.0, near: 3.0})
    chosen = outcome_of(just_out, "egalitarian", "TERM").chosen
    assert chosen is not None
    assert chosen.name == "TERM: t=0.01, rate 0.1"


def test_if_all_are_too_far_below_none_is_chosen():
    ranges = {each.title: each for each in search_ranges(PROFILES["paper"])}
    names = [ranges["TERM"].row_name(v, lr) for v in (0.01, 0.1, 0.5) for lr in LEARNING_RATES]
    table = make_table(dict.fromkeys(names, 50.0))
    found = outcome_of(table, "egalitarian", "TERM")
    assert (found.chosen, found.tested) == (None, None)
    plain = json.loads(json.dumps(search_document(table), allow_nan=False))["found"]
    assert [one["chosen"] for one in plain if one["method"] == "TERM"] == [None]
    row = " ".join(shown(table).partition("TERM")[2].splitlines()[0].split())
    assert row == "none near FedAvg – STD ↓ – – –"
    assert (
        "| egalitarian | TERM | t: 0.01, 0.1, 0.5 | 9 of 9 | none near FedAvg | – | STD ↓ | – | – "
        "| – |" in search_markdown(table, [])
    )


def shown(table: SearchTable) -> str:
    console = Console(width=80, file=io.StringIO())
    console.print(search_view(table, judge_table(table)))
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_the_view_and_the_markdown_of_a_search():
    best = "TERM: t=0.5, rate 0.01"
    table = make_table({}, {best: 3.0, best + TESTED: 4.0}, tested=best + TESTED)
    text = shown(table)
    assert text.startswith("Parameters for made up, profile paper: 2 seeds, 9 rounds\n")
    # 2 and 4: t(0.975, 1) s / sqrt(2) = 12.706
    assert (
        " ".join(text.partition("TERM")[2].splitlines()[0].split())
        == "t = 0.5 0.01 STD ↓ 3.00 ±12.71 4.00 ±12.71 4.00 ±12.71"
    )
    written = search_markdown(table, judge_table(table))
    assert (
        "| egalitarian | TERM | t: 0.01, 0.1, 0.5 | 0 of 9 | t = 0.5 | 0.01 | STD ↓ | "
        "3.00 ±12.71 | 4.00 ±12.71 | 4.00 ±12.71 |" in written
    )
    assert f"| {best} | 3.00 ±12.71 | 80.00 ±12.71 |" in written
    assert "the first gave the best results in all settings" in written
