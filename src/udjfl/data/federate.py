"""Making a federation: load a source's examples, cut them into clients, hold out test parts."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from udjfl.data.federation import Client, Examples, Federation
from udjfl.data.partition import MIN_EXAMPLES, IndexArray, Mask, Partition, cut
from udjfl.data.source import Pools, Prepared, find_data_root
from udjfl.data.sources import find_source
from udjfl.data.split import split_train_test
from udjfl.data.validation import hash_examples
from udjfl.errors import DataError, SettingsError
from udjfl.seeds import numpy_stream
from udjfl.settings import validate_settings
from udjfl.settings.data import MOST_CLIENTS

DEFAULT_CLIENTS = 5


def load(
    name: str,
    clients: int | None = None,
    partition: str | Partition | None = None,
    seed: int = 0,
    root: str | os.PathLike[str] | None = None,
    *,
    tuning: bool = False,
    options: Mapping[str, Any] | None = None,
) -> Federation:
    """Load a federation from a named source. Equal arguments and files give equal data.

    name       a registered source or `package.module:NAME`, perhaps with options: "signs:level=3";
               or files: "hospitals/*.csv"
    clients    number of clients; None: the source's default (five; the four hospitals of `heart`)
    partition  how examples are cut into clients; None: the source's default (the paper's shards)
    root       folder with the source's files; None: the folder in UDJFL_DATA, then the cache
    tuning     leave out every test part. A fifth of each client's train part replaces its test
               part, and the clean examples of those fifths replace the global test set. Choose
               parameters on such a federation.
    options    of the source, beside those in the name: {"target": "ill"} for files

    Clients are called client-1, client-2, ...; with shards, client-1 is the cleanest.
    """
    mistakes = find_data_mistakes(name, clients, partition, seed, root, options)
    if mistakes:
        raise SettingsError(mistakes)
    source, own_options = find_source(name)
    if source.load_federation is not None and (clients, partition) != (None, None):
        raise SettingsError(
            f"clients, partition: {name} is cut into clients already; leave them out"
        )
    if not isinstance(partition, Partition):
        partition = Partition.parse(partition or source.partition)
    count = source.clients if clients is None else int(clients)
    if count is None and partition.kind != "natural":
        count = DEFAULT_CLIENTS
    known = source.options.model_fields
    given = {**own_options, **{k: v for k, v in (options or {}).items() if k in known}}
    request = source.request(int(seed), root, given, count)
    if source.load_federation is not None:
        federation = source.load_federation(request)
        if tuning:
            return without_test_parts(federation, int(seed))
        origin = {"data": name, "seed": int(seed), **(options or {})}
        object.__setattr__(federation, "origin", origin)  # new, and nobody else has it yet
        return federation
    pools = source.load_pools(request)
    if pools.clean.y.is_floating_point() and partition.kind in ("shards", "dirichlet"):
        raise SettingsError(
            f"partition: {partition.kind} cuts by class, and the labels are numbers; use iid or "
            "quantity"
        )
    origin = {"data": name, "clients": count, "partition": str(partition), "seed": int(seed)}
    origin |= options or {}
    if root is not None:
        origin["data_root"] = os.fspath(root)
    title = pools.title or source.name
    # `origin` cannot express `tuning`, so a federation for tuning has none.
    given_origin = None if tuning else origin
    return federate(title, pools, count, partition, int(seed), given_origin, tuning=tuning)


def find_data_mistakes(
    name: str,
    clients: int | None,
    partition: str | Partition | None,
    seed: int = 0,
    root: str | os.PathLike[str] | None = None,
    options: Mapping[str, Any] | None = None,
) -> list[str]:
    """Check the arguments of `load` without loading anything; return one sentence per mistake."""

    def check_options() -> None:
        source, own_options = find_source(str(name))
        own = source.options.model_fields
        # The task is also one of the training: labels that are no table's say what they are.
        unknown = [key for key in options or {} if key not in own and key != "task"]
        if unknown:
            raise SettingsError([f"{key}: {source.name} has no such option" for key in unknown])
        given = {key: value for key, value in (options or {}).items() if key in own}
        validate_settings(source.options, {**own_options, **given})

    def check_partition() -> None:
        if partition is not None and not isinstance(partition, Partition):
            Partition.parse(str(partition))

    numbers = []
    if clients is not None and (not _is_whole(clients) or not 1 <= clients <= MOST_CLIENTS):
        numbers.append(f"clients is {clients!r}: give a whole number from 1 to {MOST_CLIENTS}")
    if not _is_whole(seed):
        numbers.append(f"seed is {seed!r}: give a whole number")
    return [
        *_mistakes_of(check_options),
        *numbers,
        *_mistakes_of(lambda: find_data_root(root)),
        *_mistakes_of(check_partition),
    ]


def _mistakes_of(check: Callable[[], object]) -> Sequence[str]:
    try:
        check()
    except SettingsError as error:
        return error.mistakes
    return ()


def federate(
    name: str,
    pools: Pools,
    clients: int | None,
    partition: Partition,
    seed: int,
    origin: Mapping[str, Any] | None = None,
    *,
    tuning: bool = False,
) -> Federation:
    """Cut pools into clients, each with a train and a test part. For `tuning` see `load`.

    `clients` may be None if the examples have owners: there are as many clients as owners.
    """
    examples, groups, ambiguous = _merge_pools(pools)
    if partition.kind == "natural":
        ids, holdings = _group_by_owner(name, pools, clients, len(examples))
    else:
        count = DEFAULT_CLIENTS if clients is None else clients
        ids = [f"client-{number}" for number in range(1, count + 1)]
        stream = numpy_stream(seed, "partition")
        kept_together = groups if pools.whole_groups else None
        holdings = cut(partition, examples.y.numpy(), ambiguous, count, stream, kept_together)
    stream = numpy_stream(seed, "train/test")
    labels = examples.y.numpy() if pools.stratify else None
    if pools.tested is None:
        splits = split_train_test(holdings, groups, stream, pools.test_share, labels, ids)
    else:
        tested = pools.tested
        splits = [(own[~tested[own]], own[tested[own]]) for own in holdings]
    if tuning:
        holdings = [train for train, _ in splits]
        _require_two(ids, holdings)
        stream = numpy_stream(seed, "train/validation")
        splits = split_train_test(holdings, groups, stream, labels=labels, ids=ids)
    parts = {
        client_id: (examples.take(train), examples.take(test))
        for client_id, (train, test) in zip(ids, splits, strict=True)
    }
    prepared = Prepared(parts, pools.test)
    if pools.preprocess is not None:
        prepared = pools.preprocess(parts, pools.test)
    members, clean_tests = [], []
    for client_id, (train_indices, test_indices) in zip(ids, splits, strict=True):
        train, test = prepared.parts[client_id]
        if not pools.tabular:
            train = _keep_together(train, groups[train_indices])
            test = _keep_together(test, groups[test_indices])
        share = None if pools.ambiguous is None else float(ambiguous[train_indices].mean())
        members.append(Client(client_id, train, test, share))
        clean = np.flatnonzero(~ambiguous[test_indices])
        originals = pools.originals
        clean_tests.append(
            test.take(clean) if originals is None else originals.take(test_indices[clean])
        )
    union = prepared.test is None or tuning
    return Federation(
        name,
        tuple(members),
        Examples.concatenate(clean_tests) if union or prepared.test is None else prepared.test,
        pools.class_names,
        pools.tabular,
        origin=origin,
        validation=pools.validation,
        preprocessing=prepared.preprocessing,
    )


def without_test_parts(federation: Federation, seed: int) -> Federation:
    """Return the federation without any test data, to choose parameters on.

    A fifth of each client's train part replaces its test part, and all of those fifths together
    replace the global test set. Examples that belong together, and copies, stay on one side.
    Classes are held out in the proportions that a client has them in, as in the test parts of own
    data.
    """
    parts = [client.train for client in federation.clients]
    _require_two(federation.ids, parts)
    train = Examples.concatenate(parts)
    _, groups = np.unique([key for part in parts for key in _group_keys(part)], return_inverse=True)
    holdings = np.split(np.arange(len(train)), np.cumsum(federation.sizes)[:-1])
    stream = numpy_stream(seed, "train/validation")
    labels = None if federation.labels_are_numbers else train.y.cpu().numpy()
    splits = split_train_test(holdings, groups, stream, labels=labels, ids=federation.ids)
    clients = [
        replace(client, train=train.take(kept), test=train.take(held_out), held_out=None)
        for client, (kept, held_out) in zip(federation.clients, splits, strict=True)
    ]
    shared = Examples.concatenate([client.test for client in clients])
    return replace(federation, clients=tuple(clients), test=shared, origin=None)


def _group_keys(train: Examples) -> list[str]:
    """Return a text for each example, equal for those that must stay on one side."""
    if train.together is not None:
        return [f"group {number}" for number in train.together.tolist()]
    return [digest.hex() for digest in hash_examples(train.x)]


def _require_two(ids: Sequence[str], train_parts: Sequence[Sized]) -> None:
    """Raise an error if a client has too few train examples to hold one out."""
    for client, train in zip(ids, train_parts, strict=True):
        if len(train) < MIN_EXAMPLES:
            raise DataError(
                f"client {client!r} has {len(train)} train example: too few to hold one out; "
                "leave the client out, or give it more data"
            )


def _keep_together(examples: Examples, groups: IndexArray) -> Examples:
    """Return the examples with their groups, if some belong together."""
    if len(np.unique(groups)) == len(groups):
        return examples
    return replace(examples, together=torch.from_numpy(groups.astype(np.int64)))


def _merge_pools(pools: Pools) -> tuple[Examples, IndexArray, Mask]:
    """Return all examples, the group of each, and a mask of the ambiguous ones."""
    if pools.ambiguous is None:
        return pools.clean, pools.clean_groups, np.zeros(len(pools.clean), dtype=np.bool_)
    examples = Examples.concatenate([pools.clean, pools.ambiguous])
    groups = np.concatenate([pools.clean_groups, pools.ambiguous_groups])
    return examples, groups, np.arange(len(examples)) >= len(pools.clean)


def _group_by_owner(
    name: str, pools: Pools, clients: int | None, examples: int
) -> tuple[list[str], list[IndexArray]]:
    """Return the owners, sorted, and the indices of each owner's examples."""
    if pools.owners is None:
        raise DataError(
            f"partition natural: the examples of {name} have no owners; use shards, iid, "
            "dirichlet or quantity, or for a table name the column of the clients (client=...)"
        )
    owners = np.asarray(pools.owners)
    names = sorted(set(owners.tolist()))
    if len(owners) != examples:
        raise DataError(
            f"{name}: {len(owners)} owners for {examples} examples; the natural partition needs "
            "one owner for each example"
        )
    if clients is not None and len(names) != clients:
        raise DataError(
            f"clients is {clients}, but {name} has {len(names)} natural clients: leave the number "
            "out, or choose another partition"
        )
    return names, [np.flatnonzero(owners == owner) for owner in names]


def _is_whole(number: object) -> bool:
    try:
        operator.index(number)  # type: ignore[arg-type]
    except TypeError:
        return False
    return not isinstance(number, bool)
