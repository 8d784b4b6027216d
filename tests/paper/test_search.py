"""The search over parameters: the data it uses, its scores and its tests."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import astuple
from pathlib import Path
from typing import Any

import pytest

import udjfl
from udjfl.data import Federation
from udjfl.engine import StackedEngine
from udjfl.methods import method
from udjfl.paper import run as running
from udjfl.paper import search as searching
from udjfl.paper import search_choice
from udjfl.paper.search import search_parameters
from udjfl.paper.search_choice import LEARNING_RATES, SearchRange, fedavg_name, find_outcomes
from udjfl.paper.settings import ReproduceSettings
from udjfl.paper.tables import SearchTable
from udjfl.simulation.compare import run_comparison
from udjfl.simulation.comparison import Comparison

TWO = (
    SearchRange(
        "egalitarian", "TERM", "t", (method("term", t=0.01), method("term", t=0.5)), (0.01, 0.5)
    ),
    SearchRange("rawls", "q-FFL", "q", (method("qffl", q=0.1), method("qffl", q=5)), (0.1, 5)),
)


def small_settings(**changes: Any) -> ReproduceSettings:
    values = {"data": "dirty-digits", "rounds": 1, "epochs": 1, "seeds": 2, "workers": 1}
    return ReproduceSettings(**{**values, **changes})


@pytest.fixture(autouse=True, scope="module")
def over_two() -> Iterator[None]:
    """Search over TWO."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (searching, search_choice):
            patch.setattr(module, "search_ranges", lambda profile: list(TWO))
        yield


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[SearchTable, list[Any], Path, list[Any]]:
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
    for one in find_outcomes(found):
        rules = dict(zip(one.range.values, one.range.methods, strict=True))
        key = {"egalitarian": "std", "rawls": "psi"}[one.range.theory]
        for candidate in one.candidates:
            row = running.find_row(scored[candidate.lr], rules[candidate.value])
            if key == "std" or candidate.lr == best_rate(scored):
                assert candidate.score.values == pytest.approx(row.metrics[key].values)
        assert one.chosen is not None
        assert one.tested is not None
        row = running.find_row(tested[one.chosen.lr], rules[one.chosen.value])
        assert one.tested.values["std"] == row.metrics["std"]
        assert one.tested.values["psi"].values == pytest.approx(row.metrics["psi"].values)


def best_rate(scored: dict[float, Comparison]) -> float:
    return max(scored, key=lambda lr: scored[lr].rows[0].metrics["mean_accuracy"].mean or 0.0)


def test_psi_of_all_candidates_is_measured_from_one_fedavg(run):
    """Psi is linear: measured from another FedAvg it differs by that one's own Psi."""
    found, happened, _, _ = run
    compared = [comparison for what, _, comparison in happened if what == "compare"]
    scored = dict(zip(LEARNING_RATES, compared[:3], strict=True))
    best = best_rate(scored)
    moved = [found.find(fedavg_name(lr)).values["psi"].values for lr in LEARNING_RATES]
    assert [any(values) for values in moved] == [lr != best for lr in LEARNING_RATES]
    for one in find_outcomes(found):
        rules = dict(zip(one.range.values, one.range.methods, strict=True))
        for candidate in one.candidates:
            row = running.find_row(scored[candidate.lr], rules[candidate.value])
            shift = moved[LEARNING_RATES.index(candidate.lr)]
            psi = found.find(candidate.name).values["psi"].values
            expected = [a + b for a, b in zip(row.metrics["psi"].values, shift, strict=True)]
            assert psi == pytest.approx(expected)


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

    monkeypatch.setattr(StackedEngine, "train", train)
    monkeypatch.setattr(StackedEngine, "train_many", train)
    assert search_parameters(small_settings(), run[2]) == run[0]
