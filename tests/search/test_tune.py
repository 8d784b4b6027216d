"""The search for a point: no test data, no lost work, limits kept or named."""

from __future__ import annotations

import importlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from data_helpers import row_set
from small_runs import Stopped, make_federation
from table_helpers import make_hospitals, write_hospitals

import udjfl
from udjfl.data import Examples, Federation
from udjfl.errors import DataError, SettingsError, StorageError
from udjfl.report.tune_table import say_held_out, say_limits
from udjfl.search import point_runs
from udjfl.search.scoring import CandidateScore
from udjfl.search.settings import TuneSettings
from udjfl.search.spaces import Candidate
from udjfl.search.tune import HeldOutChoice, HeldOutData, choose_point, tune
from udjfl.settings import DataSettings, validate_settings
from udjfl.uncertainty import Uncertainty

QUICK: dict[str, Any] = {
    "rounds": 9,
    "hidden": 8,
    "batch_size": 8,
    "uncertainty_epochs": 2,
    "seeds": [0, 1],
    "workers": 1,
    "theory": "egalitarian",
    "budget": 60.0,
    "cost": 15.0,
}


def by_seed(seed: int) -> Federation:
    return make_federation(seed=seed)


def shuffle_tests(seed: int) -> Federation:
    """Return the same federation with other test labels, and other test examples."""
    federation = by_seed(seed)
    rng = np.random.default_rng(seed)

    def spoil(part: Examples) -> Examples:
        return replace(part, x=part.x + 100.0, y=part.y[rng.permutation(len(part))])

    clients = tuple(replace(c, test=spoil(c.test)) for c in federation.clients)
    return replace(federation, clients=clients, test=spoil(federation.test))


OTHERS = ("data", "on_progress", "strict", "uncertainties")


def choose(out: Path | None = None, **changes: Any) -> HeldOutChoice:
    others = {key: changes.pop(key) for key in OTHERS if key in changes}
    settings = TuneSettings(**{**QUICK, **changes})
    return choose_point(settings, **{"data": by_seed, "out": out, **others})


@pytest.fixture(scope="module")
def chosen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("tune") / "whole"
    choose(out)
    return out


# Data -------------------------------------------------------------------------------------------


def test_the_choice_does_not_depend_on_test_data(chosen: Path, tmp_path: Path) -> None:
    choose(tmp_path, data=shuffle_tests)
    names = sorted(path.name for path in chosen.glob("held-out-*.csv"))
    assert names == ["held-out-1.csv", "held-out-3.csv", "held-out-9.csv"]
    for name in ("choice.json", *names):
        assert (tmp_path / name).read_bytes() == (chosen / name).read_bytes()


def test_held_out_data_are_of_the_train_parts_only() -> None:
    for data in (by_seed, "dirty-digits"):
        whole = by_seed(3) if callable(data) else udjfl.load("dirty-digits", seed=3)
        held_out = HeldOutData(data, DataSettings())(3)
        tested = row_set(whole.test, *(client.test for client in whole.clients))
        for client, before in zip(held_out.clients, whole.clients, strict=True):
            parts = row_set(client.train), row_set(client.test)
            assert parts[0] | parts[1] == row_set(before.train)
            assert not parts[0] & parts[1]
            assert not (parts[0] | parts[1]) & tested
            assert len(client.test) == pytest.approx(len(before.train) / 5, abs=1)
        assert not row_set(held_out.test) & tested


def test_held_out_data_of_files_have_the_columns_that_settings_name(tmp_path: Path) -> None:
    files = f"{write_hospitals(tmp_path / 'h')}/*.csv"
    settings = validate_settings(DataSettings, {"data": files, "target": "ill"})
    held_out = HeldOutData(files, settings)(0)
    expected = udjfl.load(files, tuning=True, options={"target": "ill"})
    assert held_out.fingerprint == expected.fingerprint
    assert held_out.class_names == ("ill", "well")


def test_tables_are_read_once_for_a_warning_before_the_search_and_for_the_test(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    hospitals = write_hospitals(tmp_path / "h", west=make_hospitals()["west"].assign(extra=1.5))
    federation = {"data": f"{hospitals}/*.csv", "target": "ill"}
    settings = TuneSettings(**{**QUICK, **federation, "seeds": [0], "model": "logistic"})
    loading: Any = importlib.import_module("udjfl.simulation.simulate")
    search: Any = importlib.import_module("udjfl.search.tune")
    loaded, load = [], loading.load_federation

    def count(*arguments: Any, tuning: bool = False) -> Federation:
        loaded.append((tuning, "'extra' is left out" in caplog.text))
        return load(*arguments, tuning=tuning)

    monkeypatch.setattr(loading, "load_federation", count)
    monkeypatch.setattr(search, "load_federation", count)
    choose_point(settings)  # as `compare --tuned` does for each method
    assert loaded == [(True, False)]
    loaded.clear()
    tune(settings)
    assert loaded == [(False, False), (True, True)]
    assert caplog.text.count("'extra' is left out") == 1


def test_copies_stay_on_one_side() -> None:
    x = np.repeat(np.arange(10.0), 5).reshape(-1, 1)
    client = (x, np.tile([0, 1], 25), x[:2] + 0.5, [0, 1])
    federation = Federation.from_arrays({"a": client}, test=(x[:2] + 0.25, [0, 1]))
    held_out = HeldOutData(federation, DataSettings())(0)
    assert not row_set(held_out.clients[0].train) & row_set(held_out.clients[0].test)


def test_a_client_too_small_to_hold_anything_out() -> None:
    rows = np.arange(6.0).reshape(-1, 1)
    clients = {"a": (rows, [0, 1] * 3, rows[:2] + 9, [0, 1]), "b": ([[7.5]], [0], [[8.5]], [0])}
    federation = Federation.from_arrays(clients, test=(rows[:2] + 20, [0, 1]))
    with pytest.raises(DataError, match="client 'b' has 1 train example: too few to hold one out"):
        choose(data=federation)


# The search -------------------------------------------------------------------------------------


def test_rungs_have_fewer_candidates_and_more_rounds_and_always_the_defaults(chosen: Path) -> None:
    choice = json.loads((chosen / "choice.json").read_text(encoding="utf-8"))
    rounds = [rung["rounds"] for rung in choice["rungs"]]
    sizes = [len(rung["scores"]) for rung in choice["rungs"]]
    assert rounds == [1, 3, 9]
    assert sizes == sorted(sizes, reverse=True)
    for rung in choice["rungs"]:
        labels = {score["label"] for score in rung["scores"]}
        assert {"UDJ-FL egalitarian", "UDJ-FL egalitarian (budget=60)"} <= labels
    assert choice["cost"] <= QUICK["cost"] < choice["grid_cost"] + 10
    assert choice["chosen"]["label"] in {score["label"] for score in choice["rungs"][-1]["scores"]}


def test_searches_on_the_same_seeds_measure_uncertainties_once(
    chosen: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: dict[int, Uncertainty] = {}
    choose(theory="rawls", uncertainties=measured)
    assert list(measured) == QUICK["seeds"]
    module = importlib.import_module("udjfl.simulation.run_methods")
    monkeypatch.setattr(module, "measure_many", None)  # it would be called
    choose(tmp_path, uncertainties=measured)
    for name in ("choice.json", "held-out-1.csv"):
        assert (tmp_path / name).read_bytes() == (chosen / name).read_bytes()


def test_only_functions_of_the_callers_own_keep_its_processes_from_being_forked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = []

    def stop(*values: Any) -> None:
        seen.append(values[-1])
        raise Stopped

    monkeypatch.setattr(point_runs, "run_tasks", stop)
    for data in (by_seed, by_seed(0), None):
        with pytest.raises(Stopped):
            choose(data=data)
    assert seen == [True, False, False]


@pytest.mark.parametrize("stop_after", [3, 30, 60])
def test_stopped_anywhere_it_goes_on_to_the_same_choice(
    chosen: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop_after: int
) -> None:
    monkeypatch.setattr(point_runs, "MOST_RUNS", 6)
    seen: list[str] = []

    def stop(event: udjfl.Progress) -> None:
        if event.stage == "training" and event.done == event.total:
            seen.append(event.label)
            if len(seen) > stop_after:
                raise Stopped

    with pytest.raises(Stopped):
        choose(tmp_path, on_progress=stop)
    choose(tmp_path)
    assert (tmp_path / "choice.json").read_bytes() == (chosen / "choice.json").read_bytes()


def test_other_settings_are_refused(chosen: Path) -> None:
    with pytest.raises(StorageError, match=r"other settings \(budget\)"):
        choose(chosen, budget=5.0)


def test_a_floor_that_nothing_reaches_names_the_best_value_and_its_point() -> None:
    with pytest.raises(SettingsError) as caught:
        choose(floor={"client-1": 99.9})
    (line,) = caught.value.mistakes
    assert line.startswith("floor: no point gives client-1 99.9% on held-out data; the best of ")
    assert "after 9 rounds was " in line
    assert "%, with UDJ-FL egalitarian" in line


def test_a_choice_by_a_loss_says_so(tmp_path: Path) -> None:
    made = choose(tmp_path, score="log-loss")
    assert made.score.name == "log-loss"
    assert HeldOutChoice.load(tmp_path).score == made.score
    assert "a budget of 60%" in say_limits(made)
    assert "in % of FedAvg's mean log loss." in say_held_out(made)


def test_floors_of_a_loss_are_ceilings() -> None:
    with pytest.raises(
        SettingsError, match=r"gives client-1 1e-05 on .* rounds was 0\.\d{4}, with"
    ):
        choose(floor={"client-1": 1e-5}, score="log-loss")
    with pytest.raises(SettingsError, match="floor: of client 'client-1' is -1, which is no log"):
        choose(floor={"client-1": -1.0}, score="log-loss")
    with pytest.raises(SettingsError, match="floor: of client 'client-1' is 101, which is no acc"):
        choose(floor={"client-1": 101.0})


def test_floors_of_clients_that_do_not_exist() -> None:
    with pytest.raises(SettingsError, match="floor: there is no client 'client-7'"):
        choose(floor={"client-7": 50.0})


def test_a_budget_that_nothing_keeps_names_the_least_cost_unless_the_nearest_will_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    halving: Any = importlib.import_module("udjfl.search.halving")
    compute = halving.score

    def lower(candidate: Candidate, *others: Any) -> CandidateScore:
        """Let every point cost 30 points more than it does."""
        made = compute(candidate, *others)
        return replace(made, mean=made.mean - 30, broken={"budget": 30 - made.mean})

    monkeypatch.setattr(halving, "score", lower)
    nearest = choose(strict=False, rounds=3).chosen
    assert nearest.violation > 0
    with pytest.raises(SettingsError, match=r"budget: every point costs more than 60 points.*with"):
        choose(rounds=3)


def test_an_unknown_theory() -> None:
    with pytest.raises(SettingsError, match=r"theory: unknown value 'rawl'\. Did you mean 'rawls'"):
        validate_settings(TuneSettings, {"theory": "rawl"})


def test_tuned_it_is_tested_beside_fedavg_and_the_defaults(tmp_path: Path) -> None:
    tuned = tune(TuneSettings(**QUICK), data=by_seed, out=tmp_path)
    labels = [row.label for row in tuned.test.rows]
    assert labels[:2] == ["FedAvg", "UDJ-FL egalitarian"]
    assert tuned.choice.chosen.candidate.method.label in labels
    assert tuned.test.budget_of(tuned.test.rows[-1]) == 60.0
    again = tune(TuneSettings(**QUICK), data=by_seed, out=tmp_path)
    assert again.as_dict() == tuned.as_dict()
