"""The paper's partition: label-sorted shards, clean and ambiguous."""

from __future__ import annotations

import numpy as np
import pytest
from data_helpers import make_labels
from hypothesis import given
from hypothesis import strategies as st

from udjfl.data.partition import Partition, clean_shards, cut, cut_shards
from udjfl.data.split import split_train_test
from udjfl.errors import DataError
from udjfl.seeds import numpy_stream


def papers_mix(clients: int, per_client: int = 20) -> list[tuple[int, int]]:
    """Return the default number of clean and ambiguous shards of each client."""
    return [(clean, per_client - clean) for clean in clean_shards(clients, per_client)]


# Shards -----------------------------------------------------------------------------------------


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
def test_number_of_clean_shards(clients: int, per_client: int, expected: list[int]) -> None:
    assert clean_shards(clients, per_client) == expected


@given(st.integers(2, 300), st.integers(2, 40))
def test_clean_shards_fall_from_nearly_all_to_one(clients: int, per_client: int) -> None:
    counts = clean_shards(clients, per_client)
    assert len(counts) == clients
    assert (counts[0], counts[-1]) == (per_client - 1, 1)
    assert counts == sorted(counts, reverse=True)
    if per_client % 2 == 0:
        assert sum(counts) * 2 == clients * per_client  # as many clean as ambiguous shards


def test_papers_counts_are_exact() -> None:
    # 50 clean and 50 ambiguous shards; 1,000 // 50 = 20 and 1,049 // 50 = 20 examples a shard.
    labels, ambiguous = make_labels(1000, 1049)
    holdings = cut_shards(labels, ambiguous, papers_mix(5), numpy_stream(0, "t"))
    assert [len(indices) for indices in holdings] == [400] * 5
    assert [int((~ambiguous[indices]).sum()) for indices in holdings] == [
        19 * 20,
        15 * 20,
        10 * 20,
        5 * 20,
        1 * 20,
    ]


def test_shards_are_runs_of_sorted_labels() -> None:
    # 4 classes x 10 clean and as many ambiguous; 2 clients with 19/1 and 1/19: 20 shards of each
    # sort, of 2 examples. Sorted by label, each run of 2 has one label only, so every client has an
    # even number of each label.
    labels, ambiguous = make_labels(40, 40, classes=4)
    for seed in range(5):
        for indices in cut_shards(labels, ambiguous, papers_mix(2), numpy_stream(seed, "t")):
            for part in (indices[~ambiguous[indices]], indices[ambiguous[indices]]):
                assert all(count % 2 == 0 for count in np.bincount(labels[part], minlength=4))


def test_shards_are_dealt_at_random() -> None:
    # Client 2 has one clean shard of 20. Dealt in label order it would always be the last one, of
    # label 3.
    labels, ambiguous = make_labels(40, 40, classes=4)
    dealt = [
        cut_shards(labels, ambiguous, papers_mix(2), numpy_stream(seed, "t"))[1]
        for seed in range(10)
    ]
    assert len({int(labels[indices[~ambiguous[indices]]][0]) for indices in dealt}) > 1


def test_surplus_examples_are_left_out_at_random() -> None:
    # 1 client, 10 + 10 shards of 1: it takes 10 of 100 clean examples. The pool itself is in label
    # order, ten of each, so taking the first ten, before or after sorting, would leave label 0
    # only.
    labels, ambiguous = np.tile(np.repeat(np.arange(10), 10), 2), np.arange(200) >= 100
    (indices,) = cut_shards(labels, ambiguous, papers_mix(1), numpy_stream(0, "t"), shard_size=1)
    assert len(indices) == 20
    for part in (indices[~ambiguous[indices]], indices[ambiguous[indices]]):
        assert len(set(labels[part])) > 4


def test_shards_in_order_are_runs_of_the_examples_as_they_are_sorted() -> None:
    # Two labels: evens are label 0, odds label 1. Sorted by label in their order, the clean ones
    # are 0 2 4 ... 38, 1 3 5 ... 39: ten runs of four, of which two clients get eight at random.
    labels, ambiguous = np.arange(80) % 2, np.arange(80) >= 40
    runs = {tuple(range(start, start + 8, 2)) for start in (*range(0, 40, 8), *range(1, 41, 8))}
    left_out = set()
    for seed in range(10):
        mix = [(3, 1), (5, 7)]
        stream = numpy_stream(seed, "t")
        holdings = cut_shards(labels, ambiguous, mix, stream, shard_size=4, in_order=True)
        clean = np.concatenate([indices[indices < 40] for indices in holdings])
        dealt = {tuple(run) for run in clean.reshape(-1, 4).tolist()}
        assert len(dealt) == 8
        assert dealt < runs
        left_out |= runs - dealt
    assert len(left_out) > 2


def test_shards_of_a_given_size_and_number() -> None:
    labels, ambiguous = make_labels(100, 100)
    holdings = cut_shards(
        labels, ambiguous, papers_mix(2, per_client=4), numpy_stream(0, "t"), shard_size=3
    )
    assert [len(indices) for indices in holdings] == [12, 12]  # 4 shards of 3
    assert [int((~ambiguous[indices]).sum()) for indices in holdings] == [
        9,
        3,
    ]  # 3/1 and 1/3 shards


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
            r"there are 1000 and 0\. Use fewer clients, or another partition \(iid, dirichlet,",
        ),
        (0, 1000, 5, None, "there are 0 and 1000"),
        (49, 1000, 5, None, "need 50 clean and 50 ambiguous examples; there are 49 and 1000"),
    ],
)
def test_too_large_shards_are_refused(
    clean: int, ambiguous: int, clients: int, size: int | None, words: str
) -> None:
    labels, mask = make_labels(clean, ambiguous)
    with pytest.raises(DataError, match=words):
        cut_shards(labels, mask, papers_mix(clients), numpy_stream(0, "t"), shard_size=size)


def test_mix_by_hand() -> None:
    # Three clients with 2/0, 1/1 and 0/3 shards: 3 clean and 4 ambiguous. 10 clean and 8 ambiguous
    # examples leave room for shards of 10 // 3 = 3 and 8 // 4 = 2, so of 2: the clients have 4, 4
    # and 6 examples.
    labels, ambiguous = make_labels(10, 8, classes=2)
    holdings = cut(
        Partition.parse("shards:mix=2/0+1/1+0/3"), labels, ambiguous, 3, numpy_stream(0, "t")
    )
    assert [
        (int((~ambiguous[indices]).sum()), int(ambiguous[indices].sum())) for indices in holdings
    ] == [
        (4, 0),
        (2, 2),
        (0, 6),
    ]
    assert len(np.unique(np.concatenate(holdings))) == 14


def test_mix_of_clean_shards_needs_no_ambiguous_examples() -> None:
    labels, ambiguous = make_labels(12, 0, classes=3)
    holdings = cut(
        Partition.parse("shards:mix=1/0+2/0"), labels, ambiguous, 2, numpy_stream(0, "t")
    )
    assert [len(indices) for indices in holdings] == [4, 8]  # 12 // 3 = 4 a shard


def test_papers_partition_can_be_written_as_a_mix() -> None:
    labels, ambiguous = make_labels(1000, 1049)
    for text in ("shards", "shards:mix=19/1+15/5+10/10+5/15+1/19"):
        holdings = cut(Partition.parse(text), labels, ambiguous, 5, numpy_stream(0, "t"))
        expected = cut_shards(labels, ambiguous, papers_mix(5), numpy_stream(0, "t"))
        assert all(
            np.array_equal(one, other) for one, other in zip(holdings, expected, strict=True)
        )


def test_mix_for_another_number_of_clients_is_refused() -> None:
    labels, ambiguous = make_labels(1000, 1000)
    with pytest.raises(
        DataError,
        match=r"partition shards:mix=3/1\+1/3 has 2 in its mix, and clients is 5: make them agree",
    ):
        cut(Partition.parse("shards:mix=3/1+1/3"), labels, ambiguous, 5, numpy_stream(0, "t"))


def test_error_for_a_too_large_mix_gives_the_number_of_shards() -> None:
    labels, ambiguous = make_labels(10, 10)
    with pytest.raises(
        DataError,
        match="2 clients with 4 to 9 shards of 3 need 30 clean and 9 ambiguous examples; there are",
    ):
        cut(
            Partition.parse("shards:size=3,mix=3/1+7/2"), labels, ambiguous, 2, numpy_stream(0, "t")
        )


# Groups within shards ---------------------------------------------------------------------------


def tracks(per_label: int, length: int, classes: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Make labels, groups and a mask of ambiguous examples, for tracks of `length` frames.

    There are as many clean as ambiguous tracks, each of one label.
    """
    groups = np.repeat(np.arange(2 * classes * per_label), length)
    labels = groups // per_label % classes
    return labels, groups, groups >= classes * per_label


@pytest.mark.parametrize("seed", range(5))
def test_tracks_stay_whole_where_their_length_divides_a_shard(seed: int) -> None:
    # 4 labels x 10 clean and 10 ambiguous tracks of 30 frames: 1,200 of each kind, for 2 clients
    # with 19/1 and 1/19 shards of 60. A label's 300 frames are 5 shards, so no shard has two
    # labels, and every shard has two whole tracks.
    labels, groups, ambiguous = tracks(per_label=10, length=30, classes=4)
    order = np.random.default_rng(seed).permutation(
        len(labels)
    )  # frames of a track need not come one after the other
    labels, groups, ambiguous = labels[order], groups[order], ambiguous[order]
    holdings = cut(
        Partition.parse("shards:60"), labels, ambiguous, 2, numpy_stream(seed, "t"), groups
    )
    assert [len(indices) for indices in holdings] == [1200, 1200]
    assert set(groups[holdings[0]]).isdisjoint(groups[holdings[1]])
    # 40 tracks each, of which a fifth is 8, exactly 240 frames.
    parts = split_train_test(holdings, groups, numpy_stream(seed, "split"))
    assert [(len(train), len(test)) for train, test in parts] == [(960, 240)] * 2
    for train, test in parts:
        assert set(groups[train]).isdisjoint(groups[test])


def test_without_groups_tracks_are_split() -> None:
    labels, groups, ambiguous = tracks(per_label=10, length=30, classes=4)
    holdings = cut(Partition.parse("shards:60"), labels, ambiguous, 2, numpy_stream(0, "t"))
    assert set(groups[holdings[0]]) & set(groups[holdings[1]])


def test_surplus_tracks_are_left_out_whole() -> None:
    # 2 clients with 3/1 and 1/3 shards of 60 take 240 clean frames, 8 of the 40 clean tracks. They
    # cannot all be of one label in every draw, as taking the first of the pool would have it.
    labels, groups, ambiguous = tracks(per_label=10, length=30, classes=4)
    seen = set()
    for seed in range(5):
        holdings = cut(
            Partition.parse("shards:size=60,per-client=4"),
            labels,
            ambiguous,
            2,
            numpy_stream(seed, "t"),
            groups,
        )
        clean = np.concatenate([indices[~ambiguous[indices]] for indices in holdings])
        assert np.bincount(groups[clean])[np.unique(groups[clean])].tolist() == [30] * 8
        seen |= set(labels[clean].tolist())
    assert seen == {0, 1, 2, 3}


@pytest.mark.parametrize("seed", range(5))
def test_tracks_of_unusual_length_are_left_out_first(seed: int) -> None:
    # As above, and four clean tracks of 20 frames besides, one of each label, in front of the
    # others. 1,200 of the 1,280 clean frames are needed, which the tracks of 30 give; with any of
    # the others among them, shards would split tracks.
    labels, groups, ambiguous = tracks(per_label=10, length=30, classes=4)
    short = np.repeat(np.arange(4), 20)
    labels, groups = np.concatenate([short, labels]), np.concatenate([1000 + short, groups])
    ambiguous = np.concatenate([np.zeros(80, dtype=np.bool_), ambiguous])
    one, other = cut(
        Partition.parse("shards:60"), labels, ambiguous, 2, numpy_stream(seed, "t"), groups
    )
    assert (len(one), len(other)) == (1200, 1200)
    assert max(groups[np.concatenate([one, other])]) < 1000
    assert set(groups[one]).isdisjoint(groups[other])


@given(st.integers(0, 99), st.integers(1, 6))
def test_groups_of_one_do_not_change_the_draw(seed: int, clients: int) -> None:
    labels, ambiguous = make_labels(130, 150)
    numbers = numpy_stream(seed, "numbers").permutation(280)
    plain = cut(Partition("shards"), labels, ambiguous, clients, numpy_stream(seed, "t"))
    grouped = cut(Partition("shards"), labels, ambiguous, clients, numpy_stream(seed, "t"), numbers)
    assert all(np.array_equal(one, other) for one, other in zip(plain, grouped, strict=True))
