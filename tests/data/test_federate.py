"""Cutting pools into clients: sizes, shares, natural clients, test parts, tuning."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from data_helpers import SEEDS, held_out_rows, row_set, small_pools, train_rows

from udjfl.data import (
    SOURCES,
    Client,
    Examples,
    Federation,
    Partition,
    Pools,
    Source,
    federate,
    load,
)
from udjfl.data.federate import without_test_parts
from udjfl.data.source import Parts, Prepared
from udjfl.errors import DataError


def test_shares_and_sizes_by_hand() -> None:
    # 2 clients with 19/1 and 1/19 shards of 100 // 20 = 5 examples: 95 clean and 5 ambiguous, and
    # the other way round. A fifth is held out.
    federation = federate("small", small_pools(), 2, Partition("shards"), seed=0)
    assert federation.sizes == (80, 80)
    for client, ambiguous in zip(federation.clients, (5, 95), strict=True):
        both = Examples.concatenate([client.train, client.test])
        assert int((both.x >= 1000).sum()) == ambiguous
        assert client.ambiguous_share == int((client.train.x >= 1000).sum()) / 80


@pytest.mark.parametrize("partition", ["shards", "iid", "dirichlet:0.2", "quantity:0.5"])
def test_copies_of_an_image_stay_on_one_side_across_clients(partition) -> None:
    # Each ambiguous image is there five times, with different labels, so sorting by label spreads
    # it over clients. The federation itself would refuse a copy on the other side.
    for seed in SEEDS:
        federation = federate("small", small_pools(copies=5), 5, Partition.parse(partition), seed)
        train = train_rows(federation)
        test = row_set(*(client.test for client in federation.clients))
        assert train.isdisjoint(test)
        assert len(train | test) > 20


def test_a_source_may_choose_the_share_of_the_test_parts() -> None:
    # 200 examples in two clients: 100 each, of which 40 and not 20 are for testing.
    pools = replace(small_pools(), test_share=0.4)
    federation = federate("small", pools, 2, Partition("iid"), seed=0)
    assert federation.sizes == (60, 60)
    assert [len(client.test) for client in federation.clients] == [40, 40]


def test_originals_replace_clean_examples_in_a_shared_test_set_made_of_test_parts() -> None:
    pools = small_pools(ambiguous=False, test=False)
    originals = Examples(pools.clean.x + 0.5, pools.clean.y)
    pools = replace(pools, originals=originals)
    federation = federate("small", pools, 2, Partition("iid"), seed=0)
    tested = torch.cat([client.test.x for client in federation.clients])
    assert torch.equal(federation.test.x, tested + 0.5)
    assert federation.test.y.tolist() == [int(x - 0.5) % 4 for x in federation.test.x]


def first_client(clients: int, seed: int) -> Client:
    return federate("small", small_pools(), clients, Partition("iid"), seed).clients[0]


def test_the_seed_decides_the_partition_and_the_split() -> None:
    one, again, other = (first_client(2, seed) for seed in (0, 0, 1))
    held = [row_set(client.train, client.test) for client in (one, again, other)]
    assert held[0] == held[1] != held[2]
    # A single client has all examples, so only the split can differ.
    tests = [row_set(first_client(1, seed).test) for seed in (0, 0, 1)]
    assert tests[0] == tests[1] != tests[2]


def test_without_ambiguous_data_shares_are_unknown_and_shards_are_refused() -> None:
    federation = federate("small", small_pools(ambiguous=False), 4, Partition("iid"), seed=0)
    assert [client.ambiguous_share for client in federation.clients] == [None] * 4
    assert federation.sizes == (20, 20, 20, 20)  # 25 each, a fifth held out
    with pytest.raises(DataError, match="there are 100 and 0"):
        federate("small", small_pools(ambiguous=False), 4, Partition("shards"), seed=0)


def clean_test_parts(federation: Federation) -> torch.Tensor:
    return torch.cat([client.test.x[client.test.x[:, 0] < 1000] for client in federation.clients])


def test_global_test_set_defaults_to_the_clients_clean_test_parts() -> None:
    federation = federate("small", small_pools(test=False), 2, Partition("shards"), seed=0)
    assert torch.equal(federation.test.x, clean_test_parts(federation))
    assert len(federation.test) > 0


# Natural clients --------------------------------------------------------------------------------


def hospitals(*owners: str) -> Pools:
    """Make one clean example for each owner, its index being its feature; no test set."""
    n = len(owners)
    clean = Examples(torch.arange(float(n)).reshape(n, 1), torch.arange(n) % 2)
    none = np.empty(0, dtype=np.int64)
    return Pools(clean, None, None, ("a", "b"), np.arange(n), none, owners=owners)


def federate_natural(pools: Pools, *, tuning: bool = False) -> Federation:
    """Make the federation of two hospitals."""
    return federate("hospitals", pools, 2, Partition("natural"), seed=0, tuning=tuning)


def test_natural_clients_have_their_own_names_and_data() -> None:
    owners = ("Lund", "Basel", "Lund", "Basel", "Lund", "Oslo", "Oslo", "Lund", "Lund", "Oslo")
    federation = federate("hospitals", hospitals(*owners), 3, Partition("natural"), seed=0)
    assert federation.ids == ("Basel", "Lund", "Oslo")
    for client in federation.clients:
        held = Examples.concatenate([client.train, client.test]).x[:, 0].int().tolist()
        assert sorted(held) == [index for index, owner in enumerate(owners) if owner == client.id]
        assert len(client.test) == 1
        assert client.ambiguous_share is None
    tests = [float(client.test.x[0, 0]) for client in federation.clients]
    assert sorted(federation.test.x[:, 0].tolist()) == sorted(tests)


def test_natural_clients_are_those_of_the_source_by_default(monkeypatch) -> None:
    source = Source(
        "hospitals", "", "", lambda _: hospitals(*"aabbcc"), clients=3, partition="natural"
    )
    monkeypatch.setitem(SOURCES, "hospitals", source)
    federation = load("hospitals")
    assert federation.ids == ("a", "b", "c")
    assert federation.origin == {
        "data": "hospitals",
        "clients": 3,
        "partition": "natural",
        "seed": 0,
    }
    assert load("hospitals", clients=2, partition="iid").ids == ("client-1", "client-2")
    words = "clients is 2, but hospitals has 3 natural clients: leave the number out, or choose"
    with pytest.raises(DataError, match=words):
        load("hospitals", clients=2)


def test_natural_clients_need_owners() -> None:
    words = "partition natural: the examples of dirty-digits have no owners; use shards, iid"
    with pytest.raises(DataError, match=words):
        load("dirty-digits", partition="natural")
    with pytest.raises(DataError, match="hospitals: 3 owners for 4 examples"):
        federate_natural(replace(hospitals(*"aabb"), owners=("a", "a", "b")))


def test_each_client_is_preprocessed_by_its_own_train_part() -> None:
    calls: list[tuple[Examples, Examples]] = []

    def preprocess(parts: Parts, test: Examples | None) -> Prepared:
        calls.extend(parts.values())
        means = {client: train.x.mean() for client, (train, _) in parts.items()}
        scaled = {
            client: (replace(one, x=one.x - means[client]), replace(two, x=two.x - means[client]))
            for client, (one, two) in parts.items()
        }
        return Prepared(scaled, test)

    pools = hospitals(*["a"] * 10, *["b"] * 5)
    plain = federate_natural(pools)
    federation = federate_natural(replace(pools, preprocess=preprocess, tabular=True))
    assert len(calls) == 2
    for client, before, (train, test) in zip(federation.clients, plain.clients, calls, strict=True):
        assert torch.equal(train.x, before.train.x)
        assert torch.equal(test.x, before.test.x)
        assert torch.equal(client.train.x, train.x - train.x.mean())
        assert torch.equal(client.test.x, test.x - train.x.mean())
    # The global test set consists of the preprocessed test parts.
    assert torch.equal(
        federation.test.x, torch.cat([client.test.x for client in federation.clients])
    )


def test_equal_rows_are_allowed_in_tabular_data_only() -> None:
    equal = Examples(torch.ones(10, 1), torch.arange(10) % 2)
    pools = replace(hospitals(*"aaaaabbbbb"), clean=equal)
    with pytest.raises(DataError, match="are also test examples"):
        federate_natural(pools)
    assert federate_natural(replace(pools, tabular=True)).allow_duplicates


# Tuning -----------------------------------------------------------------------------------------


def multiset(*parts: Examples) -> list[tuple[float, int]]:
    """Return features and labels, sorted."""
    return sorted(
        (float(x), int(y)) for part in parts for x, y in zip(part.x.flatten(), part.y, strict=True)
    )


@pytest.mark.parametrize(
    "partition", ["shards", "iid", "dirichlet:0.5", "quantity:0.8", "shards:mix=5/2+2/5+1/1"]
)
@pytest.mark.parametrize("test", [True, False])
@pytest.mark.parametrize("copies", [1, 5])
def test_tuning_uses_nothing_that_is_tested_on(partition: str, test: bool, copies: int) -> None:
    for seed in SEEDS:
        pools = small_pools(copies=copies, test=test)
        arguments = ("small", pools, 3, Partition.parse(partition), seed)
        usual, tuning = federate(*arguments), federate(*arguments, tuning=True)
        held_out = held_out_rows(usual)
        assert len(held_out) > 3
        assert held_out.isdisjoint(train_rows(tuning) | held_out_rows(tuning))
        for client, tuned in zip(usual.clients, tuning.clients, strict=True):
            assert tuned.id == client.id
            assert multiset(tuned.train, tuned.test) == multiset(client.train)
        # Copies of an image are on one side here, too, in the whole federation.
        assert train_rows(tuning).isdisjoint(held_out_rows(tuning))
        assert torch.equal(tuning.test.x, clean_test_parts(tuning))


def test_a_fifth_of_the_train_part_is_held_out_for_tuning() -> None:
    tuning = federate("small", small_pools(), 2, Partition("shards"), seed=0, tuning=True)
    assert tuning.sizes == (64, 64)  # of 100 examples 80 are for training; a fifth of those is 16
    assert [len(client.test) for client in tuning.clients] == [16, 16]
    for client in tuning.clients:
        assert client.ambiguous_share == int((client.train.x >= 1000).sum()) / 64


def test_tuning_preprocesses_by_the_smaller_train_part() -> None:
    seen: list[Any] = []

    def preprocess(parts: Parts, test: Examples | None) -> Prepared:
        seen.extend((multiset(one), multiset(two)) for one, two in parts.values())
        return Prepared(parts, test)

    pools = replace(hospitals(*["a"] * 20, *["b"] * 20), preprocess=preprocess)
    usual = federate_natural(replace(pools, preprocess=None))
    federate_natural(pools, tuning=True)
    # 20, less 4, less round(3.2).
    assert [(len(train), len(test)) for train, test in seen] == [(13, 3)] * 2
    for client, (train, test) in zip(usual.clients, seen, strict=True):
        assert sorted(train + test) == multiset(client.train)


def test_classes_are_held_out_in_proportion() -> None:
    y = [0] * 80 + [1] * 15 + [2] * 5
    x = np.arange(200.0).reshape(2, 100, 1)
    clients = {"a": (x[0], y, [[500.0]], [0]), "b": (x[1], y, [[501.0]], [0])}
    federation = Federation.from_arrays(clients, test=([[502.0]], [0]))
    for seed in SEEDS:
        held_out = without_test_parts(federation, seed)
        counts = [torch.bincount(client.test.y).tolist() for client in held_out.clients]
        assert counts == [[16, 3, 1]] * 2


def test_numbers_are_held_out_whatever_they_are() -> None:
    x = np.arange(20.0).reshape(20, 1)
    clients = {"a": (x, np.linspace(-1, 1, 20), [[50.0]], [0.5])}
    federation = Federation.from_arrays(clients, test=([[51.0]], [0.5]), task="regression")
    assert len(without_test_parts(federation, 0).clients[0].test) == 4
