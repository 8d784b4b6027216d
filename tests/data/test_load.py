"""Loading a named source, and what dirty digits promise."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest
import torch

from udjfl import data
from udjfl.data import SOURCES, Examples, Partition, Pools, digits, federate, load
from udjfl.errors import DataError, SettingsError

SEEDS = (0, 1, 7)


def rows(examples: Examples) -> set[bytes]:
    return {row.tobytes() for row in examples.x.numpy()}


# A source made by hand -----------------------------------------------------------------------------------------------


def small_pools(copies: int = 1, ambiguous: bool = True, test: bool = True) -> Pools:
    """100 clean images and 100 / copies ambiguous ones, each `copies` times with other labels."""
    clean = Examples(torch.arange(100.0).reshape(100, 1), torch.arange(100) % 4)
    image = torch.arange(100) // copies
    vague = Examples(1000.0 + image.float().reshape(100, 1), torch.arange(100) % 4)
    held_out = Examples(torch.tensor([[-1.0], [-2.0]]), torch.tensor([0, 1]))
    return Pools(
        clean=clean,
        ambiguous=vague if ambiguous else None,
        test=held_out if test else None,
        class_names=("a", "b", "c", "d"),
        clean_groups=np.arange(100),
        ambiguous_groups=100 + image.numpy() if ambiguous else np.empty(0, dtype=np.int64),
    )


def test_a_source_is_one_function_and_one_line(monkeypatch):
    asked = []

    def pools(seed, folder):
        asked.append((seed, folder))
        return small_pools()

    monkeypatch.setitem(SOURCES, "small", pools)
    made = load("small", clients=2, seed=3, folder="somewhere")
    assert made.name == "small"
    assert made.class_names == ("a", "b", "c", "d")
    assert [(seed, str(folder)) for seed, folder in asked] == [(3, "somewhere")]


def test_shares_and_sizes_of_a_cut_by_hand():
    # 2 clients with 19/1 and 1/19 shards of 100 // 20 = 5: 95 clean and 5 ambiguous, and the other way round. 80/20.
    made = federate("small", small_pools(), 2, Partition("shards"), seed=0)
    assert made.sizes == (80, 80)
    for client, ambiguous in zip(made.clients, (5, 95), strict=True):
        everything = Examples.joined([client.train, client.test])
        assert int((everything.x >= 1000).sum()) == ambiguous
        assert client.ambiguous_share == int((client.train.x >= 1000).sum()) / 80


@pytest.mark.parametrize("partition", ["shards", "iid", "dirichlet:0.2", "quantity:0.5"])
def test_copies_of_an_image_stay_on_one_side_even_across_clients(partition):
    # Each ambiguous image is there five times, with other labels, so sorting by label spreads it over clients.
    # The federation itself would refuse a copy on the other side.
    for seed in SEEDS:
        made = federate("small", small_pools(copies=5), 5, Partition.parse(partition), seed)
        train = set().union(*(rows(client.train) for client in made.clients))
        test = set().union(*(rows(client.test) for client in made.clients))
        assert train.isdisjoint(test)
        assert len(train | test) > 20


def test_the_seed_chooses_who_gets_what_and_what_is_held_out():
    one, again, other = (federate("small", small_pools(), 2, Partition("iid"), seed) for seed in (0, 0, 1))
    held = [rows(Examples.joined([made.clients[0].train, made.clients[0].test])) for made in (one, again, other)]
    assert held[0] == held[1] != held[2]
    # With one client everybody has everything, so only the split can differ.
    tests = [rows(federate("small", small_pools(), 1, Partition("iid"), seed).clients[0].test) for seed in (0, 0, 1)]
    assert tests[0] == tests[1] != tests[2]


def test_without_ambiguous_data_shares_are_unknown_and_shards_are_refused():
    made = federate("small", small_pools(ambiguous=False), 4, Partition("iid"), seed=0)
    assert [client.ambiguous_share for client in made.clients] == [None] * 4
    assert made.sizes == (20, 20, 20, 20)  # 25 each, a fifth held out
    with pytest.raises(DataError, match="there are 100 and 0"):
        federate("small", small_pools(ambiguous=False), 4, Partition("shards"), seed=0)


def test_without_a_test_set_of_its_own_the_clients_clean_test_parts_are_it():
    made = federate("small", small_pools(test=False), 2, Partition("shards"), seed=0)
    clean_tests = torch.cat([client.test.x[client.test.x[:, 0] < 1000] for client in made.clients])
    assert torch.equal(made.test.x, clean_tests)
    assert len(made.test) > 0


# Wrong arguments -----------------------------------------------------------------------------------------------------


def test_every_wrong_argument_is_listed():
    with pytest.raises(SettingsError) as caught:
        load("dirty-digit", clients=0, partition="dirichlt", seed=1.5)  # type: ignore[arg-type]
    names, clients, seed, partition = caught.value.mistakes
    assert "data 'dirty-digit' is unknown. Did you mean 'dirty-digits'?" in names
    assert "clients is 0: give a whole number of at least 1" in clients
    assert "seed is 1.5: give a whole number" in seed
    assert "Did you mean 'dirichlet'?" in partition


@pytest.mark.parametrize("clients", [-1, 2.0, True, "5", None])
def test_clients_must_be_a_whole_number(clients):
    with pytest.raises(SettingsError, match="clients is"):
        load("dirty-digits", clients=clients)


def test_dirty_digits_read_no_folder():
    with pytest.raises(SettingsError, match="folder: dirty-digits comes with the package"):
        load("dirty-digits", folder="somewhere")


def test_a_damaged_installation_says_so(monkeypatch):
    monkeypatch.setattr(digits, "STORED", "not-there.npz")
    with pytest.raises(DataError, match=r"data/not-there\.npz is missing: install udjfl again"):
        digits._stored.__wrapped__()


def test_importing_the_data_package_does_not_import_scikit_learn():
    code = "import sys, udjfl.data; sys.exit('sklearn' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_public_names_exist_and_are_sorted():
    assert all(hasattr(data, name) for name in data.__all__)
    assert data.__all__ == sorted(data.__all__, key=lambda name: (not name.isupper(), name))


# Dirty digits --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_the_papers_federation_from_dirty_digits(seed: int):
    made = load("dirty-digits", seed=seed)
    assert made.ids == ("client-1", "client-2", "client-3", "client-4", "client-5")
    assert made.input_shape == (1, 8, 8)
    assert made.class_names == tuple("0123456789")
    assert len(made.test) == 300
    # 1,000 clean examples in 50 shards: 20 a shard, 20 shards a client, 80/20.
    assert made.sizes == (320,) * 5
    assert [len(client.test) for client in made.clients] == [80] * 5
    shares = [client.ambiguous_share for client in made.clients]
    assert all(one < other for one, other in pairwise(shares))
    clean = rows(digits.pools(seed).clean)
    counts = [len((rows(client.train) | rows(client.test)) & clean) for client in made.clients]
    assert counts == [19 * 20, 15 * 20, 10 * 20, 5 * 20, 1 * 20]


@pytest.mark.parametrize("seed", SEEDS)
def test_the_clean_test_set_has_every_digit_by_its_share(seed: int):
    pools = digits.pools(seed)
    assert len(pools.clean) == 1000
    assert pools.test is not None
    counts = torch.bincount(pools.test.y, minlength=10) + 0.0
    exact = 300 * (counts + torch.bincount(pools.clean.y, minlength=10)) / 1300
    assert bool(((counts - exact).abs() < 1).all())


def test_the_seed_chooses_the_clean_test_set():
    one, again, other = (digits.pools(seed).test for seed in (0, 0, 1))
    assert rows(one) == rows(again) != rows(other)


@pytest.mark.parametrize("seed", SEEDS)
def test_no_parent_of_a_mixture_is_a_clean_example(seed: int):
    stored = digits._stored()
    images, _ = digits._handwritten()
    parents = stored["parents"][stored["parents"] >= 0]
    assert len(parents) >= 2 * len(stored["images"])  # every mixture has two parents or more
    assert set(parents.tolist()) <= set(stored["sources"].tolist())
    assert len(stored["sources"]) == 497
    pools = digits.pools(seed)
    assert set(pools.clean_groups.tolist()).isdisjoint(stored["sources"].tolist())
    # By content, too, so that a wrong number in `groups` could not hide one; pixels are exact in sixteenths.
    assert pools.test is not None
    source_rows = {image.astype(np.uint8).tobytes() for image in images[stored["sources"]]}
    mean, std = (images[stored["sources"]] / 16).mean(), (images[stored["sources"]] / 16).std()
    for part in (pools.clean, pools.test):
        pixels = np.rint((part.x.double().numpy() * std + mean) * 16).astype(np.uint8)
        assert source_rows.isdisjoint({image.tobytes() for image in pixels[:, 0]})


@pytest.mark.parametrize("partition", ["shards", "iid", "dirichlet:0.3", "quantity:0.5"])
def test_no_image_is_used_twice_or_on_both_sides(partition: str):
    for seed in SEEDS:
        made = load("dirty-digits", clients=4, partition=partition, seed=seed)
        parts = [part for client in made.clients for part in (client.train, client.test)]
        everything = [row for part in [*parts, made.test] for row in part.x.numpy()]
        assert len({row.tobytes() for row in everything}) == len(everything)


def test_each_ambiguous_image_has_one_of_its_ten_labels_and_the_seed_chooses():
    stored = digits._stored()
    drawn = [digits.pools(seed).ambiguous for seed in (0, 0, 1)]
    for part in drawn:
        assert part is not None
        assert len(part) == len(stored["images"])
        assert bool((stored["labels"] == part.y.numpy()[:, None]).any(1).all())
    assert torch.equal(drawn[0].y, drawn[1].y)
    assert not torch.equal(drawn[0].y, drawn[2].y)


def test_features_are_standardised_by_the_sources():
    # A black pixel is -mean/std, a full one (1 - mean)/std, with the mean and deviation of the sources' pixels.
    images, _ = digits._handwritten()
    pixels = images[digits._stored()["sources"]] / 16
    pools = digits.pools(0)
    assert float(pools.clean.x.min()) == pytest.approx(-pixels.mean() / pixels.std())
    assert float(pools.clean.x.max()) == pytest.approx((1 - pixels.mean()) / pixels.std())
    assert abs(float(pools.clean.x.mean())) < 0.05  # other digits, so close to 0 and 1, not equal
    assert abs(float(pools.clean.x.std()) - 1) < 0.05


@pytest.mark.parametrize("partition", ["shards", "iid", "dirichlet:0.3", "quantity:0.5"])
def test_the_same_seed_gives_the_same_data_and_another_seed_other_data(partition: str):
    one, again, other = (load("dirty-digits", partition=partition, seed=seed).fingerprint for seed in (0, 0, 1))
    assert one == again
    assert one != other


def test_a_partition_value_is_as_good_as_its_text():
    by_text = load("dirty-digits", partition="dirichlet:0.3")
    assert load("dirty-digits", partition=Partition("dirichlet", alpha=0.3)).fingerprint == by_text.fingerprint
    assert load("dirty-digits", partition="paper").fingerprint == load("dirty-digits").fingerprint


@pytest.mark.parametrize("partition", ["shards", "iid", "dirichlet:0.3", "quantity:0.5"])
@pytest.mark.parametrize("clients", [1, 37])
def test_one_client_and_thirty_seven(partition: str, clients: int):
    made = load("dirty-digits", clients=clients, partition=partition)
    assert made.ids == tuple(f"client-{number}" for number in range(1, clients + 1))
    assert min(made.sizes) >= 1
    if partition == "shards":
        # 1 client: 10/10 shards of 100. 37 clients: 370 clean shards of 1,000 // 370 = 2. A fifth is held out.
        assert made.sizes == ((1600,) if clients == 1 else (32,) * 37)


def test_more_clients_than_dirty_digits_can_feed():
    # Every client needs 10 clean shards on average: 1,000 // 10 = 100 clients at most.
    assert load("dirty-digits", clients=100).sizes == (16,) * 100
    with pytest.raises(DataError, match="101 clients with 20 shards of 1 need 1010 clean"):
        load("dirty-digits", clients=101)
