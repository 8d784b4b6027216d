"""The search over parameters: its candidates, the data it uses, and its choice."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import udjfl
from udjfl.data import Federation
from udjfl.engine import StackedEngine
from udjfl.methods import Method, method
from udjfl.metrics import METRICS
from udjfl.paper import run as running
from udjfl.paper import search as searching
from udjfl.paper.profiles import PROFILES
from udjfl.paper.search import (
    LEARNING_RATES,
    Candidate,
    Search,
    SearchOutcome,
    SearchRange,
    search_parameters,
    search_ranges,
)
from udjfl.paper.search_table import search_markdown, search_view
from udjfl.settings import CompareSettings, ReproduceSettings
from udjfl.simulation.compare import run_comparison
from udjfl.simulation.comparison import Comparison
from udjfl.simulation.method_summary import MethodSummary
from udjfl.statistics import Summary, summarise

TWO = (
    SearchRange(
        "egalitarian", "TERM", "t", (method("term", t=0.01), method("term", t=0.5)), (0.01, 0.5)
    ),
    SearchRange("rawls", "q-FFL", "q", (method("qffl", q=0.1), method("qffl", q=5)), (0.1, 5)),
)


def small_settings(**changes: Any) -> ReproduceSettings:
    values = {"data": "dirty-digits", "rounds": 1, "epochs": 1, "seeds": 2, "workers": 1}
    return ReproduceSettings(**{**values, **changes})


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
    fedavg = method("fedavg")
    tried = [
        Candidate(0.1, index, fedavg, summarise(values)) for index, values in enumerate(scores)
    ]
    taken = searching._best(theory, tried)
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


Scored = Callable[[Method, float, bool], Sequence[float | None]]


def searched(
    monkeypatch: pytest.MonkeyPatch, score: Scored
) -> tuple[Search, list[tuple[bool, float, list[Method]]]]:
    """Search over TWO without training; `score` returns the values over seeds.

    Return the search and the calls that would have trained, in order.
    """
    calls: list[tuple[bool, float, list[Method]]] = []

    def trained(
        settings: Any, methods: Sequence[Method], lr: float, *_: Any, tuning: bool
    ) -> Comparison:
        calls.append((tuning, lr, list(methods)))
        rows = []
        for one in methods:
            metrics = {key: summarise(score(one, lr, tuning)) for key in METRICS}
            rows.append(MethodSummary(one, metrics, {}, {}, {}, {}, {}, []))
        return Comparison("made up", (0, 1), CompareSettings(), tuple(rows))

    monkeypatch.setattr(searching, "search_ranges", lambda profile: list(TWO))
    monkeypatch.setattr(searching, "_train", trained)
    return search_parameters(small_settings()), calls


def test_only_what_was_chosen_is_tested_and_only_at_its_learning_rate(monkeypatch):
    term, qffl = (one.methods for one in TWO)
    low, high = [1.0, 1.0], [7.0, 7.0]

    def score(one: Method, lr: float, tuning: bool) -> Sequence[float]:
        if not tuning:
            return [40.0, 60.0]
        return {(term[1], 0.01): low, (qffl[0], 0.001): [9.0, 9.0]}.get((one, lr), high)

    found, calls = searched(monkeypatch, score)
    assert calls == [
        *((True, lr, [*term, *qffl]) for lr in LEARNING_RATES),
        (False, 0.01, [term[1]]),
        (False, 0.001, [qffl[0]]),
    ]
    chosen = [
        (one.chosen.method, one.chosen.lr, one.chosen.value, one.chosen.score.mean)
        for one in found.outcomes
        if one.chosen
    ]
    assert chosen == [(term[1], 0.01, 0.5, 1.0), (qffl[0], 0.001, 0.1, 9.0)]
    assert [one.tested.metrics["std"].mean for one in found.outcomes if one.tested] == [50.0, 50.0]
    assert [len(one.candidates) for one in found.outcomes] == [6, 6]


def test_without_a_finished_candidate_none_is_chosen(monkeypatch):
    term = TWO[0].methods

    def score(one: Method, lr: float, tuning: bool) -> Sequence[float | None]:
        return [None, None] if one in term else [2.0, 2.0 + lr]

    found, calls = searched(monkeypatch, score)
    none, some = found.outcomes
    assert (none.chosen, none.tested) == (None, None)
    assert some.chosen is not None
    assert [call for call in calls if not call[0]] == [(False, 0.1, [TWO[1].methods[0]])]
    plain = json.loads(json.dumps(found.as_dict(), allow_nan=False))["found"]
    assert (plain[0]["chosen"], plain[0]["test"], plain[1]["chosen"]) == (
        None,
        None,
        {"lr": 0.1, "q": 0.1},
    )
    row = " ".join(shown(found).partition("TERM")[2].splitlines()[0].split())
    assert row == "none finished – STD ↓ – – –"
    assert (
        "| egalitarian | TERM | t: 0.01, 0.5 | none finished | – | STD ↓ | – | – | – |"
        in search_markdown(found)
    )


def test_without_any_finished_candidate_nothing_is_tested(monkeypatch):
    found, calls = searched(monkeypatch, lambda *_: [None, None])
    assert all(tuning for tuning, _, _ in calls)
    assert [(one.chosen, one.tested) for one in found.outcomes] == [(None, None)] * 2


def shown(found: Search, width: int = 80) -> str:
    console = Console(width=width, file=io.StringIO())
    console.print(search_view(found))
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_the_view_and_the_markdown_of_a_search():
    term = TWO[0].methods
    tried = tuple(
        Candidate(0.1, value, one, summarise([value, value + 2]))
        for one, value in zip(term, (0.01, 0.5), strict=True)
    )
    metrics = {key: Summary(12.345, (12.0, 12.69), (12.0, 12.69), 2) for key in METRICS}
    metrics["global_accuracy"] = Summary(91.0, None, (91.0,), 1)
    tested = MethodSummary(term[0], metrics, {}, {}, {}, {}, {}, [])
    found = Search("made up", "paper", (0, 1), 9, (SearchOutcome(TWO[0], tried, tried[0], tested),))
    text = shown(found)
    assert text.startswith("Parameters for made up, profile paper: 2 seeds, 9 rounds\n")
    # 1.01 and 3.01: t(0.975, 1) s / sqrt(2) = 12.706
    assert (
        " ".join(text.partition("TERM")[2].splitlines()[0].split())
        == "t = 0.01 0.1 STD ↓ 1.01 ±12.71 12.35 ±0.34 91.00"
    )
    written = search_markdown(found)
    assert "| egalitarian | TERM | 0.1 | t = 0.01 | STD ↓ | **1.01 ±12.71** |" in written
    assert "| egalitarian | TERM | 0.1 | t = 0.5 | STD ↓ | 1.50 ±12.71 |" in written


# --- Data: a search that trains ---


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Search, list[Any], Path, list[Any]]:
    """A search over TWO on the embedded digits.

    The search; the loaded federations and the comparisons, in order; the folder; the progress.
    """
    happened: list[Any] = []
    messages: list[Any] = []
    out = tmp_path_factory.mktemp("search")

    def load(*given: Any, tuning: bool) -> Federation:
        federation = udjfl.load(*given, tuning=tuning)
        happened.append(("load", tuning, federation))
        return federation

    def comparing(*given: Any, **more: Any) -> Comparison:
        found = run_comparison(*given, **more)
        happened.append(("compare", given[1], found))
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(searching, "search_ranges", lambda profile: list(TWO))
        patch.setattr(searching, "load", load)
        patch.setattr(running, "run_comparison", comparing)
        found = search_parameters(
            small_settings(), out, lambda event: messages.append(astuple(event))
        )
    return found, happened, out, messages


def test_test_data_are_loaded_only_after_the_choice(run):
    _, happened, _, _ = run
    order = [what for what, _, _ in happened]
    last_choice = [index for index, what in enumerate(order) if what == "compare"][
        len(LEARNING_RATES) - 1
    ]
    before = [tuning for what, tuning, _ in happened[:last_choice] if what == "load"]
    after = [tuning for what, tuning, _ in happened[last_choice:] if what == "load"]
    assert before
    assert all(before)
    assert after
    assert not any(after)


def test_held_out_examples_are_train_examples(run):
    """Of 320 train examples of a client 256 are left and 64 held out; no test example is used."""
    _, happened, _, _ = run
    tuning, final = (
        next(f for what, flag, f in happened if what == "load" and flag is wanted)
        for wanted in (True, False)
    )
    for held, whole in zip(tuning.clients, final.clients, strict=True):
        assert (len(held.train), len(held.test), len(whole.train), len(whole.test)) == (
            256,
            64,
            320,
            80,
        )
        images = {image.numpy().tobytes() for image in whole.train.x}
        assert {
            image.numpy().tobytes() for part in (held.train, held.test) for image in part.x
        } == images
        assert not images & {image.numpy().tobytes() for image in whole.test.x}


def test_scores_are_of_the_tuning_runs_and_tests_of_the_other_runs(run):
    found, happened, _, _ = run
    compared = [
        (methods, comparison) for what, methods, comparison in happened if what == "compare"
    ]
    scored = dict(zip(LEARNING_RATES, (comparison for _, comparison in compared[:3]), strict=True))
    assert [comparison.settings.training.lr for comparison in scored.values()] == list(
        LEARNING_RATES
    )
    tested = {comparison.settings.training.lr: comparison for _, comparison in compared[3:]}
    for one in found.outcomes:
        key = {"egalitarian": "std", "rawls": "psi"}[one.range.theory]
        for candidate in one.candidates:
            (row,) = (row for row in scored[candidate.lr].rows if row.method == candidate.method)
            assert candidate.score == row.metrics[key]
        means = [
            candidate.score.mean for candidate in one.candidates if candidate.score.mean is not None
        ]
        assert one.chosen is not None
        assert one.chosen.score.mean == (min(means) if key == "std" else max(means))
        assert one.tested in tested[one.chosen.lr].rows


def test_each_training_has_its_own_name_in_the_progress(run):
    """A progress bar would count three learning rates as one otherwise."""
    _, _, _, messages = run
    finished = [
        (name, seed)
        for name, seed, stage, done, total, *_ in messages
        if stage == "training" and done == total
    ]
    assert len(set(finished)) == len(finished)
    assert ("learning rate 0.01, FedAvg", 1) in finished
    assert any(name.startswith("test at ") for name, _ in finished)


def test_a_second_search_gives_the_same_without_training(run, monkeypatch):
    def train(*_: Any, **__: Any) -> Any:
        raise AssertionError("nothing is left to train")

    monkeypatch.setattr(searching, "search_ranges", lambda profile: list(TWO))
    monkeypatch.setattr(StackedEngine, "train", train)
    monkeypatch.setattr(StackedEngine, "train_many", train)
    assert search_parameters(small_settings(), run[2]) == run[0]
