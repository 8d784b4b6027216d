"""Runs of the paper's tables on the embedded digits, for three rounds."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import udjfl
from udjfl.data import Federation
from udjfl.data.sources import dirty_digits as digits
from udjfl.engine import StackedEngine
from udjfl.errors import SettingsError, StorageError
from udjfl.metrics import METRICS
from udjfl.paper import run as running
from udjfl.paper.paper_rows import paper_rows
from udjfl.paper.profiles import ProfileName, training_settings
from udjfl.paper.run import (
    DISTRIBUTIONS,
    SoloTask,
    reproduce_distributions,
    reproduce_results,
    reproduce_solo,
)
from udjfl.paper.settings import ReproduceSettings
from udjfl.paper.tables import DistributionsTable, ResultsTable
from udjfl.simulation import simulate as oneseed
from udjfl.simulation.comparison import Comparison
from udjfl.statistics import Summary
from udjfl.training.records import Progress

SAME = [
    ["FedAvg", "q-FedAvg: q=0", "UDJ-FL: beta=0, gamma=0", "UDJ-FL: beta=1, gamma=0"],
    ["q-FedAvg: q=0.1", "UDJ-FL: beta=0.1, gamma=0"],
    ["q-FedAvg: q=5", "UDJ-FL: beta=5, gamma=0"],
]


def small_settings(profile: ProfileName = "paper", **changes: Any) -> ReproduceSettings:
    values = {
        "data": "dirty-digits",
        "rounds": 3,
        "epochs": 2,
        "seeds": 2,
        "workers": 1,
        "profile": profile,
    }
    return ReproduceSettings(**{**values, **changes})


Run = tuple[ResultsTable, Comparison, Path]


@pytest.fixture(scope="module")
def paper(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The main table with profile paper, its comparison, and its folder."""
    out = tmp_path_factory.mktemp("paper")
    return *reproduce_results(small_settings(), out), out


@pytest.fixture(scope="module")
def authors() -> tuple[ResultsTable, Comparison]:
    """The main table with profile authors."""
    return reproduce_results(small_settings("authors"))


@pytest.fixture(scope="module")
def three(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[DistributionsTable, dict[str, Federation], Path, list[Progress]]:
    """The distributions of Appendix A, their federations of seed 0, the folder, the progress."""
    out = tmp_path_factory.mktemp("distributions")
    loaded: list[Federation] = []
    messages: list[Progress] = []

    def load(*given: Any, **options: Any) -> Federation:
        loaded.append(udjfl.load(*given, **options))
        return loaded[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(oneseed, "load", load)
        table = reproduce_distributions(small_settings(seeds="0,"), out, messages.append)
    assert len(loaded) == len(DISTRIBUTIONS)
    return table, dict(zip(DISTRIBUTIONS, loaded, strict=True)), out, messages


def values_of(table: Any, row: str) -> dict[str, tuple[float | None, ...]]:
    found = table.find(row)
    assert found is not None
    return {key: summary.values for key, summary in found.values.items()}


def runs_in(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(folder.glob("seed-*/*/settings.json"))]


def forbid_training(patch: pytest.MonkeyPatch) -> None:
    def train(*_: Any, **__: Any) -> Any:
        raise AssertionError("nothing is left to train")

    patch.setattr(StackedEngine, "train", train)
    patch.setattr(StackedEngine, "train_many", train)


# --- The main table ---


def test_every_row_has_a_value_for_each_seed_and_column(paper):
    table, _, _ = paper
    assert len(table.rows) == 20
    assert (table.seeds, table.rounds, table.profile) == ((0, 1), 3, "paper")
    assert (table.data, table.published_for, table.same_data) == (
        "dirty-digits",
        "dirty-mnist",
        False,
    )
    for row in table.rows:
        assert not row.failed
        assert set(row.values) == {column.key for column in table.columns}
        assert all(summary.n == 2 for summary in row.values.values()), row.name


def test_the_table_is_that_of_the_comparison(paper):
    table, comparison, _ = paper
    by_label = {row.method.label: row for row in comparison.rows}
    for row in table.rows:
        measured = by_label[row.subtitle].metrics
        assert all(measured[key] == summary for key, summary in row.values.items()), row.name


@pytest.mark.parametrize("profile", ["paper", "authors"])
@pytest.mark.parametrize("same", SAME, ids=["plain average", "a tenth", "five"])
def test_rows_that_are_one_algorithm_are_equal_value_for_value(paper, authors, profile, same):
    table = paper[0] if profile == "paper" else authors[0]
    first = values_of(table, same[0])
    for other in same[1:]:
        assert values_of(table, other) == first, other


def test_rows_that_are_one_algorithm_are_equal_in_every_metric_and_client(paper):
    table, comparison, _ = paper
    by_label = {row.method.label: row for row in comparison.rows}
    for same in SAME:
        summaries = [by_label[row.subtitle] for row in table.rows if row.name in same]
        assert len(summaries) == len(same)
        for key in METRICS:
            assert len({summary.metrics[key] for summary in summaries}) == 1, (same, key)
        assert all(summary.client_scores == summaries[0].client_scores for summary in summaries)


def test_other_rows_are_not_that_algorithm(paper):
    table, _, _ = paper
    fedavg = values_of(table, "FedAvg")
    for other in ("q-FedAvg: q=5", "UDJ-FL: beta=5, gamma=1", "PropFair: M=2", "FedMGDA+", "CFFL"):
        assert values_of(table, other) != fedavg, other


def test_all_methods_of_a_seed_have_the_same_data_and_the_same_training(paper):
    _, _, out = paper
    runs = runs_in(out)
    assert len(runs) == 40
    for seed in (0, 1):
        of_seed = [run for run in runs if run["seed"] == seed]
        assert len({run["federation"]["fingerprint"] for run in of_seed}) == 1
        assert {(run["training"]["momentum"], run["training"]["loss_at"]) for run in of_seed} == {
            (0.0, "received")
        }
    sizes = [client["train"] for client in runs[0]["federation"]["clients"]]
    assert sizes == [320] * 5  # 20 shards of 20, four fifths of them for training
    shares = [client["ambiguous_share"] for client in runs[0]["federation"]["clients"]]
    assert shares == pytest.approx(
        [0.05, 0.25, 0.5, 0.75, 0.95], abs=0.05
    )  # of the train parts, which are drawn


def test_fedmgda_of_profile_authors_is_fedavg(authors):
    table, _ = authors
    assert values_of(table, "FedMGDA+") == values_of(table, "FedAvg")
    row = table.find("FedMGDA+")
    assert row is not None
    assert row.note is not None
    assert "plain average" in row.note


def test_the_profile_changes_the_numbers_and_is_named_in_the_table(paper, authors):
    ours, theirs = paper[0], authors[0]
    assert values_of(ours, "FedAvg") != values_of(theirs, "FedAvg")
    assert (theirs.profile, "momentum 0.9" in theirs.setting["training"]) == ("authors", True)
    assert "momentum 0.0" in ours.setting["training"]


def test_a_second_run_gives_the_same_table_without_training(paper, monkeypatch):
    table, _, out = paper
    forbid_training(monkeypatch)
    again, _ = reproduce_results(small_settings(workers=2), out)
    assert again == table


def test_a_run_without_saved_runs_trains(tmp_path, monkeypatch):
    """Shows that the test above forbids training."""
    forbid_training(monkeypatch)
    with pytest.raises(AssertionError, match="nothing is left"):
        reproduce_results(small_settings(), tmp_path / "new")


@pytest.mark.parametrize("changes", [{"rounds": 4}, {"epochs": 3}, {"profile": "authors"}])
def test_a_folder_of_other_settings_is_refused(paper, changes):
    with pytest.raises(StorageError, match="was started with other settings"):
        reproduce_results(small_settings(**changes), paper[2])


@pytest.mark.parametrize(("data", "uncertainties"), [("dirty-mnist", 0.033), ("cure-tsr", 0.357)])
def test_the_authors_uncertainties_replace_measured_ones(monkeypatch, data, uncertainties):
    """The data are the package's digits under the other name; only the name matters here."""
    named: list[str] = []

    def load(
        name: str, clients: int | None, partition: str, seed: int, root: str | None, **_: Any
    ) -> Federation:
        named.append(name)
        in_order = {"dirty-mnist": "shards:size=300,order=kept", "cure-tsr": "shards:size=60"}
        assert partition == in_order[data]
        return udjfl.load("dirty-digits", clients, "shards:size=20", seed, root)

    monkeypatch.setattr(oneseed, "load", load)
    monkeypatch.setattr(running, "paper_rows", lambda profile: paper_rows(profile)[-1:])
    _, comparison = reproduce_results(small_settings("authors", data=data, rounds=1, seeds="0,"))
    assert comparison.rows[0].uncertainty["client-1"].values == (uncertainties,)
    assert set(named) == {"dirty-mnist:split=pairs" if data == "dirty-mnist" else data}


# --- Clients that train alone ---


def test_the_uncertainty_alone_is_that_of_the_main_table(paper):
    table = reproduce_solo(small_settings())
    measured = paper[1].rows[0].uncertainty
    assert [row.values["uncertainty"] for row in table.rows] == list(measured.values())
    assert [tuple(row.details.values()) for row in table.rows] == [
        (1, 19, 1),
        (2, 15, 5),
        (3, 10, 10),
        (4, 5, 15),
        (5, 1, 19),
    ]
    assert (table.rounds, table.seeds, table.published_for) == (2, (0, 1), "dirty-mnist")


def test_accuracies_alone_are_percentages_of_their_test_sets():
    """A client's test part has 80 examples and the clean test set 300."""
    for row in reproduce_solo(small_settings(seeds="0,")).rows:
        for key, size in (("local_accuracy", 80), ("clean_accuracy", 300)):
            (value,) = row.values[key].values
            assert value is not None
            right = value * size / 100
            assert 0 <= right <= size
            assert right == pytest.approx(round(right), abs=1e-6)


def test_the_loss_alone_falls_as_a_client_trains_on():
    few, many = (reproduce_solo(small_settings(seeds="0,", epochs=n)) for n in (2, 200))
    for before, after in zip(few.rows, many.rows, strict=True):
        (early,), (late,) = (row.values["train_loss"].values for row in (before, after))
        assert early is not None
        assert late is not None
        assert 0 < late < early


TRAIN_SOLO: Callable[..., dict[str, list[float | None]]] = running.train_solo


def test_a_stopped_solo_run_resumes(tmp_path, monkeypatch):
    whole = reproduce_solo(small_settings())
    trained: list[int] = []

    def stopping(federation: Federation, training: Any, seed: int) -> dict[str, list[float | None]]:
        if seed == 1:
            raise KeyboardInterrupt
        trained.append(seed)
        return TRAIN_SOLO(federation, training, seed)

    monkeypatch.setattr(running, "train_solo", stopping)
    with pytest.raises(KeyboardInterrupt):
        reproduce_solo(small_settings(), tmp_path)
    saved = tmp_path / "seed-0.json"
    before = (saved.read_bytes(), saved.stat().st_mtime_ns, saved.stat().st_ino)
    assert not (tmp_path / "seed-1.json").exists()

    def counting(federation: Federation, training: Any, seed: int) -> dict[str, list[float | None]]:
        trained.append(seed)
        return TRAIN_SOLO(federation, training, seed)

    monkeypatch.setattr(running, "train_solo", counting)
    messages: list[Progress] = []
    # Rounds are of other tables.
    assert reproduce_solo(small_settings(rounds=9), tmp_path, messages.append) == whole
    assert trained == [0, 1]
    assert (saved.read_bytes(), saved.stat().st_mtime_ns, saved.stat().st_ino) == before
    assert [(m.label, m.seed, m.stage, m.done, m.total) for m in messages] == [
        ("each client alone", 0, "resumed", 1, 1),
        ("each client alone", 1, "alone", 1, 1),
    ]


def test_a_solo_folder_accepts_more_seeds_but_no_other_settings(tmp_path, monkeypatch):
    reproduce_solo(small_settings(seeds="0,"), tmp_path)
    with pytest.raises(StorageError, match="other settings"):
        reproduce_solo(small_settings(seeds="0,", epochs=3), tmp_path)
    with pytest.raises(StorageError, match="other settings"):
        reproduce_solo(small_settings("authors", seeds="0,"), tmp_path)
    assert reproduce_solo(small_settings(), tmp_path) == reproduce_solo(small_settings())
    forbid_training(monkeypatch)
    assert reproduce_solo(small_settings(seeds="1,"), tmp_path).seeds == (1,)


def test_a_model_that_diverged_has_no_uncertainty(tmp_path, monkeypatch):
    monkeypatch.setattr(
        running, "entropies", lambda *_: dict.fromkeys(map(str, range(5)), float("nan"))
    )
    (first, *_) = reproduce_solo(small_settings(seeds="0,"), tmp_path).rows
    assert first.values["uncertainty"] == Summary(None, None, (None,), 0)
    assert first.values["local_accuracy"].n == 1


def test_a_solo_task_can_be_sent_to_another_process():
    task = SoloTask(small_settings(), training_settings(small_settings()), 0)
    assert pickle.loads(pickle.dumps(task)) == task


# --- Distributions ---


def test_three_settings_of_five_clients(three):
    table, _, _, _ = three
    assert [row.name for row in table.rows] == ["even", "clean", "dirty"]
    for row in table.rows:
        (values,) = zip(*(row.values[column.key].values for column in table.columns), strict=True)
        *clients, accuracy, std = values
        assert len(clients) == 5
        assert 0 < accuracy < 100
        assert std == pytest.approx(np.std(clients, ddof=1))  # as the paper prints it


@pytest.mark.parametrize(
    ("setting", "sizes", "ambiguous"),
    [
        ("even", [80] * 5, [20] * 5),  # four shards of 20 each
        ("clean", [260, 80, 80, 80, 80], [20, 60, 60, 60, 60]),
        ("dirty", [80, 80, 80, 80, 260], [20, 20, 20, 20, 240]),
    ],
)
def test_clients_have_the_shards_of_their_setting(three, setting, sizes, ambiguous):
    federation = three[1][setting]
    assert [len(client.train) + len(client.test) for client in federation.clients] == sizes
    pool = digits.load_pools(digits.SOURCE.request(0, None, {})).ambiguous
    assert pool is not None
    ambiguous_images = {image.numpy().tobytes() for image in pool.x}
    parts = [torch.cat([client.train.x, client.test.x]) for client in federation.clients]
    assert [
        sum(image.numpy().tobytes() in ambiguous_images for image in part) for part in parts
    ] == ambiguous


def test_clients_with_more_data_weigh_more(three):
    _, federations, out, _ = three
    for setting, federation in federations.items():
        (run,) = (out / setting).glob("seed-0/fedavg*")
        records = [json.loads(line) for line in (run / "records.jsonl").read_text().splitlines()]
        weights = {
            one["client"]: one["value"]
            for one in records
            if one["metric"] == "weight" and one["round"] == 1
        }
        total = sum(len(client.train) for client in federation.clients)
        assert weights == pytest.approx(
            {client.id: len(client.train) / total for client in federation.clients}
        )
        heaviest = {"even": None, "clean": "client-1", "dirty": "client-5"}[setting]
        assert heaviest is None or max(weights, key=weights.__getitem__) == heaviest


def test_progress_names_the_distribution(three):
    """The same method and seed run three times; a progress bar has to tell them apart."""
    finished = [
        event.label for event in three[3] if event.stage == "training" and event.done == event.total
    ]
    assert finished == ["even, FedAvg", "clean, FedAvg", "dirty, FedAvg"]


def test_a_second_run_of_distributions_needs_no_training(three, monkeypatch):
    table, _, out, _ = three
    forbid_training(monkeypatch)
    assert reproduce_distributions(small_settings(seeds="0,"), out) == table


@pytest.mark.parametrize("run", [reproduce_solo, reproduce_distributions])
def test_tables_of_shards_need_shards(run):
    with pytest.raises(
        SettingsError, match="heart has none, use dirty-mnist, cure-tsr, signs, dirty-digits"
    ):
        run(small_settings(data="heart"))
