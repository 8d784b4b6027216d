"""Folds of a client's train part: each example is held out of one model and seen by the others."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from torch import Tensor

from udjfl.data.federation import Client
from udjfl.data.validation import hash_examples
from udjfl.seeds import numpy_stream

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Fold:
    """The examples that one model trains on, and those held out of it."""

    train: Indices
    held_out: Indices


def make_folds(client: Client, n_folds: int, batch_size: int, seed: int) -> list[Fold]:
    """Deal a client's train examples into folds with about equally many of each class.

    Equal images are in one fold, and examples that belong together, such as the frames of one
    track: a copy of an example was seen, too. In tables equal rows are different examples. With
    fewer than three examples nothing can be held out: then there is one fold, which trains on all
    and is tested on the same.
    """
    labels = client.train.y.cpu().numpy()
    together = client.train.together
    groups = _equal_images(client.train.x) if together is None else _number(together.tolist())
    n_folds = min(n_folds, int(groups.max()) + 1)
    if len(labels) < 3 or n_folds < 2:
        everything = np.arange(len(labels))
        return [Fold(everything, everything)]
    fold_of = _deal(labels, groups, n_folds, numpy_stream(seed, "folds", client.id))
    return [
        Fold(_without_single_batch(np.flatnonzero(fold_of != number), batch_size), held_out)
        for number in range(n_folds)
        for held_out in [np.flatnonzero(fold_of == number)]
    ]


def _deal(labels: Indices, groups: Indices, n_folds: int, stream: np.random.Generator) -> Indices:
    """Return the fold of each example: groups in random order, sorted by class, dealt in turn."""
    _, first = np.unique(groups, return_index=True)
    order = stream.permutation(len(first))
    order = order[np.argsort(labels[first[order]], kind="stable")]
    fold_of_group = np.empty(len(first), dtype=np.int64)
    fold_of_group[order] = np.arange(len(first)) % n_folds
    return fold_of_group[groups]


def _equal_images(x: Tensor) -> Indices:
    """Return a group number for each example; only equal images share one."""
    if x.ndim < 3:
        return np.arange(len(x))
    return _number(hash_examples(x.cpu()))


def _number(keys: Sequence[Hashable]) -> Indices:
    """Number distinct keys in the order of their first occurrence."""
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys])


def _without_single_batch(indices: Indices, batch_size: int) -> Indices:
    """Leave one example out if the last batch would have only one, which batch norm refuses."""
    return indices[:-1] if len(indices) > 1 and len(indices) % batch_size == 1 else indices
