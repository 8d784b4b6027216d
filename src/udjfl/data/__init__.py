"""Data: what a federation is, and how to load one.

`load("dirty-digits")` gives the paper's kind of federation without a download; `Federation.from_arrays` takes your own
data. To add a source, write a file with a function `(seed, folder) -> Pools` and add one line to `SOURCES`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from udjfl.data import digits
from udjfl.data.federation import Client, Examples, Federation, Pools
from udjfl.data.partition import Partition, cut
from udjfl.data.split import split_train_test
from udjfl.errors import SettingsError, did_you_mean
from udjfl.seeds import numpy_stream

__all__ = ["SOURCES", "Client", "Examples", "Federation", "Partition", "Pools", "federate", "load", "mistakes_in"]

SOURCES: dict[str, Callable[[int, Path | None], Pools]] = {
    "dirty-digits": digits.pools,
}


def load(
    name: str,
    clients: int = 5,
    partition: str | Partition = "shards",
    seed: int = 0,
    folder: str | Path | None = None,
) -> Federation:
    """The federation made of a named source: the same arguments always give the same data.

    Clients are called client-1, client-2, ...; with shards, client-1 is the cleanest. `folder` is where the source's
    files are, for sources that need some.
    """
    mistakes = mistakes_in(name, clients, partition, seed)
    if mistakes:
        raise SettingsError(mistakes)
    partition = partition if isinstance(partition, Partition) else Partition.parse(partition)
    pools = SOURCES[name](int(seed), None if folder is None else Path(folder))
    # A folder is the reader's own place; without one, these arguments are all it takes to load the same data again.
    origin = {"data": name, "clients": int(clients), "partition": str(partition), "seed": int(seed)}
    return federate(name, pools, int(clients), partition, int(seed), origin if folder is None else None)


def mistakes_in(name: str, clients: int, partition: str | Partition, seed: int = 0) -> list[str]:
    """What is wrong with a choice of data, before anything is loaded: one sentence each."""
    mistakes = []
    if name not in SOURCES:
        mistakes.append(f"data {name!r} is unknown.{did_you_mean(str(name), SOURCES)}")
    if not _is_whole(clients) or clients < 1:
        mistakes.append(f"clients is {clients!r}: give a whole number of at least 1")
    if not _is_whole(seed):
        mistakes.append(f"seed is {seed!r}: give a whole number")
    try:
        if not isinstance(partition, Partition):
            Partition.parse(str(partition))
    except SettingsError as error:
        mistakes += error.mistakes
    return mistakes


def federate(
    name: str,
    pools: Pools,
    clients: int,
    partition: Partition,
    seed: int,
    origin: Mapping[str, Any] | None = None,
) -> Federation:
    """Cut pools into clients, each with a train and a test part."""
    pooled, groups, ambiguous = pools.clean, pools.clean_groups, np.zeros(len(pools.clean), dtype=np.bool_)
    if pools.ambiguous is not None:
        pooled = Examples.joined([pools.clean, pools.ambiguous])
        groups = np.concatenate([groups, pools.ambiguous_groups])
        ambiguous = np.arange(len(pooled)) >= len(pools.clean)
    holdings = cut(partition, pooled.y.numpy(), ambiguous, clients, numpy_stream(seed, "partition"))
    splits = split_train_test(holdings, groups, numpy_stream(seed, "train/test"))
    made = tuple(
        Client(
            id=f"client-{number}",
            train=pooled.take(train),
            test=pooled.take(test),
            ambiguous_share=None if pools.ambiguous is None else float(ambiguous[train].mean()),
        )
        for number, (train, test) in enumerate(splits, start=1)
    )
    clean_tests = np.concatenate([test[~ambiguous[test]] for _, test in splits])
    global_test = pooled.take(clean_tests) if pools.test is None else pools.test
    return Federation(name, made, global_test, pools.class_names, origin=origin, validation=pools.validation)


def _is_whole(number: object) -> bool:
    try:
        operator.index(number)  # type: ignore[arg-type]
    except TypeError:
        return False
    return not isinstance(number, bool)
