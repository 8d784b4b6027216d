"""Every cut: disjoint, nobody empty, the same for the same stream, and exact where the paper is."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from udjfl.data.partition import (
    FEWEST,
    Partition,
    clean_shards,
    cut,
    dirichlet,
    iid,
    quantity,
    shards,
)
from udjfl.data.split import split_train_test, stratified_sample
from udjfl.errors import DataError, SettingsError
from udjfl.seeds import numpy_stream


def pool(clean: int, ambiguous: int, classes: int = 10) -> tuple[np.ndarray, np.ndarray]:
    """Labels 0, 1, ..., 0, 1, ... and which examples are ambiguous (the last ones)."""
    labels = np.arange(clean + ambiguous) % classes
    return labels, np.arange(clean + ambiguous) >= clean


def papers_mix(clients: int, per_client: int = 20) -> list[tuple[int, int]]:
    """How many clean and ambiguous shards each client has, unless the partition says otherwise."""
    return [(clean, per_client - clean) for clean in clean_shards(clients, per_client)]


# Partition as text ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("shards", Partition("shards", shards_per_client=20)),
        ("paper", Partition("shards")),
        ("shards:60", Partition("shards", shard_size=60)),
        ("shards:size=60,per-client=10", Partition("shards", shard_size=60, shards_per_client=10)),
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
        (
            "shards(size=7, mix = 3/0 + 0/2)",
            Partition("shards", shard_size=7, mix=((3, 0), (0, 2))),
        ),
    ],
)
def test_parsing(text: str, expected: Partition):
    assert Partition.parse(text) == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("dirichlt", "Did you mean 'dirichlet'?"),
        ("dirichlt:0.3", "Did you mean 'dirichlet'?"),
        ("", "partition '' is unknown"),
        ("dirichlet:", "'' is not a number"),
        ("dirichlet:abc", "'abc' is not a number"),
        ("dirichlet:0", "alpha is 0.0: give a finite number above 0"),
        ("dirichlet:-1", "alpha is -1.0"),
        ("quantity:nan", "alpha is nan"),
        ("quantity:inf", "alpha is inf"),
        ("dirichlet(0.3", "cannot be read"),
        ("dirichlet:0.3,0.4", "alpha is given twice"),
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
        ("shards:mix=19/1,1/19", "'1/19' is not a whole number"),  # a comma begins the next option
        ("shards:mix=19/1,mix=1/19", "mix is given twice"),
        ("shards:mix=1/1+0/0", "give each client clean and ambiguous shards, at least one in all"),
        ("shards:mix=3/1,per-client=4", "per-client and mix both say how many shards a client has"),
    ],
)
def test_what_cannot_be_parsed(text: str, words: str):
    with pytest.raises(SettingsError) as caught:
        Partition.parse(text)
    assert words in str(caught.value)


def test_numbers_that_the_kind_does_not_use_are_mistakes_and_all_are_listed():
    with pytest.raises(SettingsError) as caught:
        Partition("iid", alpha=-1.0, shard_size=3)
    assert caught.value.mistakes == (
        "partition 'iid' does not use alpha: leave it out",
        "partition 'iid' does not use shard_size: leave it out",
        "partition alpha is -1.0: give a finite number above 0",
    )


def test_shards_come_in_whole_numbers():
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
            Partition, st.just("shards"), shard_size=st.none() | st.integers(1, 10**6), mix=MIXES
        ),
    )
)
def test_text_round_trips(partition: Partition):
    assert Partition.parse(str(partition)) == partition


def test_the_shortest_texts():
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


# All partitions ------------------------------------------------------------------------------------------------------

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
def test_every_cut_is_disjoint_leaves_nobody_empty_and_is_repeatable(
    partition, clients, clean, ambiguous, classes, seed
):
    labels, vague = pool(clean, ambiguous, classes)
    try:
        holdings = cut(partition, labels, vague, clients, numpy_stream(seed, "t"))
    except DataError:
        if partition.kind == "shards":
            needed = sum(clean_shards(clients, partition.shards_per_client))
            total = clients * partition.shards_per_client
            assert clean < needed or ambiguous < total - needed
        else:
            assert clean + ambiguous < FEWEST * clients
        return
    assert len(holdings) == clients
    assert min(map(len, holdings)) >= FEWEST
    rows = np.concatenate(holdings)
    assert len(np.unique(rows)) == len(rows)
    assert rows.min() >= 0
    assert rows.max() < len(labels)
    if partition.kind != "shards":
        assert len(rows) == len(labels)  # nothing is thrown away
    again = cut(partition, labels, vague, clients, numpy_stream(seed, "t"))
    assert all(np.array_equal(one, other) for one, other in zip(holdings, again, strict=True))


@pytest.mark.parametrize("text", ["shards", "iid", "dirichlet:0.3", "quantity:0.5"])
def test_another_stream_gives_another_cut(text: str):
    labels, vague = pool(500, 500)
    one, other = (
        cut(Partition.parse(text), labels, vague, 5, numpy_stream(seed, "t")) for seed in (0, 1)
    )
    assert not all(np.array_equal(np.sort(a), np.sort(b)) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("by_alpha", [dirichlet, quantity])
def test_more_clients_than_the_examples_allow(by_alpha):
    labels, _ = pool(7, 0)
    with pytest.raises(
        DataError,
        match=r"4 clients need 8 examples, 2 for each; there are 7\. Use at most 3 clients",
    ):
        by_alpha(labels, 4, 1.0, numpy_stream(0, "t"))
    with pytest.raises(DataError, match="4 clients need 8 examples"):
        iid(labels, 4, numpy_stream(0, "t"))
    assert [len(rows) for rows in iid(labels, 3, numpy_stream(0, "t"))] == [3, 2, 2]


def test_just_enough_examples_give_everyone_two():
    # 8 examples, 4 clients, and an alpha that gives everything to one client: the repair must share out all but two.
    for cut_by_alpha in (dirichlet, quantity):
        holdings = cut_by_alpha(np.zeros(8, dtype=np.int64), 4, 1e-300, numpy_stream(0, "t"))
        assert [len(rows) for rows in holdings] == [2, 2, 2, 2]


# Shards --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("clients", "per_client", "expected"),
    [
        (5, 20, [19, 15, 10, 5, 1]),  # the paper; the line itself is 19, 14.5, 10, 5.5, 1
        (1, 20, [10]),
        (2, 20, [19, 1]),
        (3, 20, [19, 10, 1]),
        (4, 20, [19, 13, 7, 1]),
        (6, 20, [19, 15, 12, 8, 5, 1]),  # 19, 15.4, 11.8, 8.2, 4.6, 1
        (3, 2, [1, 1, 1]),
        (3, 5, [4, 2, 1]),  # 4, 2.5, 1: the middle itself goes down
    ],
)
def test_how_many_shards_are_clean(clients: int, per_client: int, expected: list[int]):
    assert clean_shards(clients, per_client) == expected


@given(st.integers(2, 300), st.integers(2, 40))
def test_clean_shards_fall_from_nearly_all_to_one(clients: int, per_client: int):
    counts = clean_shards(clients, per_client)
    assert len(counts) == clients
    assert (counts[0], counts[-1]) == (per_client - 1, 1)
    assert counts == sorted(counts, reverse=True)
    if per_client % 2 == 0:
        assert sum(counts) * 2 == clients * per_client  # as many clean as ambiguous shards


def test_the_papers_counts_are_exact():
    # 50 clean and 50 ambiguous shards; 1,000 // 50 = 20 and 1,049 // 50 = 20 examples a shard.
    labels, vague = pool(1000, 1049)
    holdings = shards(labels, vague, papers_mix(5), numpy_stream(0, "t"))
    assert [len(rows) for rows in holdings] == [400] * 5
    assert [int((~vague[rows]).sum()) for rows in holdings] == [
        19 * 20,
        15 * 20,
        10 * 20,
        5 * 20,
        1 * 20,
    ]


def test_a_shard_is_a_run_of_sorted_labels():
    # 4 classes x 10 clean and as many ambiguous; 2 clients with 19/1 and 1/19: 20 shards of each sort, of 2 examples.
    # Sorted by label, each run of 2 has one label only, so every client has an even number of each label.
    labels, vague = pool(40, 40, classes=4)
    for seed in range(5):
        for rows in shards(labels, vague, papers_mix(2), numpy_stream(seed, "t")):
            for part in (rows[~vague[rows]], rows[vague[rows]]):
                assert all(count % 2 == 0 for count in np.bincount(labels[part], minlength=4))


def test_shards_are_dealt_at_random():
    # Client 2 has one clean shard of 20. Dealt in label order it would always be the last one, of label 3.
    labels, vague = pool(40, 40, classes=4)
    dealt = [shards(labels, vague, papers_mix(2), numpy_stream(seed, "t"))[1] for seed in range(10)]
    assert len({int(labels[rows[~vague[rows]]][0]) for rows in dealt}) > 1


def test_what_the_shards_do_not_need_is_left_out_at_random_not_from_the_end():
    # 1 client, 10 + 10 shards of 1: it takes 10 of 100 clean examples. The pool itself is in label order, ten of each, so
    # taking the first ten, before or after sorting, would leave label 0 only.
    labels, vague = np.tile(np.repeat(np.arange(10), 10), 2), np.arange(200) >= 100
    (rows,) = shards(labels, vague, papers_mix(1), numpy_stream(0, "t"), shard_size=1)
    assert len(rows) == 20
    for part in (rows[~vague[rows]], rows[vague[rows]]):
        assert len(set(labels[part])) > 4


def test_shards_of_a_given_size_and_number():
    labels, vague = pool(100, 100)
    holdings = shards(
        labels, vague, papers_mix(2, per_client=4), numpy_stream(0, "t"), shard_size=3
    )
    assert [len(rows) for rows in holdings] == [12, 12]  # 4 shards of 3
    assert [int((~vague[rows]).sum()) for rows in holdings] == [9, 3]  # 3/1 and 1/3 shards


@pytest.mark.parametrize(
    ("clean", "ambiguous", "clients", "size", "words"),
    [
        (
            1000,
            1000,
            5,
            21,
            r"shards of 21 need 1050 clean and 1050 ambiguous examples; there are 1000 and 1000\.",
        ),
        (1000, 1000, 5, 21, "Use a shard size of at most 20, fewer clients"),
        (
            1000,
            1000,
            101,
            None,
            r"101 clients .* need 1010 clean and 1010 ambiguous examples; there are 1000 and 1000",
        ),
        (
            1000,
            0,
            5,
            None,
            r"there are 1000 and 0\. Use fewer clients, or another partition \(iid, dirichlet, quantity\)",
        ),
        (0, 1000, 5, None, "there are 0 and 1000"),
        (49, 1000, 5, None, "need 50 clean and 50 ambiguous examples; there are 49 and 1000"),
    ],
)
def test_shards_that_do_not_fit(
    clean: int, ambiguous: int, clients: int, size: int | None, words: str
):
    labels, vague = pool(clean, ambiguous)
    with pytest.raises(DataError, match=words):
        shards(labels, vague, papers_mix(clients), numpy_stream(0, "t"), shard_size=size)


def test_a_mix_by_hand():
    # Three clients with 2/0, 1/1 and 0/3 shards: 3 clean and 4 ambiguous. 10 clean and 8 ambiguous examples leave room for
    # shards of 10 // 3 = 3 and 8 // 4 = 2, so of 2: the clients have 4, 4 and 6 examples.
    labels, vague = pool(10, 8, classes=2)
    holdings = cut(
        Partition.parse("shards:mix=2/0+1/1+0/3"), labels, vague, 3, numpy_stream(0, "t")
    )
    assert [(int((~vague[rows]).sum()), int(vague[rows].sum())) for rows in holdings] == [
        (4, 0),
        (2, 2),
        (0, 6),
    ]
    assert len(np.unique(np.concatenate(holdings))) == 14


def test_a_mix_of_clean_shards_alone_needs_no_ambiguous_data():
    labels, vague = pool(12, 0, classes=3)
    holdings = cut(Partition.parse("shards:mix=1/0+2/0"), labels, vague, 2, numpy_stream(0, "t"))
    assert [len(rows) for rows in holdings] == [4, 8]  # 12 // 3 = 4 a shard


def test_the_papers_numbers_written_as_a_mix_are_the_papers_federation():
    labels, vague = pool(1000, 1049)
    for text in ("shards", "shards:mix=19/1+15/5+10/10+5/15+1/19"):
        holdings = cut(Partition.parse(text), labels, vague, 5, numpy_stream(0, "t"))
        expected = shards(labels, vague, papers_mix(5), numpy_stream(0, "t"))
        assert all(
            np.array_equal(one, other) for one, other in zip(holdings, expected, strict=True)
        )


def test_a_mix_for_another_number_of_clients():
    labels, vague = pool(1000, 1000)
    with pytest.raises(
        DataError,
        match=r"partition shards:mix=3/1\+1/3 is for 2 clients, and clients is 5: make them agree",
    ):
        cut(Partition.parse("shards:mix=3/1+1/3"), labels, vague, 5, numpy_stream(0, "t"))


def test_a_mix_that_does_not_fit_says_how_many_shards_there_are():
    labels, vague = pool(10, 10)
    with pytest.raises(
        DataError,
        match="2 clients with 4 to 9 shards of 3 need 30 clean and 9 ambiguous examples; there are 10",
    ):
        cut(Partition.parse("shards:size=3,mix=3/1+7/2"), labels, vague, 2, numpy_stream(0, "t"))


# Groups within shards ------------------------------------------------------------------------------------------------


def tracks(per_label: int, length: int, classes: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Labels, groups and which are ambiguous: tracks of `length` frames of one label, as many clean as ambiguous ones."""
    groups = np.repeat(np.arange(2 * classes * per_label), length)
    labels = groups // per_label % classes
    return labels, groups, groups >= classes * per_label


@pytest.mark.parametrize("seed", range(5))
def test_tracks_stay_whole_where_their_length_divides_a_shard(seed: int):
    # 4 labels x 10 clean and 10 ambiguous tracks of 30 frames: 1,200 of each kind, for 2 clients with 19/1 and 1/19 shards of
    # 60. A label's 300 frames are 5 shards, so no shard has two labels, and every shard has two whole tracks.
    labels, groups, vague = tracks(per_label=10, length=30, classes=4)
    order = np.random.default_rng(seed).permutation(
        len(labels)
    )  # frames of a track need not come one after the other
    labels, groups, vague = labels[order], groups[order], vague[order]
    holdings = cut(Partition.parse("shards:60"), labels, vague, 2, numpy_stream(seed, "t"), groups)
    assert [len(rows) for rows in holdings] == [1200, 1200]
    assert set(groups[holdings[0]]).isdisjoint(groups[holdings[1]])
    # 40 tracks each, of which a fifth is 8, exactly 240 frames.
    parts = split_train_test(holdings, groups, numpy_stream(seed, "split"))
    assert [(len(train), len(test)) for train, test in parts] == [(960, 240)] * 2
    for train, test in parts:
        assert set(groups[train]).isdisjoint(groups[test])


def test_without_groups_the_same_tracks_are_torn_apart():
    labels, groups, vague = tracks(per_label=10, length=30, classes=4)
    holdings = cut(Partition.parse("shards:60"), labels, vague, 2, numpy_stream(0, "t"))
    assert set(groups[holdings[0]]) & set(groups[holdings[1]])


def test_tracks_beyond_what_the_shards_need_are_left_out_whole():
    # 2 clients with 3/1 and 1/3 shards of 60 take 240 clean frames, 8 of the 40 clean tracks. They cannot all be of one
    # label in every draw, as taking the first of the pool would have it.
    labels, groups, vague = tracks(per_label=10, length=30, classes=4)
    seen = set()
    for seed in range(5):
        holdings = cut(
            Partition.parse("shards:size=60,per-client=4"),
            labels,
            vague,
            2,
            numpy_stream(seed, "t"),
            groups,
        )
        clean = np.concatenate([rows[~vague[rows]] for rows in holdings])
        assert np.bincount(groups[clean])[np.unique(groups[clean])].tolist() == [30] * 8
        seen |= set(labels[clean].tolist())
    assert seen == {0, 1, 2, 3}


@pytest.mark.parametrize("seed", range(5))
def test_tracks_of_another_length_are_the_first_to_be_left_out(seed: int):
    # As above, and four clean tracks of 20 frames besides, one of each label, in front of the others. 1,200 of the 1,280
    # clean frames are needed, which the tracks of 30 give; with any of the others among them, shards would tear tracks.
    labels, groups, vague = tracks(per_label=10, length=30, classes=4)
    short = np.repeat(np.arange(4), 20)
    labels, groups = np.concatenate([short, labels]), np.concatenate([1000 + short, groups])
    vague = np.concatenate([np.zeros(80, dtype=np.bool_), vague])
    one, other = cut(
        Partition.parse("shards:60"), labels, vague, 2, numpy_stream(seed, "t"), groups
    )
    assert (len(one), len(other)) == (1200, 1200)
    assert max(groups[np.concatenate([one, other])]) < 1000
    assert set(groups[one]).isdisjoint(groups[other])


@given(st.integers(0, 99), st.integers(1, 6))
def test_groups_of_one_leave_the_draw_as_it_was(seed: int, clients: int):
    labels, vague = pool(130, 150)
    numbers = numpy_stream(seed, "numbers").permutation(280)
    plain = cut(Partition("shards"), labels, vague, clients, numpy_stream(seed, "t"))
    grouped = cut(Partition("shards"), labels, vague, clients, numpy_stream(seed, "t"), numbers)
    assert all(np.array_equal(one, other) for one, other in zip(plain, grouped, strict=True))


# Skew ----------------------------------------------------------------------------------------------------------------


def test_small_alpha_concentrates_each_class_and_large_alpha_spreads_it():
    labels, _ = pool(5000, 0)

    def largest_holder(alpha: float) -> float:
        """The share of a class that its largest holder has, averaged over classes: 1/5 when spread evenly, at most 1."""
        holdings = dirichlet(labels, 5, alpha, numpy_stream(0, "t"))
        counts = np.array([np.bincount(labels[rows], minlength=10) for rows in holdings])
        return float((counts.max(0) / counts.sum(0)).mean())

    assert largest_holder(0.01) > 0.9
    assert largest_holder(1e6) < 0.21
    assert (
        largest_holder(1.7e308) < 0.21
    )  # near the largest number there is, where the sampler alone overflows


def test_quantity_skews_sizes_and_not_labels():
    labels, _ = pool(20000, 0)
    holdings = quantity(labels, 5, 0.3, numpy_stream(0, "t"))
    sizes = sorted(len(rows) for rows in holdings)
    assert sizes[-1] > 2 * sizes[0]
    shares = np.bincount(labels[max(holdings, key=len)], minlength=10) / sizes[-1]
    assert np.abs(shares - 0.1).max() < 0.02  # sampling error at a size of some thousands is 0.005
    even = [len(rows) for rows in quantity(labels, 5, 1e9, numpy_stream(0, "t"))]
    assert max(even) - min(even) <= 20


def test_iid_deals_at_random_in_equal_parts():
    labels, _ = pool(1003, 0)
    holdings = iid(labels, 5, numpy_stream(0, "t"))
    assert [len(rows) for rows in holdings] == [201, 201, 201, 200, 200]
    assert not np.array_equal(holdings[0], np.arange(201))


# Train and test ------------------------------------------------------------------------------------------------------


def test_the_split_is_80_to_20_with_at_least_one_on_each_side():
    sizes = [2, 3, 4, 5, 10, 12, 13, 400]
    holdings = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
    parts = split_train_test(holdings, np.arange(sum(sizes)), numpy_stream(0, "t"))
    # A fifth, rounded (0.4 0.6 0.8 1 2 2.4 2.6 80) but at least 1.
    assert [len(test) for _, test in parts] == [1, 1, 1, 1, 2, 2, 3, 80]
    for rows, (train, test) in zip(holdings, parts, strict=True):
        assert sorted([*train, *test]) == rows.tolist()


def test_a_large_test_share_still_leaves_one_to_train_on():
    ((train, test),) = split_train_test(
        [np.arange(10)], np.arange(10), numpy_stream(0, "t"), test_share=0.99
    )
    assert (len(train), len(test)) == (1, 9)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_no_group_is_ever_on_both_sides_in_the_whole_federation(data: st.DataObject):
    sizes = data.draw(st.lists(st.integers(2, 12), min_size=1, max_size=6))
    groups = np.array(
        data.draw(st.lists(st.integers(0, 15), min_size=sum(sizes), max_size=sum(sizes))),
        dtype=np.int64,
    )
    holdings = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
    try:
        parts = split_train_test(holdings, groups, numpy_stream(0, "t"))
    except DataError:
        # Only a client with few groups can be stuck; with six or more of its own there is always one to spare.
        assert min(len(set(groups[rows])) for rows in holdings) < 6
        return
    train, test = (np.concatenate(side) for side in zip(*parts, strict=True))
    assert not set(groups[train]) & set(groups[test])
    assert sorted([*train, *test]) == list(range(sum(sizes)))
    assert all(len(one) > 0 and len(other) > 0 for one, other in parts)


def test_groups_inside_one_client_are_held_out_whole():
    # Ten groups of 3: a fifth of 30 is 6, so two whole groups.
    groups = np.repeat(np.arange(10), 3)
    ((_, test),) = split_train_test([np.arange(30)], groups, numpy_stream(0, "t"))
    assert len(test) == 6
    assert sorted(np.bincount(groups[test], minlength=10)) == [0] * 8 + [3, 3]


def test_a_group_too_large_for_the_test_part_is_held_out_if_there_is_no_smaller_one():
    # Two groups of 4 and 2: a fifth of 6 is 1, neither fits, so the smaller one is the test part.
    ((train, test),) = split_train_test(
        [np.arange(6)], np.array([0, 0, 0, 0, 1, 1]), numpy_stream(0, "t")
    )
    assert (train.tolist(), test.tolist()) == ([0, 1, 2, 3], [4, 5])


def test_a_client_with_copies_of_one_image_only_cannot_be_split():
    with pytest.raises(DataError, match="client 2 has 3 examples in 1 groups of copies"):
        split_train_test(
            [np.arange(3), np.arange(3, 6)], np.array([0, 1, 2, 3, 3, 3]), numpy_stream(0, "t")
        )


def test_the_split_is_random_and_repeatable():
    holdings, groups = [np.arange(100)], np.arange(100)
    one, again, other = (
        split_train_test(holdings, groups, numpy_stream(seed, "t"))[0][1] for seed in (0, 0, 1)
    )
    assert np.array_equal(one, again)
    assert not np.array_equal(one, other)
    assert not np.array_equal(one, np.arange(20))


def test_a_stratified_sample_keeps_the_shares():
    # 10 of 20: classes of 11, 6, 3 have exact shares 5.5, 3, 1.5; floors 5, 3, 1 leave one, and the first of the two
    # equal remainders gets it: 6, 3, 1.
    labels = np.repeat([0, 1, 2], [11, 6, 3])
    rows = stratified_sample(labels, 10, numpy_stream(0, "t"))
    assert np.bincount(labels[rows]).tolist() == [6, 3, 1]
    assert len(set(rows.tolist())) == 10
