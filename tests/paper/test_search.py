"""The search over parameters: what it tries, what it looks at, and what it takes."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import udjfl
from udjfl.data import Federation
from udjfl.engine import StackedEngine
from udjfl.methods import Method, method
from udjfl.metrics import METRICS
from udjfl.paper import search as searching
from udjfl.paper.profiles import PROFILES
from udjfl.paper.search import LEARNING_RATES, Candidate, Found, Range, Search, ranges, search
from udjfl.paper.search_table import search_markdown, search_view
from udjfl.settings import CompareSettings, ReproduceSettings
from udjfl.simulation.compare import Comparison, MethodSummary, compare
from udjfl.statistics import Summary, summarise

TWO = (
    Range("egalitarian", "TERM", "t", (method("term", t=0.01), method("term", t=0.5)), (0.01, 0.5)),
    Range("rawls", "q-FFL", "q", (method("qffl", q=0.1), method("qffl", q=5)), (0.1, 5)),
)


def asked(**changes: Any) -> ReproduceSettings:
    about = {"data": "dirty-digits", "rounds": 1, "epochs": 1, "seeds": 2, "workers": 1}
    return ReproduceSettings(**{**about, **changes})


# What is tried -------------------------------------------------------------------------------------------------------


def test_the_ranges_of_the_appendix():
    assert LEARNING_RATES == (0.1, 0.01, 0.001)
    tried = [
        (one.theory, one.title, one.parameter, one.values) for one in ranges(PROFILES["paper"])
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
    for one in ranges(PROFILES[profile]):
        assert [candidate.params[one.parameter] for candidate in one.candidates] == list(one.values)
        if one.title == "q-FFL":
            assert {candidate.params["lipschitz"] for candidate in one.candidates} == {"paper"}


@pytest.mark.parametrize(
    ("profile", "steps"), [("paper", ["safe"] * 6), ("authors", ["normalised"] + ["authors"] * 5)]
)
def test_the_step_of_the_profile_where_it_is_defined(profile, steps):
    ours = [
        candidate
        for one in ranges(PROFILES[profile])
        if one.title == "UDJ-FL"
        for candidate in one.candidates
    ]
    assert [candidate.params["step"] for candidate in ours] == steps


# What is taken: hand-made scores -------------------------------------------------------------------------------------


def best_of(theory: str, *scores: list[float | None]) -> int | None:
    """Which of the candidates with these values over seeds is taken."""
    fedavg = method("fedavg")
    one = Range(theory, "any", "x", (fedavg,) * len(scores), tuple(range(len(scores))))
    tried = [
        Candidate(0.1, place, fedavg, summarise(values)) for place, values in enumerate(scores)
    ]
    taken = searching._best(one, tried)
    return None if taken is None else int(taken.value)


@pytest.mark.parametrize(
    ("theory", "better"), [("utilitarian", 1), ("rawls", 1), ("egalitarian", 0), ("desert", 0)]
)
def test_the_best_mean_in_the_direction_of_the_theory(theory, better):
    # Means 2 and 3: accuracy and Psi are better high, STD and r low. The best single seed is the other one's.
    scores = [[2.0, 2.0], [5.0, 1.0]]
    assert best_of(theory, *scores) == better
    assert best_of(theory, *scores[::-1]) == 1 - better
    # Below zero too.
    assert best_of(theory, [-2.0, -2.0], [-1.0, -1.0]) == better


def test_of_equals_the_first_is_taken():
    assert best_of("rawls", [1.0, 3.0], [2.0, 2.0]) == 0
    assert best_of("egalitarian", [3.0, 3.0], [1.0, 3.0], [2.0, 2.0]) == 1


def test_a_candidate_that_failed_on_some_seed_is_not_taken():
    assert best_of("rawls", [9.0, None], [1.0, 1.0]) == 1
    assert best_of("rawls", [9.0, None], [None, None]) is None
    assert best_of("rawls") is None


Scored = Callable[[Method, float, bool], Sequence[float | None]]


def searched(
    monkeypatch: pytest.MonkeyPatch, score: Scored
) -> tuple[Search, list[tuple[bool, float, list[Method]]]]:
    """A search over TWO in which nothing trains: `score` has the values over seeds. And what was asked for, in order."""
    calls: list[tuple[bool, float, list[Method]]] = []

    def trained(
        settings: Any, methods: Sequence[Method], lr: float, *_: Any, tuning: bool
    ) -> Comparison:
        calls.append((tuning, lr, list(methods)))
        rows = []
        for one in methods:
            metrics = {metric.key: summarise(score(one, lr, tuning)) for metric in METRICS}
            rows.append(MethodSummary(one, metrics, {}, {}, {}, {}, {}, []))
        return Comparison("made up", (0, 1), CompareSettings(), tuple(rows))

    monkeypatch.setattr(searching, "ranges", lambda profile: list(TWO))
    monkeypatch.setattr(searching, "_trained", trained)
    return search(asked()), calls


def test_only_what_was_chosen_is_tested_and_only_at_its_learning_rate(monkeypatch):
    term, qffl = (one.candidates for one in TWO)
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
        for one in found.found
        if one.chosen
    ]
    assert chosen == [(term[1], 0.01, 0.5, 1.0), (qffl[0], 0.001, 0.1, 9.0)]
    assert [one.tested.metrics["std"].mean for one in found.found if one.tested] == [50.0, 50.0]
    assert [len(one.tried) for one in found.found] == [6, 6]


def test_where_nothing_finished_nothing_is_chosen(monkeypatch):
    term = TWO[0].candidates

    def score(one: Method, lr: float, tuning: bool) -> Sequence[float | None]:
        return [None, None] if one in term else [2.0, 2.0 + lr]

    found, calls = searched(monkeypatch, score)
    none, some = found.found
    assert (none.chosen, none.tested) == (None, None)
    assert some.chosen is not None
    assert [call for call in calls if not call[0]] == [(False, 0.1, [TWO[1].candidates[0]])]
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


def test_where_nothing_at_all_finished_nothing_is_tested(monkeypatch):
    found, calls = searched(monkeypatch, lambda *_: [None, None])
    assert all(tuning for tuning, _, _ in calls)
    assert [(one.chosen, one.tested) for one in found.found] == [(None, None)] * 2


def shown(found: Search, width: int = 80) -> str:
    console = Console(width=width, file=io.StringIO())
    console.print(search_view(found))
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_how_it_is_shown():
    term = TWO[0].candidates
    tried = tuple(
        Candidate(0.1, value, one, summarise([value, value + 2]))
        for one, value in zip(term, (0.01, 0.5), strict=True)
    )
    metrics = {metric.key: Summary(12.345, (12.0, 12.69), (12.0, 12.69), 2) for metric in METRICS}
    metrics["global_accuracy"] = Summary(91.0, None, (91.0,), 1)
    tested = MethodSummary(term[0], metrics, {}, {}, {}, {}, {}, [])
    found = Search("made up", "paper", (0, 1), 9, (Found(TWO[0], tried, tried[0], tested),))
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


# What is looked at: a search that trains -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Search, list[Any], Path, list[Any]]:
    """A search over TWO on the digits of the package; in order, what was loaded and compared; the folder; what was told."""
    happened: list[Any] = []
    told: list[Any] = []
    out = tmp_path_factory.mktemp("search")

    def load(*given: Any, tuning: bool) -> Federation:
        federation = udjfl.load(*given, tuning=tuning)
        happened.append(("load", tuning, federation))
        return federation

    def comparing(*given: Any, **more: Any) -> Comparison:
        found = compare(*given, **more)
        happened.append(("compare", more["methods"], found))
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(searching, "ranges", lambda profile: list(TWO))
        patch.setattr(searching, "load", load)
        patch.setattr(searching, "compare", comparing)
        found = search(asked(), out, lambda *message: told.append(message))
    return found, happened, out, told


def test_test_data_are_loaded_only_after_choosing(run):
    _, happened, _, _ = run
    order = [what for what, _, _ in happened]
    last_choice = [place for place, what in enumerate(order) if what == "compare"][
        len(LEARNING_RATES) - 1
    ]
    before = [tuning for what, tuning, _ in happened[:last_choice] if what == "load"]
    after = [tuning for what, tuning, _ in happened[last_choice:] if what == "load"]
    assert before
    assert all(before)
    assert after
    assert not any(after)


def test_what_is_scored_on_is_part_of_what_is_trained_on_later(run):
    """Of 320 train examples of a client, 256 are left and 64 held out; none of the 80 test examples is among them."""
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


def test_scores_are_those_of_the_tuning_runs_and_tests_those_of_the_others(run):
    found, happened, _, _ = run
    compared = [
        (methods, comparison) for what, methods, comparison in happened if what == "compare"
    ]
    scored = dict(zip(LEARNING_RATES, (comparison for _, comparison in compared[:3]), strict=True))
    assert [comparison.settings.lr for comparison in scored.values()] == list(LEARNING_RATES)
    tested = {comparison.settings.lr: comparison for _, comparison in compared[3:]}
    for one in found.found:
        key = {"egalitarian": "std", "rawls": "psi"}[one.range.theory]
        for candidate in one.tried:
            (row,) = (row for row in scored[candidate.lr].rows if row.method == candidate.method)
            assert candidate.score == row.metrics[key]
        means = [
            candidate.score.mean for candidate in one.tried if candidate.score.mean is not None
        ]
        assert one.chosen is not None
        assert one.chosen.score.mean == (min(means) if key == "std" else max(means))
        assert one.tested in tested[one.chosen.lr].rows


def test_each_training_is_told_under_a_name_of_its_own(run):
    """Otherwise a bar that adds them up would count three learning rates as one."""
    _, _, _, told = run
    finished = [
        (name, seed)
        for name, seed, stage, done, total in told
        if stage == "training" and done == total
    ]
    assert len(set(finished)) == len(finished)
    assert ("learning rate 0.01, FedAvg", 1) in finished
    assert any(name.startswith("test at ") for name, _ in finished)


def test_searched_again_the_same_is_found_without_training(run, monkeypatch):
    def train(*_: Any, **__: Any) -> Any:
        raise AssertionError("nothing is left to train")

    monkeypatch.setattr(searching, "ranges", lambda profile: list(TWO))
    monkeypatch.setattr(StackedEngine, "train", train)
    monkeypatch.setattr(StackedEngine, "train_many", train)
    assert search(asked(), run[2]) == run[0]
