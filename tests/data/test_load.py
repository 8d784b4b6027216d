"""Loading a named source, and what dirty digits promise."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import pytest
import torch
from pydantic import Field

from udjfl import data
from udjfl.data import (
    SOURCES,
    Examples,
    Federation,
    Partition,
    Pools,
    Source,
    federate,
    load,
)
from udjfl.data.source import Request
from udjfl.data.sources import dirty_digits as digits
from udjfl.errors import DataError, SettingsError
from udjfl.settings import Settings

SEEDS = (0, 1, 7)


@pytest.fixture(autouse=True)
def _no_data_of_the_users(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("UDJFL_DATA", raising=False)
    monkeypatch.setenv("UDJFL_CACHE", str(tmp_path / "cache"))


def digit_pools(seed: int) -> Pools:
    return digits.pools(Request(seed, None, Path("nowhere")))


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


class SmallOptions(Settings):
    level: Annotated[int, Field(ge=1, le=5)] = 1
    kind: Literal["plain", "odd"] = "plain"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Request]:
    """What the source "small" is asked for."""
    requests: list[Request] = []

    def pools(request: Request) -> Pools:
        requests.append(request)
        return small_pools()

    monkeypatch.setitem(
        SOURCES,
        "small",
        Source("small", "for tests", "It is made up.", pools, SmallOptions, clients=2),
    )
    return requests


def test_a_source_is_one_value_and_one_line(asked, tmp_path):
    made = load("small", seed=3, root=tmp_path)
    assert made.name == "small"
    assert made.class_names == ("a", "b", "c", "d")
    assert made.ids == ("client-1", "client-2")  # as the source has it
    assert asked == [Request(3, tmp_path, tmp_path / "cache", SmallOptions())]


def test_options_in_the_name_reach_the_source(asked):
    load("small:level=3:kind=odd")
    assert asked[0].options == SmallOptions(level=3, kind="odd")
    assert asked[0].root is None


def test_the_users_own_data_are_where_the_variable_says(asked, monkeypatch, tmp_path):
    monkeypatch.setenv("UDJFL_DATA", str(tmp_path))
    assert load("small").origin == {"data": "small", "clients": 2, "partition": "shards", "seed": 0}
    assert asked[0].root == tmp_path


def test_what_is_left_out_is_the_sources_own_and_what_is_given_wins(monkeypatch):
    source = Source("small", "for tests", "", lambda _: small_pools(), clients=4, partition="iid")
    monkeypatch.setitem(SOURCES, "small", source)
    assert load("small").sizes == (40,) * 4  # 200 / 4, a fifth held out
    assert load("small", clients=2).sizes == (80, 80)
    # 19/1 and 1/19 shards of 1: 19 + 1 examples.
    assert load("small", clients=2, partition="shards:1").sizes == (16, 16)


def test_the_origin_loads_the_same_federation_again(asked, tmp_path):
    made = load("small:level=2", clients=3, partition="dirichlet:0.3", seed=5, root=tmp_path)
    expected = {
        "data": "small:level=2",
        "clients": 3,
        "partition": "dirichlet:0.3",
        "seed": 5,
        "data_root": str(tmp_path),
    }
    assert made.origin == expected
    name, root, rest = expected.pop("data"), expected.pop("data_root"), expected
    again = load(name, root=root, **rest)
    assert again.fingerprint == made.fingerprint
    assert asked[0] == asked[1]


def test_data_may_have_another_title_than_their_source(monkeypatch):
    pools = replace(small_pools(), title="small (regenerated)")
    monkeypatch.setitem(SOURCES, "small", Source("small", "for tests", "", lambda _: pools))
    made = load("small", clients=2)
    assert made.name == "small (regenerated)"
    assert made.origin is not None
    assert made.origin["data"] == "small"


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
    one, again, other = (
        federate("small", small_pools(), 2, Partition("iid"), seed) for seed in (0, 0, 1)
    )
    held = [
        rows(Examples.joined([made.clients[0].train, made.clients[0].test]))
        for made in (one, again, other)
    ]
    assert held[0] == held[1] != held[2]
    # With one client everybody has everything, so only the split can differ.
    tests = [
        rows(federate("small", small_pools(), 1, Partition("iid"), seed).clients[0].test)
        for seed in (0, 0, 1)
    ]
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


# Natural clients -----------------------------------------------------------------------------------------------------


def hospitals(*owners: str, tabular: bool = False) -> Pools:
    """One clean example for each owner named, with its number as its feature, and no test set of its own."""
    n = len(owners)
    x = torch.arange(float(n)).reshape(n, 1)
    nothing = np.empty(0, dtype=np.int64)
    return Pools(
        Examples(x, torch.arange(n) % 2),
        None,
        None,
        ("a", "b"),
        np.arange(n),
        nothing,
        owners=owners,
        tabular=tabular,
    )


def test_natural_clients_have_their_own_names_and_data():
    owners = ("Lund", "Basel", "Lund", "Basel", "Lund", "Oslo", "Oslo", "Lund", "Lund", "Oslo")
    made = federate("hospitals", hospitals(*owners), 3, Partition("natural"), seed=0)
    assert made.ids == ("Basel", "Lund", "Oslo")
    for client in made.clients:
        held = Examples.joined([client.train, client.test]).x[:, 0].int().tolist()
        assert sorted(held) == [place for place, owner in enumerate(owners) if owner == client.id]
        assert len(client.test) == 1
        assert client.ambiguous_share is None
    assert sorted(made.test.x[:, 0].tolist()) == sorted(
        float(client.test.x[0, 0]) for client in made.clients
    )


def test_natural_clients_are_those_of_the_source_by_default(monkeypatch):
    source = Source(
        "hospitals", "", "", lambda _: hospitals(*"aabbcc"), clients=3, partition="natural"
    )
    monkeypatch.setitem(SOURCES, "hospitals", source)
    made = load("hospitals")
    assert made.ids == ("a", "b", "c")
    assert made.origin == {"data": "hospitals", "clients": 3, "partition": "natural", "seed": 0}
    # Cut anew, nobody is in a hospital.
    assert load("hospitals", clients=2, partition="iid").ids == ("client-1", "client-2")
    with pytest.raises(
        DataError,
        match="clients is 2, but hospitals has 3 by nature: leave the number out, or cut it anew",
    ):
        load("hospitals", clients=2)


def test_natural_clients_need_owners():
    with pytest.raises(
        DataError,
        match="partition natural: nobody owns the examples of dirty-digits; use shards, iid",
    ):
        load("dirty-digits", partition="natural")
    with pytest.raises(DataError, match="hospitals: 3 owners for 4 examples"):
        federate(
            "hospitals",
            replace(hospitals(*"aabb"), owners=("a", "a", "b")),
            2,
            Partition("natural"),
            seed=0,
        )


def test_each_client_is_fitted_by_its_own_train_part_alone():
    # The mean of the train part is taken off both parts: a train part then has mean 0, a test part has not.
    calls = []

    def fitted(train: Examples, test: Examples) -> tuple[Examples, Examples]:
        calls.append((train, test))
        mean = train.x.mean()
        return replace(train, x=train.x - mean), replace(test, x=test.x - mean)

    pools = hospitals(*["a"] * 10, *["b"] * 5)
    plain = federate("hospitals", pools, 2, Partition("natural"), seed=0)
    made = federate(
        "hospitals", replace(pools, fitted=fitted, tabular=True), 2, Partition("natural"), seed=0
    )
    assert len(calls) == 2
    for client, before, (train, test) in zip(made.clients, plain.clients, calls, strict=True):
        assert torch.equal(train.x, before.train.x)
        assert torch.equal(test.x, before.test.x)
        assert torch.equal(client.train.x, train.x - train.x.mean())
        assert torch.equal(client.test.x, test.x - train.x.mean())
    # The global test set is made of what the clients are tested on, as they see it.
    assert torch.equal(made.test.x, torch.cat([client.test.x for client in made.clients]))


def test_equal_rows_are_allowed_in_tabular_data_only():
    same = replace(
        hospitals(*"aaaaabbbbb"), clean=Examples(torch.ones(10, 1), torch.arange(10) % 2)
    )
    with pytest.raises(DataError, match="are also test examples"):
        federate("hospitals", same, 2, Partition("natural"), seed=0)
    assert federate(
        "hospitals", replace(same, tabular=True), 2, Partition("natural"), seed=0
    ).allow_duplicates


# Tuning --------------------------------------------------------------------------------------------------------------


def rows_held_out(made: Federation) -> set[bytes]:
    return rows(made.test).union(*(rows(client.test) for client in made.clients))


def everything(made: Federation) -> Iterator[Examples]:
    yield made.test
    for client in made.clients:
        yield from (client.train, client.test)


def multiset(*parts: Examples) -> list[tuple[float, int]]:
    return sorted(
        (float(x), int(y)) for part in parts for x, y in zip(part.x.flatten(), part.y, strict=True)
    )


@pytest.mark.parametrize(
    "partition", ["shards", "iid", "dirichlet:0.5", "quantity:0.8", "shards:mix=5/2+2/5+1/1"]
)
@pytest.mark.parametrize("test", [True, False])
@pytest.mark.parametrize("copies", [1, 5])
def test_parameters_are_chosen_without_anything_that_is_tested_on(
    partition: str, test: bool, copies: int
):
    for seed in SEEDS:
        how = ("small", small_pools(copies=copies, test=test), 3, Partition.parse(partition), seed)
        usual, tuning = federate(*how), federate(*how, tuning=True)
        held_out = rows_held_out(usual)
        assert len(held_out) > 3
        for part in everything(tuning):
            assert rows(part).isdisjoint(held_out)
        for client, own in zip(usual.clients, tuning.clients, strict=True):
            assert own.id == client.id
            assert multiset(own.train, own.test) == multiset(client.train)
        # Copies of an image are on one side here, too, in the whole federation.
        trained_on = set().union(*(rows(client.train) for client in tuning.clients))
        assert trained_on.isdisjoint(rows_held_out(tuning))
        clean = [client.test.x[client.test.x[:, 0] < 1000] for client in tuning.clients]
        assert torch.equal(tuning.test.x, torch.cat(clean))


def test_a_fifth_of_the_train_part_is_held_out_for_tuning():
    tuning = federate("small", small_pools(), 2, Partition("shards"), seed=0, tuning=True)
    assert tuning.sizes == (64, 64)  # 100 examples, 80 of them for training, a fifth of which is 16
    assert [len(client.test) for client in tuning.clients] == [16, 16]
    for client in tuning.clients:
        assert client.ambiguous_share == int((client.train.x >= 1000).sum()) / 64


@pytest.mark.parametrize("seed", SEEDS)
def test_tuning_on_dirty_digits(seed: int):
    usual, tuning = load("dirty-digits", seed=seed), load("dirty-digits", seed=seed, tuning=True)
    held_out = rows_held_out(usual)
    assert len(held_out) == 300 + 5 * 80
    for part in everything(tuning):
        assert rows(part).isdisjoint(held_out)
    for client, own in zip(usual.clients, tuning.clients, strict=True):
        assert rows(own.train) | rows(own.test) == rows(client.train)
    assert tuning.sizes == (256,) * 5
    # A run could not be resumed from these settings: they name the usual federation.
    assert usual.origin is not None
    assert tuning.origin is None
    assert load("dirty-digits", seed=seed, tuning=True).fingerprint == tuning.fingerprint


def test_tuning_fits_by_the_smaller_train_part():
    seen = []

    def fitted(train: Examples, test: Examples) -> tuple[Examples, Examples]:
        seen.append((multiset(train), multiset(test)))
        return train, test

    pools = replace(hospitals(*["a"] * 20, *["b"] * 20), fitted=fitted)
    usual = federate("hospitals", replace(pools, fitted=None), 2, Partition("natural"), seed=0)
    federate("hospitals", pools, 2, Partition("natural"), seed=0, tuning=True)
    assert [(len(train), len(test)) for train, test in seen] == [
        (13, 3)
    ] * 2  # 20, less 4, less round(3.2)
    for client, (train, test) in zip(usual.clients, seen, strict=True):
        assert sorted(train + test) == multiset(client.train)


# Wrong arguments -----------------------------------------------------------------------------------------------------


def test_every_wrong_argument_is_listed():
    with pytest.raises(SettingsError) as caught:
        load("dirty-digit", clients=0, partition="dirichlt", seed=1.5)  # type: ignore[arg-type]
    names, clients, seed, partition = caught.value.mistakes
    assert "data 'dirty-digit' is unknown. Did you mean 'dirty-digits'?" in names
    assert "clients is 0: give a whole number of at least 1" in clients
    assert "seed is 1.5: give a whole number" in seed
    assert "Did you mean 'dirichlet'?" in partition


@pytest.mark.parametrize("clients", [-1, 2.0, True, "5"])
def test_clients_must_be_a_whole_number(clients):
    with pytest.raises(SettingsError, match="clients is"):
        load("dirty-digits", clients=clients)


def test_wrong_options_and_a_missing_folder_are_listed_with_the_rest(asked, tmp_path):
    missing = tmp_path / "missing"
    with pytest.raises(SettingsError) as caught:
        load(
            "small:levle=3:level=9:kind=od",
            clients=0,
            partition="shards:mix=1",
            seed=True,
            root=missing,
        )
    found = "\n".join(caught.value.mistakes)
    assert len(caught.value.mistakes) == 7
    assert "levle: no such setting. Did you mean 'level'? Known: kind, level." in found
    assert "level: input should be less than or equal to 5, got '9'" in found
    assert "kind: unknown value 'od'. Did you mean 'odd'?" in found
    assert "clients is 0" in found
    assert "seed is True" in found
    assert f"data_root: {missing} does not exist; name the folder that has the data" in found
    assert "write mix as" in found
    assert asked == []  # nothing is loaded before everything is right


def test_a_variable_that_names_a_missing_folder(asked, monkeypatch, tmp_path):
    monkeypatch.setenv("UDJFL_DATA", str(tmp_path / "missing"))
    with pytest.raises(SettingsError, match=r"UDJFL_DATA: .*missing does not exist"):
        load("small")
    assert load("small", root=tmp_path).name == "small"  # what is given wins


def test_options_of_a_source_without_any():
    with pytest.raises(SettingsError, match="level: no such setting"):
        load("dirty-digits:level=1")


def test_a_damaged_installation_says_so(monkeypatch):
    monkeypatch.setattr(digits, "STORED", "not-there.npz")
    with pytest.raises(DataError, match=r"data/sources/not-there\.npz is missing: install udjfl again"):
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
    clean = rows(digit_pools(seed).clean)
    counts = [len((rows(client.train) | rows(client.test)) & clean) for client in made.clients]
    assert counts == [19 * 20, 15 * 20, 10 * 20, 5 * 20, 1 * 20]


@pytest.mark.parametrize("seed", SEEDS)
def test_the_clean_test_set_has_every_digit_by_its_share(seed: int):
    pools = digit_pools(seed)
    assert len(pools.clean) == 1000
    assert pools.test is not None
    counts = torch.bincount(pools.test.y, minlength=10) + 0.0
    exact = 300 * (counts + torch.bincount(pools.clean.y, minlength=10)) / 1300
    assert bool(((counts - exact).abs() < 1).all())


def test_the_seed_chooses_the_clean_test_set():
    one, again, other = (digit_pools(seed).test for seed in (0, 0, 1))
    assert rows(one) == rows(again) != rows(other)


@pytest.mark.parametrize("seed", SEEDS)
def test_no_parent_of_a_mixture_is_a_clean_example(seed: int):
    stored = digits._stored()
    images, _ = digits._handwritten()
    parents = stored["parents"][stored["parents"] >= 0]
    assert len(parents) >= 2 * len(stored["images"])  # every mixture has two parents or more
    assert set(parents.tolist()) <= set(stored["sources"].tolist())
    assert len(stored["sources"]) == 497
    pools = digit_pools(seed)
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
    drawn = [digit_pools(seed).ambiguous for seed in (0, 0, 1)]
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
    pools = digit_pools(0)
    assert float(pools.clean.x.min()) == pytest.approx(-pixels.mean() / pixels.std())
    assert float(pools.clean.x.max()) == pytest.approx((1 - pixels.mean()) / pixels.std())
    assert abs(float(pools.clean.x.mean())) < 0.05  # other digits, so close to 0 and 1, not equal
    assert abs(float(pools.clean.x.std()) - 1) < 0.05


@pytest.mark.parametrize("partition", ["shards", "iid", "dirichlet:0.3", "quantity:0.5"])
def test_the_same_seed_gives_the_same_data_and_another_seed_other_data(partition: str):
    one, again, other = (
        load("dirty-digits", partition=partition, seed=seed).fingerprint for seed in (0, 0, 1)
    )
    assert one == again
    assert one != other


def test_a_partition_value_is_as_good_as_its_text():
    by_text = load("dirty-digits", partition="dirichlet:0.3")
    assert (
        load("dirty-digits", partition=Partition("dirichlet", alpha=0.3)).fingerprint
        == by_text.fingerprint
    )
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
