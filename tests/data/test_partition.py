"""Partitions as texts, and what holds for every cut."""

from __future__ import annotations

import numpy as np
import pytest
from data_helpers import make_labels
from hypothesis import given, settings
from hypothesis import strategies as st

from udjfl.data.partition import (
    MIN_EXAMPLES,
    Partition,
    clean_shards,
    cut,
    cut_dirichlet,
    cut_iid,
    cut_quantity,
)
from udjfl.errors import DataError, SettingsError
from udjfl.seeds import numpy_stream

# Partition as text ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("shards", Partition("shards", shards_per_client=20)),
        ("paper", Partition("shards")),
        ("shards:60", Partition("shards", shard_size=60)),
        ("shards:size=60,per-client=10", Partition("shards", shard_size=60, shards_per_client=10)),
        ("shards:60:per_client=10", Partition("shards", shard_size=60, shards_per_client=10)),
        ("shards(per_client = 4)", Partition("shards", shards_per_client=4)),
        ("iid", Partition("iid")),
        ("  IID ", Partition("iid")),
        ("quantity", Partition("quantity", alpha=1.0)),
        ("quantity-skew", Partition("quantity", alpha=1.0)),
        ("quantity_skew:0.5", Partition("quantity", alpha=0.5)),
        ("dirichlet", Partition("dirichlet", alpha=0.5)),
        ("dirichlet:0.3", Partition("dirichlet", alpha=0.3)),
        ("dirichlet(0.3)", Partition("dirichlet", alpha=0.3)),
        ("dirichlet: alpha=3e-1", Partition("dirichlet", alpha=0.3)),
        ("natural", Partition("natural")),
        ("shards:mix=19/1+1/19", Partition("shards", mix=((19, 1), (1, 19)))),
        ("shards:60,order=kept", Partition("shards", shard_size=60, order="kept")),
        (
            "shards(size=7, mix = 3/0 + 0/2)",
            Partition("shards", shard_size=7, mix=((3, 0), (0, 2))),
        ),
    ],
)
def test_texts_are_parsed(text: str, expected: Partition) -> None:
    assert Partition.parse(text) == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("dirichlt", "Did you mean 'dirichlet'?"),
        ("shards:order=random", "write order=kept, or leave it out"),
        ("dirichlt:0.3", "Did you mean 'dirichlet'?"),
        ("", "partition '' is unknown"),
        ("dirichlet:", "'' is not a number"),
        ("dirichlet:abc", "'abc' is not a number"),
        ("dirichlet:0", "alpha is 0.0: give a finite number above 0"),
        ("dirichlet:-1", "alpha is -1.0"),
        ("quantity:nan", "alpha is nan"),
        ("quantity:inf", "alpha is inf"),
        ("dirichlet(0.3", "cannot be read"),
        ("dirichlet:0.3,0.4", "has '0.4' where key=value was expected"),
        ("dirichlet:0.3,alpha=0.4", "gives alpha twice; give it once"),
        ("dirichlet:alhpa=0.3", "Did you mean 'alpha'?"),
        ("iid:0.3", "iid takes no number"),
        ("shards:0", "shard_size is 0: give a whole number of at least 1"),
        ("shards:1.5", "'1.5' is not a whole number"),
        ("shards:per-client=1", "shards_per_client is 1: give a whole number of at least 2"),
        ("natural:2", "natural takes no number"),
        ("iid:mix=1/1", "iid takes no number"),
        ("dirichlet:mix=1/1", "option 'mix' is unknown"),
        (
            "shards:mix=",
            "write mix as clean/ambiguous shards of each client, as in 'shards:mix=19/1+1/19'",
        ),
        ("shards:mix=19", "write mix as"),
        ("shards:mix=19/1+", "write mix as"),
        ("shards:mix=19/-1", "write mix as"),
        ("shards:mix=1.5/1", "write mix as"),
        ("shards:mix=19/1/1", "write mix as"),
        ("shards:mix=19/1,1/19", "has '1/19' where key=value was expected"),
        ("shards:mix=19/1,mix=1/19", "gives mix twice"),
        ("shards:mix=1/1+0/0", "give each client clean and ambiguous shards, at least one in all"),
        ("shards:mix=3/1,per-client=4", "per-client and mix both set the shards of a client"),
    ],
)
def test_unreadable_texts_are_refused(text: str, words: str) -> None:
    with pytest.raises(SettingsError) as caught:
        Partition.parse(text)
    assert words in str(caught.value)


def test_every_field_that_the_kind_does_not_use_is_listed() -> None:
    with pytest.raises(SettingsError) as caught:
        Partition("iid", alpha=-1.0, shard_size=3)
    assert caught.value.mistakes == (
        "partition 'iid' does not use alpha: leave it out",
        "partition 'iid' does not use shard_size: leave it out",
        "partition alpha is -1.0: give a finite number above 0",
    )


def test_shard_size_must_be_a_whole_number() -> None:
    with pytest.raises(
        SettingsError, match=r"shard_size is 1\.5: give a whole number of at least 1"
    ):
        Partition("shards", shard_size=1.5)  # type: ignore[arg-type]


MIXES = st.lists(
    st.tuples(st.integers(0, 99), st.integers(0, 99)).filter(any), min_size=1, max_size=8
).map(tuple)


@given(
    st.one_of(
        st.sampled_from([Partition("iid"), Partition("natural")]),
        st.builds(
            Partition,
            st.sampled_from(["dirichlet", "quantity"]),
            alpha=st.none()
            | st.floats(min_value=0, exclude_min=True, allow_infinity=False)
            | st.integers(1, 99),
        ),
        st.builds(
            Partition,
            st.just("shards"),
            shard_size=st.none() | st.integers(1, 10**6),
            shards_per_client=st.none() | st.integers(2, 10**6),
        ),
        st.builds(
            Partition,
            st.just("shards"),
            shard_size=st.none() | st.integers(1, 10**6),
            mix=MIXES,
            order=st.sampled_from([None, "kept"]),
        ),
    )
)
def test_text_round_trips(partition: Partition) -> None:
    assert Partition.parse(str(partition)) == partition


def test_texts_omit_defaults() -> None:
    assert [str(Partition(kind)) for kind in ("shards", "iid", "dirichlet")] == [
        "shards",
        "iid",
        "dirichlet:0.5",
    ]
    assert (
        str(Partition("shards", shard_size=7, mix=((19, 1), (1, 19))))
        == "shards:size=7,mix=19/1+1/19"
    )
    assert str(Partition("quantity", alpha=float(np.float64(0.3)))) == "quantity:0.3"
    assert str(Partition("quantity", alpha=np.float64(0.3))) == "quantity:0.3"


# All partitions ---------------------------------------------------------------------------------

PARTITIONS = st.one_of(
    st.just(Partition("iid")),
    st.builds(Partition, st.just("shards"), shards_per_client=st.integers(2, 20)),
    st.builds(
        Partition, st.sampled_from(["dirichlet", "quantity"]), alpha=st.floats(1e-300, 1e300)
    ),
)


@settings(max_examples=200, deadline=None)
@given(
    PARTITIONS,
    st.integers(1, 40),
    st.integers(0, 150),
    st.integers(0, 150),
    st.integers(1, 12),
    st.integers(0, 99),
)
def test_every_cut_is_disjoint_repeatable_and_gives_every_client_two_examples(
    partition, clients, clean, ambiguous, classes, seed
) -> None:
    labels, mask = make_labels(clean, ambiguous, classes)
    try:
        holdings = cut(partition, labels, mask, clients, numpy_stream(seed, "t"))
    except DataError:
        if partition.kind == "shards":
            needed = sum(clean_shards(clients, partition.shards_per_client))
            total = clients * partition.shards_per_client
            assert clean < needed or ambiguous < total - needed
        else:
            assert clean + ambiguous < MIN_EXAMPLES * clients
        return
    assert len(holdings) == clients
    assert min(map(len, holdings)) >= MIN_EXAMPLES
    indices = np.concatenate(holdings)
    assert len(np.unique(indices)) == len(indices)
    assert indices.min() >= 0
    assert indices.max() < len(labels)
    if partition.kind != "shards":
        assert len(indices) == len(labels)  # every example is used
    again = cut(partition, labels, mask, clients, numpy_stream(seed, "t"))
    assert all(np.array_equal(one, other) for one, other in zip(holdings, again, strict=True))


@pytest.mark.parametrize("text", ["shards", "iid", "dirichlet:0.3", "quantity:0.5"])
def test_another_stream_gives_another_cut(text: str) -> None:
    labels, ambiguous = make_labels(500, 500)
    one, other = (
        cut(Partition.parse(text), labels, ambiguous, 5, numpy_stream(seed, "t")) for seed in (0, 1)
    )
    assert not all(np.array_equal(np.sort(a), np.sort(b)) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("by_alpha", [cut_dirichlet, cut_quantity])
def test_too_many_clients_are_refused(by_alpha) -> None:
    labels, _ = make_labels(7, 0)
    with pytest.raises(
        DataError,
        match=r"4 clients need 8 examples, 2 for each; there are 7\. Use at most 3 clients",
    ):
        by_alpha(labels, 4, 1.0, numpy_stream(0, "t"))
    with pytest.raises(DataError, match="4 clients need 8 examples"):
        cut_iid(labels, 4, numpy_stream(0, "t"))
    assert [len(indices) for indices in cut_iid(labels, 3, numpy_stream(0, "t"))] == [3, 2, 2]


def test_minimum_number_of_examples_gives_every_client_two() -> None:
    # 8 examples, 4 clients, and an alpha that gives everything to one client: the repair must share
    # out all but two.
    for cut_by_alpha in (cut_dirichlet, cut_quantity):
        holdings = cut_by_alpha(np.zeros(8, dtype=np.int64), 4, 1e-300, numpy_stream(0, "t"))
        assert [len(indices) for indices in holdings] == [2, 2, 2, 2]


# Skew -------------------------------------------------------------------------------------------


def test_small_alpha_concentrates_each_class_and_large_alpha_spreads_it() -> None:
    labels, _ = make_labels(5000, 0)

    def largest_holder(alpha: float) -> float:
        """Return the mean share of a class that its largest holder has: from 1/5 to 1."""
        holdings = cut_dirichlet(labels, 5, alpha, numpy_stream(0, "t"))
        counts = np.array([np.bincount(labels[indices], minlength=10) for indices in holdings])
        return float((counts.max(0) / counts.sum(0)).mean())

    assert largest_holder(0.01) > 0.9
    assert largest_holder(1e6) < 0.21
    assert (
        largest_holder(1.7e308) < 0.21
    )  # near the largest number there is, where the sampler alone overflows


def test_quantity_skews_sizes_and_not_labels() -> None:
    labels, _ = make_labels(20000, 0)
    holdings = cut_quantity(labels, 5, 0.3, numpy_stream(0, "t"))
    sizes = sorted(len(indices) for indices in holdings)
    assert sizes[-1] > 2 * sizes[0]
    shares = np.bincount(labels[max(holdings, key=len)], minlength=10) / sizes[-1]
    assert np.abs(shares - 0.1).max() < 0.02  # sampling error at a size of some thousands is 0.005
    even = [len(indices) for indices in cut_quantity(labels, 5, 1e9, numpy_stream(0, "t"))]
    assert max(even) - min(even) <= 20


def test_iid_parts_are_random_and_of_equal_size() -> None:
    labels, _ = make_labels(1003, 0)
    holdings = cut_iid(labels, 5, numpy_stream(0, "t"))
    assert [len(indices) for indices in holdings] == [201, 201, 201, 200, 200]
    assert not np.array_equal(holdings[0], np.arange(201))
