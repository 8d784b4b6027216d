"""Points in programs: the same numbers however they are cut, and nothing finished is lost."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
from small_runs import Stopped, make_federation

import udjfl
from udjfl.methods import UDJ, FedAvg
from udjfl.models import mlp
from udjfl.search import point_runs
from udjfl.search.point_runs import point_name, run_points, runs_per_program
from udjfl.search.run_table import RunTable
from udjfl.settings import CompareSettings, TrainingSettings
from udjfl.training.records import Progress
from udjfl.training.run_folder import RunFolder

METHODS = [UDJ(beta=2.0, gamma=g) for g in (-1.0, 0.0, 1.0)] + [UDJ(theory="rawls", budget=2.0)]
SHORT: dict[str, Any] = {
    "rounds": 3,
    "hidden": 8,
    "batch_size": 8,
    "lr": 0.05,
    "uncertainty_epochs": 2,
    "seeds": [0, 4, 5],
    "workers": 1,
}
SETTINGS = CompareSettings(**SHORT)


def by_seed(seed: int) -> udjfl.Federation:
    return make_federation(seed=seed)


def run(folder: RunFolder | None = None, methods: Any = METHODS, **others: Any) -> RunTable:
    first = by_seed(0)
    table = RunTable(first.ids, folder)
    run_points(SETTINGS, methods, table, first, data=by_seed, **others)
    table.sort([point_name(method) for method in (FedAvg(), *methods)], SETTINGS.seeds)
    return table


@pytest.fixture(scope="module")
def whole() -> RunTable:
    return run()


def test_every_method_and_fedavg_have_a_run_on_every_seed(whole: RunTable) -> None:
    names = [point_name(method) for method in (FedAvg(), *METHODS)]
    assert list(whole.runs) == [(name, seed) for name in names for seed in SETTINGS.seeds]
    assert all(r.failed is None and len(r.accuracies) == 3 for r in whole.runs.values())


def test_the_numbers_are_those_of_a_comparison(whole: RunTable) -> None:
    comparison = udjfl.compare(by_seed, METHODS, **SHORT)
    for row in comparison.rows:
        for index, seed in enumerate(SETTINGS.seeds):
            kept = whole.runs[point_name(row.method), seed]
            accuracies = [s.values[index] for s in row.client_scores.values()]
            assert list(kept.accuracies) == accuracies
            assert kept.global_accuracy == row.metrics["global_accuracy"].values[index]


@pytest.mark.parametrize("most", [1, 3, 5])
def test_programs_of_any_size_have_the_same_numbers(
    whole: RunTable, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(point_runs, "MOST_RUNS", most)
    assert run().to_csv() == whole.to_csv()


def test_uncertainties_that_are_known_are_not_measured_again(
    whole: RunTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_methods: Any = importlib.import_module("udjfl.simulation.run_methods")
    measured: list[int] = []
    measure = run_methods.measure_many

    def count(federations: Any, settings: Any, seeds: Any, *others: Any) -> Any:
        measured.extend(seeds)
        return measure(federations, settings, seeds, *others)

    monkeypatch.setattr(run_methods, "measure_many", count)
    monkeypatch.setattr(point_runs, "MOST_RUNS", 2)  # four programs for each seed
    assert run().to_csv() == whole.to_csv()
    assert measured == SETTINGS.seeds


@pytest.mark.parametrize("stop_after", [2, 6, 11])
def test_stopped_anywhere_it_goes_on_and_trains_no_finished_point_again(
    whole: RunTable, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, stop_after: int
) -> None:
    monkeypatch.setattr(point_runs, "MOST_RUNS", 2)
    finished: set[tuple[str, int]] = set()

    def stop(event: Progress) -> None:
        if event.stage == "training" and event.done == event.total and event.label != "FedAvg":
            finished.add((event.label, event.seed))
            if len(finished) > stop_after:
                raise Stopped

    folder = RunFolder.create(tmp_path, {}, {})
    with pytest.raises(Stopped):
        run(folder, on_progress=stop)
    kept = set(RunTable(by_seed(0).ids, folder).runs)
    assert len([key for key in kept if key[0] != "fedavg-weights=size"]) == stop_after
    trained: set[tuple[str, int]] = set()
    run(folder, on_progress=lambda e: trained.add((e.label, e.seed)))
    assert (tmp_path / "runs.csv").read_bytes() == whole.to_csv()
    again = {(point_name(m), seed) for m in METHODS for label, seed in trained if label == m.label}
    assert not again & kept
    folder.unlock()


def test_a_table_with_everything_trains_nothing(whole: RunTable) -> None:
    def fail(event: Progress) -> None:
        raise AssertionError(event)

    run_points(SETTINGS, METHODS, whole, by_seed(0), data=by_seed, on_progress=fail)


def test_large_federations_have_small_programs() -> None:
    # 87 train examples, 4 x 8 + 8 + 8 x 3 + 3 = 67 weights: 5,829 products for each round, so that
    # 10^12 are reached by one run of 2 x 10^8 rounds.
    federation = make_federation()
    training = TrainingSettings(rounds=100)
    module = mlp(federation.input_shape, federation.n_classes, 8, False)
    assert runs_per_program(federation, module, training) == point_runs.MOST_RUNS
    for rounds, runs in ((5 * 10**7, 3), (2 * 10**8, 1)):
        many = training.model_copy(update={"rounds": rounds})
        assert runs_per_program(federation, module, many) == runs
