"""Holding examples out for testing: each client's own test part, and a global test set drawn from a pool."""

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
    """Each client's (train, test) positions: 80/20 at random, at least one on each side.

    A group is on one side in the whole federation, also when several clients hold parts of it: otherwise one client
    would be tested on what another one trained on. Groups are taken in random order and go to the test side while all
    their holders have room, so a client with large or shared groups can get a smaller or larger test part than asked.
    """
    owners = np.concatenate([np.full(len(rows), client) for client, rows in enumerate(holdings)])
    _, group_of = np.unique(groups[np.concatenate(holdings)], return_inverse=True)
    by_group = np.argsort(group_of, kind="stable")
    members = np.split(owners[by_group], np.cumsum(np.bincount(group_of))[:-1])
    held = [
        Counter(rows.tolist()) for rows in members
    ]  # for each group: how many of its examples each client has
    room = [min(max(1, int(len(rows) * test_share + 0.5)), len(rows) - 1) for rows in holdings]
    train = [len(rows) for rows in holdings]
    order = generator.permutation(len(held)).tolist()
    tested = _fill_test_sides(held, order, room, train)
    sides = np.split(tested[group_of], np.cumsum([len(rows) for rows in holdings])[:-1])
    return [(rows[~test], rows[test]) for rows, test in zip(holdings, sides, strict=True)]


def _fill_test_sides(
    held: Sequence[Counter[int]], order: Sequence[int], room: list[int], train: list[int]
) -> Mask:
    """Which groups go to the test side. `room` and `train` count, per client, what may still go and what stays."""
    sizes = list(train)
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
        if (
            train[client] == size
        ):  # only groups too large for its test part: take the smallest that leaves all some to train
            own = [group for group in order if held[group][client]]
            movable = [
                group
                for group in own
                if all(train[holder] > count for holder, count in held[group].items())
            ]
            if not movable:
                raise DataError(
                    f"client {client + 1} has {size} examples in {len(own)} groups of copies, and no group can be held "
                    "out for testing: use fewer clients, or another partition, so that each has more groups"
                )
            move(min(movable, key=lambda group: held[group].total()))
    return tested


def stratified_sample(labels: Labels, size: int, generator: np.random.Generator) -> IndexArray:
    """Positions of `size` examples at random, each class by its share (largest remainders), in ascending order."""
    classes, counts = np.unique(labels, return_counts=True)
    exact = size * counts / len(labels)
    take = np.floor(exact).astype(np.int64)
    take[np.argsort(take - exact, kind="stable")[: size - take.sum()]] += 1
    picked = [
        generator.permutation(np.flatnonzero(labels == label))[:count]
        for label, count in zip(classes, take, strict=True)
    ]
    return np.sort(np.concatenate(picked))
