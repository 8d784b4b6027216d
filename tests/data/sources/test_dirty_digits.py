"""The federation of dirty digits, and the file that comes with the package."""

from __future__ import annotations

import importlib.util
from functools import cache
from importlib.resources import files
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from data_helpers import SEEDS, held_out_rows, list_rows, row_set, train_rows
from scipy import stats
from sklearn.datasets import load_digits
from sklearn.neighbors import KNeighborsClassifier

from udjfl.data import Partition, Pools, load
from udjfl.data.source import Request
from udjfl.data.sources import dirty_digits as digits
from udjfl.errors import DataError

SCRIPT = Path(__file__).parents[3] / "scripts" / "make_dirty_digits.py"


def digit_pools(seed: int) -> Pools:
    return digits.load_pools(Request(seed, None, Path("nowhere")))


# Dirty digits -----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_default_federation_is_the_papers(seed: int) -> None:
    federation = load("dirty-digits", seed=seed)
    assert federation.ids == ("client-1", "client-2", "client-3", "client-4", "client-5")
    assert federation.input_shape == (1, 8, 8)
    assert federation.class_names == tuple("0123456789")
    assert len(federation.test) == 300
    # 1,000 clean examples in 50 shards: 20 a shard, 20 shards a client, 80/20.
    assert federation.sizes == (320,) * 5
    assert [len(client.test) for client in federation.clients] == [80] * 5
    shares = [client.ambiguous_share for client in federation.clients]
    assert all(one < other for one, other in pairwise(shares))
    clean = row_set(digit_pools(seed).clean)
    counts = [
        len((row_set(client.train) | row_set(client.test)) & clean) for client in federation.clients
    ]
    assert counts == [19 * 20, 15 * 20, 10 * 20, 5 * 20, 1 * 20]


@pytest.mark.parametrize("seed", SEEDS)
def test_global_test_set_has_every_digit_by_its_share(seed: int) -> None:
    pools = digit_pools(seed)
    assert len(pools.clean) == 1000
    assert pools.test is not None
    counts = torch.bincount(pools.test.y, minlength=10) + 0.0
    exact = 300 * (counts + torch.bincount(pools.clean.y, minlength=10)) / 1300
    assert bool(((counts - exact).abs() < 1).all())


def test_seed_decides_the_global_test_set() -> None:
    one, again, other = (digit_pools(seed).test for seed in (0, 0, 1))
    assert row_set(one) == row_set(again) != row_set(other)


@pytest.mark.parametrize("seed", SEEDS)
def test_no_parent_of_a_mixture_is_a_clean_example(seed: int) -> None:
    stored = digits.load_stored()
    images, _ = digits.load_handwritten()
    parents = stored["parents"][stored["parents"] >= 0]
    assert len(parents) >= 2 * len(stored["images"])  # every mixture has two parents or more
    assert set(parents.tolist()) <= set(stored["sources"].tolist())
    assert len(stored["sources"]) == 497
    pools = digit_pools(seed)
    assert set(pools.clean_groups.tolist()).isdisjoint(stored["sources"].tolist())
    # By content, too, so that a wrong number in `groups` could not hide one; pixels are exact in
    # sixteenths.
    assert pools.test is not None
    source_rows = {image.astype(np.uint8).tobytes() for image in images[stored["sources"]]}
    mean, std = (images[stored["sources"]] / 16).mean(), (images[stored["sources"]] / 16).std()
    for part in (pools.clean, pools.test):
        pixels = np.rint((part.x.double().numpy() * std + mean) * 16).astype(np.uint8)
        assert source_rows.isdisjoint({image.tobytes() for image in pixels[:, 0]})


@pytest.mark.parametrize("partition", ["shards", "iid", "dirichlet:0.3", "quantity:0.5"])
def test_no_image_is_used_twice_or_on_both_sides(partition: str) -> None:
    for seed in SEEDS:
        federation = load("dirty-digits", clients=4, partition=partition, seed=seed)
        parts = [part for client in federation.clients for part in (client.train, client.test)]
        everything = [row for part in [*parts, federation.test] for row in part.x.numpy()]
        assert len({row.tobytes() for row in everything}) == len(everything)


def test_seed_draws_one_of_the_ten_labels_of_each_ambiguous_image() -> None:
    stored = digits.load_stored()
    drawn = [digit_pools(seed).ambiguous for seed in (0, 0, 1)]
    for part in drawn:
        assert part is not None
        assert len(part) == len(stored["images"])
        assert bool((stored["labels"] == part.y.numpy()[:, None]).any(1).all())
    assert torch.equal(drawn[0].y, drawn[1].y)
    assert not torch.equal(drawn[0].y, drawn[2].y)


@pytest.mark.parametrize("seed", SEEDS)
def test_label_probabilities_are_the_stored_ones_and_one_for_clean_digits(seed: int) -> None:
    federation = load("dirty-digits", seed=seed)
    pools, stored = digit_pools(seed), digits.load_stored()
    assert pools.ambiguous is not None
    table = stored["probabilities"].astype(np.float64)
    table /= table.sum(1, keepdims=True)
    by_row = dict(zip(list_rows(pools.ambiguous), table, strict=True))
    certain = 0
    parts = [part for client in federation.clients for part in (client.train, client.test)]
    for part in (*parts, federation.test):
        given = part.label_probabilities
        assert given is not None
        for row, label, probabilities in zip(list_rows(part), part.y, given.numpy(), strict=True):
            if row in by_row:
                assert np.abs(probabilities - by_row[row]).max() < 1e-6
            else:
                certain += 1
                assert np.array_equal(probabilities, np.eye(10)[int(label)])
    assert certain == 300 + 20 * (19 + 15 + 10 + 5 + 1)  # the shared test set, and clean shards


def test_expected_hits_of_drawn_labels() -> None:
    """Over seeds, the most probable class is the drawn label as often as its probability says."""
    parts = [digit_pools(seed).ambiguous for seed in range(20)]
    shares = [
        float((part.label_probabilities.argmax(1) == part.y).double().mean())
        for part in parts
        if part is not None and part.label_probabilities is not None
    ]
    expected = float(parts[0].label_probabilities.max(1).values.double().mean())  # type: ignore[union-attr]
    assert np.mean(shares) == pytest.approx(expected, abs=0.01)


def test_features_are_standardised_by_the_sources() -> None:
    # A black pixel is -mean/std, a full one (1 - mean)/std, with the mean and deviation of the
    # sources' pixels.
    images, _ = digits.load_handwritten()
    pixels = images[digits.load_stored()["sources"]] / 16
    pools = digit_pools(0)
    assert float(pools.clean.x.min()) == pytest.approx(-pixels.mean() / pixels.std())
    assert float(pools.clean.x.max()) == pytest.approx((1 - pixels.mean()) / pixels.std())
    assert abs(float(pools.clean.x.mean())) < 0.05  # other digits, so close to 0 and 1, not equal
    assert abs(float(pools.clean.x.std()) - 1) < 0.05


@pytest.mark.parametrize("partition", ["shards", "iid", "dirichlet:0.3", "quantity:0.5"])
def test_equal_seeds_give_equal_data_and_other_seeds_other_data(partition: str) -> None:
    one, again, other = (
        load("dirty-digits", partition=partition, seed=seed).fingerprint for seed in (0, 0, 1)
    )
    assert one == again
    assert one != other


def test_partition_may_be_a_value_or_a_text() -> None:
    by_text = load("dirty-digits", partition="dirichlet:0.3")
    assert (
        load("dirty-digits", partition=Partition("dirichlet", alpha=0.3)).fingerprint
        == by_text.fingerprint
    )
    assert load("dirty-digits", partition="paper").fingerprint == load("dirty-digits").fingerprint


@pytest.mark.parametrize("partition", ["shards", "iid", "dirichlet:0.3", "quantity:0.5"])
@pytest.mark.parametrize("clients", [1, 37])
def test_one_client_and_many_clients(partition: str, clients: int) -> None:
    federation = load("dirty-digits", clients=clients, partition=partition)
    assert federation.ids == tuple(f"client-{number}" for number in range(1, clients + 1))
    assert min(federation.sizes) >= 1
    if partition == "shards":
        # 1 client: 10/10 shards of 100. 37 clients: 370 clean shards of 1,000 // 370 = 2. A fifth
        # is held out.
        assert federation.sizes == ((1600,) if clients == 1 else (32,) * 37)


def test_too_many_clients_are_refused() -> None:
    # Every client needs 10 clean shards on average: 1,000 // 10 = 100 clients at most.
    assert load("dirty-digits", clients=100).sizes == (16,) * 100
    with pytest.raises(DataError, match="101 clients with 20 shards of 1 need 1010 clean"):
        load("dirty-digits", clients=101)


@pytest.mark.parametrize("seed", SEEDS)
def test_tuning_uses_nothing_that_is_tested_on(seed: int) -> None:
    usual, tuning = load("dirty-digits", seed=seed), load("dirty-digits", seed=seed, tuning=True)
    held_out = held_out_rows(usual)
    assert len(held_out) == 300 + 5 * 80
    assert held_out.isdisjoint(train_rows(tuning) | held_out_rows(tuning))
    for client, tuned in zip(usual.clients, tuning.clients, strict=True):
        assert row_set(tuned.train, tuned.test) == row_set(client.train)
    assert tuning.sizes == (256,) * 5
    # A run could not be resumed from these settings: they name the usual federation.
    assert usual.origin is not None
    assert tuning.origin is None
    assert load("dirty-digits", seed=seed, tuning=True).fingerprint == tuning.fingerprint


def test_missing_package_file_is_an_error(monkeypatch) -> None:
    monkeypatch.setattr(digits, "STORED", "not-there.npz")
    with pytest.raises(
        DataError, match=r"data/sources/not-there\.npz is missing: install udjfl again"
    ):
        digits.load_stored.__wrapped__()


@cache
def shipped() -> dict[str, np.ndarray]:
    with (
        files("udjfl.data.sources").joinpath("dirty_digits.npz").open("rb") as opened,
        np.load(opened) as arrays,
    ):
        return dict(arrays)


class TestShippedFile:
    def test_shapes_and_types(self) -> None:
        described = {name: (str(array.dtype), array.shape) for name, array in shipped().items()}
        assert described == {
            "images": ("uint8", (3000, 8, 8)),
            "probabilities": ("float16", (3000, 10)),
            "labels": ("uint8", (3000, 10)),
            "parents": ("int16", (3000, 4)),
            "sources": ("int16", (497,)),
        }
        assert (
            Path(str(files("udjfl.data.sources").joinpath("dirty_digits.npz"))).stat().st_size
            < 400_000
        )

    def test_values_are_in_range(self) -> None:
        assert shipped()["images"].max() == 16
        assert shipped()["labels"].max() <= 9
        assert np.abs(shipped()["probabilities"].astype(float).sum(1) - 1).max() < 0.002

    def test_sources_are_a_stratified_part_and_parents_come_only_from_them(self) -> None:
        sources, parents, target = shipped()["sources"], shipped()["parents"], load_digits().target
        assert np.array_equal(sources, np.unique(sources))
        assert np.abs(np.bincount(target[sources]) - np.bincount(target) * 497 / 1797).max() < 1
        assert set(np.unique(parents)) - {-1} <= set(sources.tolist())
        for family in parents:
            classes = target[family[family >= 0]]
            assert 2 <= len(classes) == len(set(classes))

    def test_images_are_distinct_and_none_is_a_clean_digit(self) -> None:
        ambiguous = {image.tobytes() for image in shipped()["images"]}
        clean = {image.tobytes() for image in load_digits().images.astype(np.uint8)}
        assert len(ambiguous) == 3000
        assert not ambiguous & clean

    def test_labels_are_ambiguous_and_balanced(self) -> None:
        probabilities = shipped()["probabilities"].astype(np.float64)
        shares = np.bincount(shipped()["labels"].ravel(), minlength=10) / 30000
        assert shares.min() > 0.05
        assert shares.max() < 0.20
        assert 0.6 < probabilities.max(1).mean() < 0.75
        entropy = -(probabilities * np.log(np.maximum(probabilities, 1e-12))).sum(1)
        filled = np.histogram(entropy, bins=10, range=(0.05, 1.4))[0]
        # float16 may move an image across the border of a bin.
        assert np.abs(filled - 300).max() <= 5

    def test_labels_follow_the_probabilities(self) -> None:
        probabilities = shipped()["probabilities"].astype(np.float64)
        expected = probabilities.sum(0) / probabilities.sum() * 30000
        assert (
            stats.chisquare(np.bincount(shipped()["labels"].ravel(), minlength=10), expected).pvalue
            > 0.001
        )
        agreement = (shipped()["labels"] == probabilities.argmax(1)[:, None]).mean()
        assert agreement == pytest.approx(probabilities.max(1).mean(), abs=0.01)

    def test_classifier_trained_on_other_digits_sees_the_same_ambiguity(self) -> None:
        """Its classes and entropies agree with the stored labels; it saw no source of any image."""
        loaded = load_digits()
        others = np.setdiff1d(np.arange(1797), shipped()["sources"])
        model = KNeighborsClassifier(20).fit(loaded.data[others], loaded.target[others])
        seen = model.predict_proba(shipped()["images"].reshape(3000, 64))
        given = shipped()["probabilities"].astype(np.float64)
        assert (seen.argmax(1) == given.argmax(1)).mean() > 0.65
        entropy = [-(table * np.log(np.maximum(table, 1e-12))).sum(1) for table in (seen, given)]
        assert stats.spearmanr(*entropy).statistic > 0.45

    def test_the_script_finds_differences(self) -> None:
        spec = importlib.util.spec_from_file_location("make_dirty_digits", SCRIPT)
        assert spec is not None
        assert spec.loader is not None
        script = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(script)
        changed = {name: array.copy() for name, array in shipped().items()}
        assert script.find_differences(shipped(), changed) == []
        changed["labels"][7] = 10 - changed["labels"][7]
        changed["sources"] = changed["sources"].astype(np.int32)
        assert script.find_differences(shipped(), changed) == [
            "labels: 1 of 3000 rows differ",
            "sources: generated int16 (497,), stored int32 (497,)",
        ]
