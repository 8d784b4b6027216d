"""Data: what a federation is, and how to load one.

`load("dirty-digits")` gives the paper's kind of federation without a download; `Federation.from_arrays` takes your own
data. To add a source, write a file with a `Source` in it and add one line to `SOURCES`.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from udjfl.data.federation import Client, Examples, Federation, Pools
from udjfl.data.partition import IndexArray, Mask, Partition, cut
from udjfl.data.source import Source, data_root, parse_data
from udjfl.data.sources import cure_tsr, dirty_digits, dirty_mnist, heart, traffic_signs
from udjfl.data.split import split_train_test
from udjfl.errors import DataError, SettingsError, did_you_mean
from udjfl.seeds import numpy_stream
from udjfl.settings import checked

__all__ = [
    "SOURCES",
    "Client",
    "Examples",
    "Federation",
    "Partition",
    "Pools",
    "Source",
    "federate",
    "load",
    "mistakes_in",
    "source_of",
]

SOURCES: dict[str, Source] = {
    source.name: source
    for source in (
        dirty_digits.SOURCE,
        dirty_mnist.SOURCE,
        cure_tsr.SOURCE,
        traffic_signs.SOURCE,
        heart.SOURCE,
    )
}


def load(
    name: str,
    clients: int | None = None,
    partition: str | Partition | None = None,
    seed: int = 0,
    root: str | os.PathLike[str] | None = None,
    *,
    tuning: bool = False,
) -> Federation:
    """The federation made of a named source: the same arguments and files always give the same data.

    `name` may carry options of the source, as in "signs:level=3". Left out, `clients` and `partition` are the source's own
    (five clients in the paper's shards, the four hospitals of `heart`). Clients are called client-1, client-2, ...; with
    shards, client-1 is the cleanest. `root` is where the files are, for sources that need some; without it, UDJFL_DATA and
    the cache are searched. With `tuning`, nothing of any test part is there: a fifth of each client's train part takes the
    place of its test part, and their clean examples that of the global test set. Choose parameters there.
    """
    mistakes = mistakes_in(name, clients, partition, seed, root)
    if mistakes:
        raise SettingsError(mistakes)
    source, options = source_of(name)
    chosen = (
        partition
        if isinstance(partition, Partition)
        else Partition.parse(partition or source.partition)
    )
    count = source.clients if clients is None else int(clients)
    pools = source.pools(source.request(int(seed), root, options))
    origin = {"data": name, "clients": count, "partition": str(chosen), "seed": int(seed)}
    if root is not None:
        origin["data_root"] = os.fspath(root)
    # What is cut for tuning cannot be had from these settings alone.
    return federate(
        pools.title or source.name,
        pools,
        count,
        chosen,
        int(seed),
        None if tuning else origin,
        tuning=tuning,
    )


def source_of(name: str) -> tuple[Source, dict[str, str]]:
    """The source that a text names, and the options in it."""
    short, options = parse_data(name)
    if short not in SOURCES:
        raise SettingsError(f"data {short!r} is unknown.{did_you_mean(short, SOURCES)}")
    return SOURCES[short], options


def mistakes_in(
    name: str,
    clients: int | None,
    partition: str | Partition | None,
    seed: int = 0,
    root: str | os.PathLike[str] | None = None,
) -> list[str]:
    """What is wrong with a choice of data, before anything is loaded: one sentence each."""
    mistakes: list[str] = []
    try:
        source, options = source_of(str(name))
        checked(source.options, options)
    except SettingsError as error:
        mistakes += error.mistakes
    if clients is not None and (not _is_whole(clients) or clients < 1):
        mistakes.append(f"clients is {clients!r}: give a whole number of at least 1")
    if not _is_whole(seed):
        mistakes.append(f"seed is {seed!r}: give a whole number")
    try:
        data_root(root)
    except SettingsError as error:
        mistakes += error.mistakes
    try:
        if partition is not None and not isinstance(partition, Partition):
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
    *,
    tuning: bool = False,
) -> Federation:
    """Cut pools into clients, each with a train and a test part. For `tuning` see `load`."""
    pooled, groups, ambiguous = (
        pools.clean,
        pools.clean_groups,
        np.zeros(len(pools.clean), dtype=np.bool_),
    )
    if pools.ambiguous is not None:
        pooled = Examples.joined([pools.clean, pools.ambiguous])
        groups = np.concatenate([groups, pools.ambiguous_groups])
        ambiguous = np.arange(len(pooled)) >= len(pools.clean)
    if partition.kind == "natural":
        names, holdings = _by_owner(name, pools, clients, len(pooled))
    else:
        names = [f"client-{number}" for number in range(1, clients + 1)]
        together = groups if pools.whole_groups else None
        holdings = cut(
            partition,
            pooled.y.numpy(),
            ambiguous,
            clients,
            numpy_stream(seed, "partition"),
            together,
        )
    splits = split_train_test(holdings, groups, numpy_stream(seed, "train/test"))
    if tuning:
        splits = split_train_test(
            [train for train, _ in splits], groups, numpy_stream(seed, "train/validation")
        )
    made = []
    for client, (train, test) in zip(names, splits, strict=True):
        parts = (pooled.take(train), pooled.take(test))
        own, held_out = pools.fitted(*parts) if pools.fitted else parts
        share = None if pools.ambiguous is None else float(ambiguous[train].mean())
        made.append(Client(id=client, train=own, test=held_out, ambiguous_share=share))
    global_test = pools.test
    if global_test is None or tuning:
        global_test = _clean_parts(made, [test for _, test in splits], ambiguous)
    return Federation(
        name,
        tuple(made),
        global_test,
        pools.class_names,
        pools.tabular,
        origin=origin,
        validation=pools.validation,
    )


def _by_owner(
    name: str, pools: Pools, clients: int, examples: int
) -> tuple[list[str], list[IndexArray]]:
    """The clients as they are in nature, in the order of their names."""
    if pools.owners is None:
        raise DataError(
            f"partition natural: nobody owns the examples of {name}; use shards, iid, dirichlet or quantity"
        )
    owners = np.asarray(pools.owners)
    names = sorted(set(owners.tolist()))
    if len(owners) != examples:
        raise DataError(
            f"{name}: {len(owners)} owners for {examples} examples; natural clients need one for each"
        )
    if len(names) != clients:
        raise DataError(
            f"clients is {clients}, but {name} has {len(names)} by nature: leave the number out, or cut it anew"
        )
    return names, [np.flatnonzero(owners == owner) for owner in names]


def _clean_parts(made: list[Client], tests: list[IndexArray], ambiguous: Mask) -> Examples:
    """The clean examples of all clients' test parts."""
    clean = [
        client.test.take(np.flatnonzero(~ambiguous[rows]))
        for client, rows in zip(made, tests, strict=True)
    ]
    return Examples.joined(clean)


def _is_whole(number: object) -> bool:
    try:
        operator.index(number)  # type: ignore[arg-type]
    except TypeError:
        return False
    return not isinstance(number, bool)
