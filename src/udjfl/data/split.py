"""Held-out examples: the test part of each client, and stratified samples of a pool."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from udjfl.data.partition import IndexArray, Labels, Mask
from udjfl.errors import DataError

TEST_SHARE = 0.2


def split_train_test(
    holdings: Sequence[IndexArray],
    groups: IndexArray,
    generator: np.random.Generator,
    test_share: float = TEST_SHARE,
    labels: Labels | None = None,
    ids: Sequence[str] | None = None,
) -> list[tuple[IndexArray, IndexArray]]:
    """Return each client's (train, test) indices: 80/20 at random, at least one on each side.

    A group is on one side in the whole federation, also if several clients hold parts of it:
    otherwise a client could be tested on what another one trained on. Groups are taken in random
    order and go to the test side while all their holders have room, so the test part of a client
    with large or shared groups can be smaller or larger than `test_share`. With `labels`, groups
    are first taken while there is room for their classes, each in proportion to its examples.
    """
    sizes = [len(indices) for indices in holdings]
    indices = np.concatenate(holdings)
    owners = np.repeat(np.arange(len(holdings)), sizes)
    _, group_of = np.unique(groups[indices], return_inverse=True)
    held = _count_held(owners, group_of)
    room = [min(max(1, int(size * test_share + 0.5)), size - 1) for size in sizes]
    order = generator.permutation(len(held)).tolist()
    names = [f"client {number + 1}" for number in range(len(holdings))]
    split = _Split(held, room, sizes, names if ids is None else [f"client {i!r}" for i in ids])
    if labels is not None:
        strata, quotas = _make_strata(owners, labels[indices], room)
        split.take_stratified(order, _count_held(strata, group_of), quotas)
    split.take_all_that_fit(order)
    split.leave_nobody_out(order)
    sides = np.split(split.tested[group_of], np.cumsum(sizes)[:-1])
    return [(part[~test], part[test]) for part, test in zip(holdings, sides, strict=True)]


def _count_held(holders: IndexArray, group_of: IndexArray) -> list[Counter[int]]:
    """Return for each group the number of its examples that each holder has."""
    by_group = np.argsort(group_of, kind="stable")
    members = np.split(holders[by_group], np.cumsum(np.bincount(group_of))[:-1])
    return [Counter(own.tolist()) for own in members]


def _make_strata(
    owners: IndexArray, labels: Labels, room: Sequence[int]
) -> tuple[IndexArray, list[int]]:
    """Number the classes of each client, and share its room among them (largest remainders)."""
    strata = np.unique(np.stack([owners, labels]), axis=1, return_inverse=True)[1].reshape(-1)
    counts = np.bincount(strata)
    owner_of = np.zeros(len(counts), dtype=np.int64)
    owner_of[strata] = owners
    quotas = np.zeros(len(counts), dtype=np.int64)
    for owner, places in enumerate(room):
        own = np.flatnonzero(owner_of == owner)
        exact = places * counts[own] / counts[own].sum()
        quotas[own] = _round_to_sum(exact, places)
    return strata, np.minimum(quotas, counts - 1).tolist()


def _round_to_sum(exact: npt.NDArray[np.float64], total: int) -> IndexArray:
    """Round down, then up where the remainders are largest, until the sum is `total`."""
    rounded = np.floor(exact).astype(np.int64)
    rounded[np.argsort(rounded - exact, kind="stable")[: total - rounded.sum()]] += 1
    return rounded


class _Split:
    """The choice of groups for the test side.

    held    for each group, the number of its examples that each client holds
    room    the number of examples of each client that may still go to the test side
    train   the number of examples of each client on the train side
    tested  a mask of the groups on the test side
    """

    def __init__(
        self,
        held: Sequence[Counter[int]],
        room: Sequence[int],
        sizes: Sequence[int],
        names: Sequence[str],
    ) -> None:
        self.held, self.room, self.sizes, self.names = held, list(room), sizes, names
        self.train = list(sizes)
        self.tested: Mask = np.zeros(len(held), dtype=np.bool_)

    def _move(self, group: int) -> None:
        self.tested[group] = True
        for client, count in self.held[group].items():
            self.room[client] -= count
            self.train[client] -= count

    def _fits(self, group: int) -> bool:
        return all(self.room[client] >= count for client, count in self.held[group].items())

    def take_stratified(
        self, order: Sequence[int], strata: Sequence[Counter[int]], quotas: list[int]
    ) -> None:
        """Take groups in this order while there is room for the classes of all their holders."""
        for group in order:
            if self._fits(group) and all(quotas[s] >= n for s, n in strata[group].items()):
                self._move(group)
                for stratum, count in strata[group].items():
                    quotas[stratum] -= count

    def take_all_that_fit(self, order: Sequence[int]) -> None:
        """Take groups in this order while all their holders have room."""
        for group in order:
            if not self.tested[group] and self._fits(group):
                self._move(group)

    def leave_nobody_out(self, order: Sequence[int]) -> None:
        """Give clients without a test example one, if all their groups were too large.

        It is the smallest group that leaves every holder some to train on.
        """
        for client, size in enumerate(self.sizes):
            if self.train[client] < size:
                continue
            candidates = [group for group in order if self.held[group][client]]
            movable = [
                group
                for group in candidates
                if all(self.train[holder] > n for holder, n in self.held[group].items())
            ]
            if not movable:
                raise DataError(
                    f"{self.names[client]} has {size} examples in {len(candidates)} groups of "
                    "copies, and no group can be held out for testing: use fewer clients, or "
                    "another partition, so that each has more groups"
                )
            self._move(min(movable, key=lambda group: self.held[group].total()))


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
    take = _round_to_sum(size * counts / len(labels), size)
    picked = [
        generator.permutation(np.flatnonzero(labels == label))[:count]
        for label, count in zip(classes, take, strict=True)
    ]
    return np.sort(np.concatenate(picked))
