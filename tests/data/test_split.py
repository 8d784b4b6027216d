"""Splitting clients into train and test parts, and stratified samples."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from udjfl.data.split import choose_held_out, split_train_test, stratified_sample
from udjfl.errors import DataError
from udjfl.seeds import numpy_stream

# Train and test ---------------------------------------------------------------------------------


def test_the_split_is_80_to_20_with_at_least_one_on_each_side() -> None:
    sizes = [2, 3, 4, 5, 10, 12, 13, 400]
    holdings = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
    parts = split_train_test(holdings, np.arange(sum(sizes)), numpy_stream(0, "t"))
    # A fifth, rounded (0.4 0.6 0.8 1 2 2.4 2.6 80) but at least 1.
    assert [len(test) for _, test in parts] == [1, 1, 1, 1, 2, 2, 3, 80]
    for indices, (train, test) in zip(holdings, parts, strict=True):
        assert sorted([*train, *test]) == indices.tolist()


def test_large_test_share_leaves_one_example_to_train_on() -> None:
    ((train, test),) = split_train_test(
        [np.arange(10)], np.arange(10), numpy_stream(0, "t"), test_share=0.99
    )
    assert (len(train), len(test)) == (1, 9)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_no_group_is_on_both_sides_in_the_whole_federation(data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(2, 12), min_size=1, max_size=6))
    groups = np.array(
        data.draw(st.lists(st.integers(0, 15), min_size=sum(sizes), max_size=sum(sizes))),
        dtype=np.int64,
    )
    holdings = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
    try:
        parts = split_train_test(holdings, groups, numpy_stream(0, "t"))
    except DataError:
        # Only a client with few groups can be stuck; with six or more of its own there is always
        # one to spare.
        assert min(len(set(groups[indices])) for indices in holdings) < 6
        return
    train, test = (np.concatenate(side) for side in zip(*parts, strict=True))
    assert not set(groups[train]) & set(groups[test])
    assert sorted([*train, *test]) == list(range(sum(sizes)))
    assert all(len(one) > 0 and len(other) > 0 for one, other in parts)


def test_groups_inside_one_client_are_held_out_whole() -> None:
    # Ten groups of 3: a fifth of 30 is 6, so two whole groups.
    groups = np.repeat(np.arange(10), 3)
    ((_, test),) = split_train_test([np.arange(30)], groups, numpy_stream(0, "t"))
    assert len(test) == 6
    assert sorted(np.bincount(groups[test], minlength=10)) == [0] * 8 + [3, 3]


def test_smallest_group_is_held_out_if_all_are_too_large() -> None:
    # Two groups of 4 and 2: a fifth of 6 is 1, neither fits, so the smaller one is the test part.
    ((train, test),) = split_train_test(
        [np.arange(6)], np.array([0, 0, 0, 0, 1, 1]), numpy_stream(0, "t")
    )
    assert (train.tolist(), test.tolist()) == ([0, 1, 2, 3], [4, 5])


def test_client_with_a_single_group_cannot_be_split() -> None:
    with pytest.raises(DataError, match="client 2 has 3 examples in 1 groups of copies"):
        split_train_test(
            [np.arange(3), np.arange(3, 6)], np.array([0, 1, 2, 3, 3, 3]), numpy_stream(0, "t")
        )


def test_the_split_is_random_and_repeatable() -> None:
    holdings, groups = [np.arange(100)], np.arange(100)
    one, again, other = (
        split_train_test(holdings, groups, numpy_stream(seed, "t"))[0][1] for seed in (0, 0, 1)
    )
    assert np.array_equal(one, again)
    assert not np.array_equal(one, other)
    assert not np.array_equal(one, np.arange(20))


def test_stratified_sample_keeps_the_shares() -> None:
    # 10 of 20: classes of 11, 6, 3 have exact shares 5.5, 3, 1.5; floors 5, 3, 1 leave one, and the
    # first of the two equal remainders gets it: 6, 3, 1.
    labels = np.repeat([0, 1, 2], [11, 6, 3])
    indices = stratified_sample(labels, 10, numpy_stream(0, "t"))
    assert np.bincount(labels[indices]).tolist() == [6, 3, 1]
    assert len(set(indices.tolist())) == 10


# Held-out examples ------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("count", "n_groups"), [(1, 1), (3, 1), (4, 1), (7, 1), (8, 2), (13, 3), (16, 3)]
)
def test_groups_of_four_are_held_out_whole(seed: int, count: int, n_groups: int) -> None:
    """While there is room, at least one, and one stays: 16 examples in 4 groups."""
    together = np.array([7, 3, 9, 5] * 4)
    chosen = choose_held_out(together, 16, count, numpy_stream(seed, "t"))
    assert chosen.sum() == 4 * n_groups
    assert not set(together[chosen]) & set(together[~chosen])


def test_of_one_group_nothing_can_be_held_out() -> None:
    assert not choose_held_out(np.full(6, 3), 6, 2, numpy_stream(0, "t")).any()


def test_examples_of_their_own_are_held_out_one_by_one() -> None:
    alone = choose_held_out(None, 10, 3, numpy_stream(0, "t"))
    assert alone.sum() == 3
    assert np.array_equal(alone, choose_held_out(np.arange(10), 10, 3, numpy_stream(0, "t")))
