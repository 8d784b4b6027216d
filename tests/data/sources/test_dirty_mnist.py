"""Dirty-MNIST: its pools, what is kept apart, and how its files are found and downloaded."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from data_helpers import held_out_rows, row_set, train_rows
from mnist_files import (
    AMBIGUOUS,
    LABELS,
    REGENERATED_SEED,
    RELEASE_SEED,
    SOURCES,
    TEST,
    TRAIN,
    TRAIN_IMAGES,
    as_features,
    load_mnist,
    make_request,
    noise,
    write_digits,
    write_regenerated,
    write_release,
)

from udjfl.data import Examples, Preparation, load
from udjfl.data.download import Remote, RetryPolicy, fetch_all
from udjfl.data.sources import dirty_mnist as mnist
from udjfl.data.sources._ambiguous_mnist import RELEASE
from udjfl.errors import DataError, SettingsError

# Pools ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("folder", ["", "dirty-mnist", "mnist", "MNIST/raw"])
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_files_are_found_gzipped_or_not_in_the_usual_folders(
    tmp_path: Path, cache: Path, folder: str, suffix: str
) -> None:
    write_digits(tmp_path / "root" / folder, suffix)
    write_release(tmp_path / "root" / "AmbiguousMNIST")
    pools = mnist.load_pools(make_request(tmp_path / "root", cache))
    assert pools.test is not None
    assert row_set(pools.test) == as_features(noise(TEST, 2))
    assert pools.test.y.tolist() == [index % 10 for index in range(TEST)]
    assert row_set(pools.clean, pools.validation) == as_features(noise(TRAIN, 1))
    assert row_set(pools.ambiguous) == as_features(noise(AMBIGUOUS, RELEASE_SEED))


def test_files_are_found_in_the_cache(cache: Path) -> None:
    write_digits(cache / "dirty-mnist")
    write_release(cache / "dirty-mnist")
    federation = load("dirty-mnist", clients=2, partition="shards")
    assert federation.input_shape == (1, 28, 28)
    assert federation.class_names == tuple("0123456789")


def test_each_pair_is_an_image_with_one_of_its_labels(release_root: Path, cache: Path) -> None:
    pools = mnist.load_pools(make_request(release_root, cache))
    pairs = range(AMBIGUOUS * LABELS)  # fewer than PAIRS, so all of them, in order
    assert pools.ambiguous is not None
    assert pools.ambiguous.y.tolist() == [pair % 10 for pair in pairs]
    assert pools.ambiguous_groups.tolist() == [TRAIN + pair // LABELS for pair in pairs]
    assert set(pools.ambiguous_groups.tolist()).isdisjoint(pools.clean_groups.tolist())


@pytest.mark.parametrize("split", ["images", "pairs"])
def test_label_probabilities_are_the_frequencies_of_an_images_labels(
    tmp_path: Path, cache: Path, split: str
) -> None:
    # Image i has five labels i % 10, three (i + 1) % 10 and two (i + 2) % 10.
    labels = torch.arange(AMBIGUOUS)[:, None] + torch.tensor([0] * 5 + [1] * 3 + [2] * 2)
    write_digits(tmp_path)
    write_release(tmp_path, labels=labels % 10)
    pools = mnist.load_pools(make_request(tmp_path, cache, split=split))
    assert pools.ambiguous is not None
    given = pools.ambiguous.label_probabilities
    assert given is not None
    assert given.shape == (AMBIGUOUS * LABELS, 10)
    for pair in (0, 9, 17, 239):  # the pairs of an image are ten in a row
        first, row = pair // LABELS, given[pair].tolist()
        assert [row[(first + k) % 10] for k in range(3)] == pytest.approx([0.5, 0.3, 0.2])
        assert sum(row) == pytest.approx(1)
    for part in (pools.clean, pools.test):
        assert part is not None
        assert part.label_probabilities is not None
        assert torch.equal(part.label_probabilities.argmax(1), part.y)
        assert torch.equal(part.label_probabilities.sum(1), torch.ones(len(part)))


def test_regenerated_digits_have_frequencies_and_reach_the_test_parts(
    regenerated_root: Path,
) -> None:
    federation = load_mnist(regenerated_root)
    for part in (*(client.test for client in federation.clients), federation.test):
        assert part.label_probabilities is not None
        assert part.label_probabilities.shape == (len(part), 10)
    # Every stored image has each of the ten labels once.
    rows = torch.cat([c.test.label_probabilities for c in federation.clients])  # type: ignore[misc]
    assert set(rows.max(dim=1).values.mul(10).round().tolist()) == {1.0, 10.0}


def test_pixels_are_standardised_by_the_usual_constants(release_root: Path, cache: Path) -> None:
    # Black is (0 - 0.1307) / 0.3081 = -0.4242, white (1 - 0.1307) / 0.3081 = 2.8215.
    pools = mnist.load_pools(make_request(release_root, cache))
    assert float(pools.clean.x.min()) == pytest.approx(-0.4242, abs=1e-4)
    assert float(pools.clean.x.max()) == pytest.approx(2.8215, abs=1e-4)
    original = torch.from_numpy(noise(TRAIN, 1)[pools.clean_groups]).float() / 255
    torch.testing.assert_close(mnist.to_pixels(pools.clean.x)[:, 0], original)


@pytest.mark.parametrize(
    ("options", "seed", "name"),
    [
        ("", RELEASE_SEED, "dirty-mnist"),
        (":ambiguous=auto", RELEASE_SEED, "dirty-mnist"),
        (":ambiguous=release", RELEASE_SEED, "dirty-mnist"),
        (":ambiguous=regenerated", REGENERATED_SEED, "dirty-mnist (regenerated)"),
    ],
)
def test_release_is_preferred_and_regenerated_digits_are_named_so(
    release_root: Path, options: str, seed: int, name: str
) -> None:
    write_regenerated(release_root)
    federation = load_mnist(release_root, options)
    assert federation.name == name
    assert as_features(noise(AMBIGUOUS, seed)) & train_rows(federation)
    other = as_features(noise(AMBIGUOUS, RELEASE_SEED + REGENERATED_SEED - seed))
    assert other.isdisjoint(train_rows(federation) | held_out_rows(federation))


def test_regenerated_digits_replace_a_missing_release(regenerated_root: Path) -> None:
    assert load_mnist(regenerated_root).name == "dirty-mnist (regenerated)"
    by_pairs = load_mnist(regenerated_root, ":split=pairs")
    assert by_pairs.name == "dirty-mnist (regenerated) (split by pairs)"
    words = r"amnist_samples\.pt and amnist_labels\.pt were not found in"
    with pytest.raises(DataError, match=words):
        load_mnist(regenerated_root, ":ambiguous=release")
    (regenerated_root / "amnist_samples.pt").write_bytes(b"one of two files")
    assert load_mnist(regenerated_root).name == "dirty-mnist (regenerated)"


# What is kept apart -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["release", "regenerated"])
@pytest.mark.parametrize("partition", ["shards", "iid", "dirichlet:0.5"])
def test_no_image_is_on_both_sides(tmp_path: Path, kind: str, partition: str) -> None:
    write_digits(tmp_path)
    (write_release if kind == "release" else write_regenerated)(tmp_path)
    ambiguous = noise(AMBIGUOUS, RELEASE_SEED if kind == "release" else REGENERATED_SEED)
    for seed in range(3):
        federation = load_mnist(tmp_path, seed=seed, partition=partition, clients=3)
        train, test = train_rows(federation), held_out_rows(federation)
        assert train.isdisjoint(test)
        assert train & as_features(ambiguous)
        assert test & as_features(ambiguous)
        assert not federation.allow_duplicates


def pairs_of(parts: list[Examples]) -> set[tuple[bytes, int]]:
    return {
        (row.tobytes(), int(label))
        for part in parts
        for row, label in zip(part.x.numpy(), part.y, strict=True)
    }


def test_split_by_pairs_only_pairs_are_on_one_side(release_root: Path) -> None:
    federation = load_mnist(release_root, ":split=pairs", partition="iid")
    assert federation.name == "dirty-mnist (split by pairs)"
    on_both_sides = train_rows(federation) & held_out_rows(federation)
    assert on_both_sides
    assert on_both_sides <= as_features(noise(AMBIGUOUS, RELEASE_SEED))
    train = pairs_of([client.train for client in federation.clients])
    assert train.isdisjoint(pairs_of([client.test for client in federation.clients]))
    # 144 clean and 240 ambiguous pairs for two clients: 192 each, of which a fifth is 38.
    assert federation.sizes == (154, 154)


def test_shards_in_order_have_copies_of_pairs_on_both_sides(tmp_path: Path) -> None:
    # Each image has one label ten times. Sorted by label, a shard of 20 has two images ten times
    # each, so nearly every ambiguous test pair has a copy in the train part of its client.
    write_digits(tmp_path)
    labels = (torch.arange(AMBIGUOUS) % 10)[:, None].expand(-1, LABELS)
    write_release(tmp_path, labels=labels.clone())
    partition = "shards:size=20,mix=1/9,order=kept"
    leaky = load_mnist(tmp_path, ":split=pairs", partition=partition, clients=1)
    client = leaky.clients[0]
    assert leaky.count_copies()[client.id] > len(client.test) / 2
    whole = load_mnist(tmp_path, ":split=images", partition=partition, clients=1)
    assert whole.count_copies() == {client.id: 0}


def test_sources_of_regenerated_digits_are_in_no_clients_data(
    regenerated_root: Path, cache: Path
) -> None:
    sources = as_features(noise(TRAIN, 1)[SOURCES])
    for seed in range(3):
        pools = mnist.load_pools(make_request(regenerated_root, cache, seed))
        assert set(pools.clean_groups.tolist()) == set(range(TRAIN)) - set(SOURCES.tolist())
        assert row_set(pools.validation) == sources  # fewer than 5,000, so all of them
        federation = load_mnist(regenerated_root, seed=seed)
        assert sources.isdisjoint(train_rows(federation) | held_out_rows(federation))


@pytest.mark.parametrize(
    ("root", "size"), [("release_root", TRAIN // 10), ("regenerated_root", len(SOURCES))]
)
def test_validation_digits_are_in_no_clients_data(
    root: str, size: int, request: pytest.FixtureRequest
) -> None:
    for seed in range(3):
        federation = load_mnist(request.getfixturevalue(root), seed=seed, partition="iid")
        assert federation.validation is not None
        assert len(federation.validation) == size
        rows = train_rows(federation) | held_out_rows(federation)
        assert row_set(federation.validation).isdisjoint(rows)


def test_equal_seeds_give_equal_data_and_other_seeds_other_pairs(
    release_root: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mnist, "PAIRS", 100)
    requests = [make_request(release_root, cache, seed) for seed in (0, 0, 1)]
    one, again, other = map(mnist.load_pools, requests)
    chosen = []
    for pools in (one, again, other):
        assert pools.ambiguous is not None
        pairs = list(zip(pools.ambiguous_groups.tolist(), pools.ambiguous.y.tolist(), strict=True))
        assert len(set(pairs)) == len(pairs) == 100  # an image has each label once here
        chosen.append(pairs)
    assert chosen[0] == chosen[1] != chosen[2]
    assert row_set(one.validation) == row_set(again.validation) != row_set(other.validation)
    prints = [load_mnist(release_root, seed=seed).fingerprint for seed in (0, 0, 1)]
    assert prints[0] == prints[1] != prints[2]


# Missing files and downloads --------------------------------------------------------------------


def test_missing_files_have_advice(tmp_path: Path, cache: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    with pytest.raises(DataError) as caught:
        load_mnist(root)
    words = f"MNIST's file {TRAIN_IMAGES} (or .gz) was not found in {root} and {cache}."
    assert words in str(caught.value)
    write_digits(root)
    with pytest.raises(DataError) as also:
        load_mnist(root)
    words = f"the release of Ambiguous-MNIST, or a regenerated one, was not found in {root} and"
    assert words in str(also.value)
    for error in (caught, also):
        for advice in (
            "`udjfl data prepare dirty-mnist`",
            "`udjfl data prepare dirty-mnist --regenerate`",
            "--data-root",
        ):
            assert advice in str(error.value)


def test_wrong_options_are_listed() -> None:
    with pytest.raises(SettingsError) as caught:
        load("dirty-mnist:ambiguous=realease:splitt=pairs")
    first, second = caught.value.mistakes
    assert "splitt: no such setting. Did you mean 'split'?" in first
    assert "Did you mean 'release'?" in second


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Replace all addresses by one that refuses connections, and do not wait between attempts."""
    with socket.socket() as bound:  # not listening; bound, so that its port is not reused
        bound.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{bound.getsockname()[1]}/"
        release = tuple(
            Remote(remote.name, (address + remote.name,), remote.md5) for remote in RELEASE
        )
        policy = RetryPolicy(attempts=2, sleep=lambda _: None)
        monkeypatch.setattr(mnist, "MIRRORS", (address + "a/", address + "b/"))
        monkeypatch.setattr(mnist, "RELEASE", release)
        monkeypatch.setattr(mnist, "fetch_all", partial(fetch_all, retries=policy))
        yield address


def test_existing_files_are_not_downloaded(
    release_root: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("nothing may be downloaded")

    monkeypatch.setattr(mnist, "fetch_all", refuse)
    lines = mnist.prepare(Preparation(make_request(release_root, cache)))
    assert lines == [
        *(f"{key}: {release_root / (name + '.gz')}" for key, name in mnist.FILES.items()),
        f"Ambiguous-MNIST: {release_root / 'amnist_samples.pt'}",
        f"Ambiguous-MNIST: {release_root / 'amnist_labels.pt'}",
    ]
    assert not cache.exists()


def test_without_a_network_the_advice_is_to_regenerate(
    tmp_path: Path, cache: Path, no_network: str
) -> None:
    write_digits(tmp_path / "root")
    with pytest.raises(DataError) as caught:
        mnist.prepare(Preparation(make_request(tmp_path / "root", cache)))
    assert "amnist_samples.pt could not be downloaded" in str(caught.value)
    assert "udjfl data prepare dirty-mnist --regenerate" in str(caught.value)
    assert no_network in str(caught.value)


@pytest.mark.parametrize("regenerate", [False, True])
def test_without_a_network_and_without_mnist_every_mirror_is_named(
    cache: Path, no_network: str, regenerate: bool
) -> None:
    with pytest.raises(DataError) as caught:
        mnist.prepare(Preparation(make_request(None, cache), regenerate))
    assert f"{TRAIN_IMAGES}.gz could not be downloaded" in str(caught.value)
    for mirror in ("a/", "b/"):
        assert f"{no_network}{mirror}{TRAIN_IMAGES}.gz" in str(caught.value)
    assert "--regenerate" not in str(caught.value)  # it would fail too
