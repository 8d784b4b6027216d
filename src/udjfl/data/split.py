"""Held-out examples: the test part of each client, and stratified samples of a pool."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from udjfl.data.partition import IndexArray, Labels, Mask
from udjfl.errors import DataError

TEST_SHARE = 0.2


def split_train_test(
    holdings: Sequence[IndexArray],
    groups: IndexArray,
    generator: np.random.Generator,
    test_share: float = TEST_SHARE,
) -> list[tuple[IndexArray, IndexArray]]:
    """Return each client's (train, test) indices: 80/20 at random, at least one on each side.

    A group is on one side in the whole federation, also if several clients hold parts of it:
    otherwise a client could be tested on what another one trained on. Groups are taken in random
    order and go to the test side while all their holders have room, so the test part of a client
    with large or shared groups can be smaller or larger than `test_share`.
    """
    sizes = [len(indices) for indices in holdings]
    owners = np.repeat(np.arange(len(holdings)), sizes)
    _, group_of = np.unique(groups[np.concatenate(holdings)], return_inverse=True)
    by_group = np.argsort(group_of, kind="stable")
    members = np.split(owners[by_group], np.cumsum(np.bincount(group_of))[:-1])
    # For each group: the number of its examples that each client holds.
    held = [Counter(clients.tolist()) for clients in members]
    room = [min(max(1, int(size * test_share + 0.5)), size - 1) for size in sizes]
    order = generator.permutation(len(held)).tolist()
    tested = _choose_test_groups(held, order, room, sizes)
    sides = np.split(tested[group_of], np.cumsum(sizes)[:-1])
    return [(part[~test], part[test]) for part, test in zip(holdings, sides, strict=True)]


def _choose_test_groups(
    held: Sequence[Counter[int]], order: Sequence[int], room: list[int], sizes: Sequence[int]
) -> Mask:
    """Return a mask of the groups on the test side.

    `room` is the number of examples of each client that may still go there; it is changed.
    """
    train = list(sizes)
    tested = np.zeros(len(held), dtype=np.bool_)

    def move(group: int) -> None:
        tested[group] = True
        for client, count in held[group].items():
            room[client] -= count
            train[client] -= count

    for group in order:
        if all(room[client] >= count for client, count in held[group].items()):
            move(group)
    for client, size in enumerate(sizes):
        if train[client] < size:
            continue
        # All its groups are too large: take the smallest that leaves every holder some to train on.
        candidates = [group for group in order if held[group][client]]
        movable = [
            group
            for group in candidates
            if all(train[holder] > count for holder, count in held[group].items())
        ]
        if not movable:
            raise DataError(
                f"client {client + 1} has {size} examples in {len(candidates)} groups of copies, "
                "and no group can be held out for testing: use fewer clients, or another "
                "partition, so that each has more groups"
            )
        move(min(movable, key=lambda group: held[group].total()))
    return tested


def choose_held_out(
    together: IndexArray | None, size: int, count: int, generator: np.random.Generator
) -> Mask:
    """Return a mask of `count` of `size` examples at random.

    Examples with one number in `together` are chosen together: whole groups, in random order, while
    there is room for them, and at least one. Of a single group nothing can be chosen.
    """
    groups = np.arange(size) if together is None else np.unique(together, return_inverse=True)[1]
    order = generator.permutation(int(groups.max()) + 1)
    used = np.cumsum(np.bincount(groups)[order])
    n_chosen = min(max(1, int(np.count_nonzero(used <= count))), len(order) - 1)
    return np.isin(groups, order[:n_chosen])


def stratified_sample(labels: Labels, size: int, generator: np.random.Generator) -> IndexArray:
    """Draw `size` examples, each class by its share (largest remainders); return sorted indices."""
    classes, counts = np.unique(labels, return_counts=True)
    exact = size * counts / len(labels)
    take = np.floor(exact).astype(np.int64)
    take[np.argsort(take - exact, kind="stable")[: size - take.sum()]] += 1
    picked = [
        generator.permutation(np.flatnonzero(labels == label))[:count]
        for label, count in zip(classes, take, strict=True)
    ]
    return np.sort(np.concatenate(picked))
