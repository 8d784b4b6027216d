"""Problems of a federation that training would not report: sentences that name client and column.

They are no errors: the data can be used, but a reader of the results should know.
"""

from __future__ import annotations

import logging
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from udjfl.data.federation import Federation

logger = logging.getLogger("udjfl.data")
MAX_LOGGED = 8
MAX_OF_A_KIND = 10
MAX_COLUMNS = 256  # a longer vector is an image or an embedding: a column of it means nothing
FEWEST_TEST_ROWS = 30  # with fewer, a score tells little
FEWEST_TRAIN_ROWS = 10  # with fewer, nothing can be trained or measured
SHARE_STEP, LARGEST_SHARE = 0.05, 0.5  # of the test parts that are suggested
Rows = npt.NDArray[np.void]


def find_problems(federation: Federation) -> list[str]:
    """Find problems in any federation; those of a table were found when it was read."""
    if federation.preprocessing is not None:
        return list(federation.preprocessing.problems)
    labels = {client.id: client.train.y.numpy() for client in federation.clients}
    train = {client.id: as_rows(client.train.x.numpy()) for client in federation.clients}
    test = {client.id: as_rows(client.test.x.numpy()) for client in federation.clients}
    return [
        *find_one_class(labels, federation.class_names),
        *_find_column_problems(federation, labels),
        *find_duplicates(train, test),
    ]


def find_tiny_clients(federation: Federation) -> list[str]:
    """Find clients with too few rows for anything."""
    advice = "leave it out or join it with another client"
    return limit(
        f"client {client.id!r} has {_count(len(client.train), 'train row')} and "
        f"{_count(len(client.test), 'test row')}: too few to train, to judge or to measure its "
        f"uncertainty; {advice}"
        for client in federation.clients
        if len(client.train) < FEWEST_TRAIN_ROWS
    )


def find_small_test_parts(federation: Federation) -> list[str]:
    """Find test parts that are too small for a score, of clients that are not tiny."""
    return limit(_describe_small_test_parts(federation))


def _describe_small_test_parts(federation: Federation) -> Iterable[str]:
    for client in federation.clients:
        n, total = len(client.test), len(client.test) + len(client.train)
        if n >= FEWEST_TEST_ROWS or len(client.train) < FEWEST_TRAIN_ROWS:
            continue
        weight = f", so one row is {100 / n:.1f} points" if federation.class_names else ""
        share = SHARE_STEP * math.ceil(FEWEST_TEST_ROWS / total / SHARE_STEP)
        can_split = federation.preprocessing is not None and share <= LARGEST_SHARE
        advice = f" (--test-share {share:g} gives {round(share * total)})" if can_split else ""
        yield (
            f"client {client.id!r}: {_count(n, 'test row')}{weight}; fewer than "
            f"{FEWEST_TEST_ROWS} tell little{advice}"
        )


def _count(n: int, noun: str) -> str:
    return f"1 {noun}" if n == 1 else f"{n} {noun}s"


def _find_column_problems(
    federation: Federation, labels: Mapping[str, npt.NDArray[Any]]
) -> list[str]:
    """Find columns of vectors, named by their number, that tell nothing or too much."""
    from udjfl.data.tables.columns import Column, Schema
    from udjfl.data.tables.problems import find_column_problems, find_leaks

    shape = federation.test.x.shape[1:]
    if len(shape) > 1 or shape[0] > MAX_COLUMNS:
        return []
    schema = Schema(tuple(Column(str(number)) for number in range(shape[0])))
    train, test = (
        {client.id: getattr(client, side).x.double().numpy() for client in federation.clients}
        for side in ("train", "test")
    )
    everywhere = np.concatenate(list(train.values()))
    constant = np.flatnonzero((everywhere == everywhere[0]).all(axis=0))
    return [
        *limit(f"column '{i}': constant in the train parts of all clients" for i in constant),
        *limit(find_leaks(schema, train, labels, "y")),
        *limit(find_column_problems(schema, train, test)),
    ]


def log_problems(federation: Federation) -> None:
    """Log the problems of a federation that was read from tables, as warnings.

    Small test parts are no part of them: below every result stands which they are.
    """
    if federation.preprocessing is None:
        return
    problems = [*find_tiny_clients(federation), *federation.preprocessing.problems]
    for problem in problems[:MAX_LOGGED]:
        logger.warning("%s", problem)
    if len(problems) > MAX_LOGGED:
        logger.warning(
            "%d more problems: `udjfl data describe`, or `federation.problems`, lists them all",
            len(problems) - MAX_LOGGED,
        )


def limit(problems: Iterable[str], most: int = MAX_OF_A_KIND) -> list[str]:
    """Return the first problems of one kind, and how many there are beside them."""
    every = list(problems)
    left = len(every) - most
    return every if left < 2 else [*every[:most], f"and {left} more problems of this kind"]


def as_rows(values: npt.NDArray[np.generic]) -> Rows:
    """Return the values of each example as one item that can be compared; NaN equals NaN."""
    table = np.ascontiguousarray(values.reshape(len(values), -1))
    return table.view(np.dtype((np.void, table.dtype.itemsize * table.shape[1]))).reshape(-1)


def find_one_class(
    labels: Mapping[str, npt.NDArray[Any]], class_names: Sequence[str], column: str = ""
) -> list[str]:
    """Find clients whose train labels are all equal; without class names they are numbers."""
    where = f", column {column!r}" if column else ""
    return [
        f"client {client!r}{where}: "
        + (f"one class only ({class_names[int(own[0])]!r})" if class_names else "one number only")
        + " in the train part: its score says little, its uncertainty nothing"
        for client, own in labels.items()
        if len(set(own.tolist())) == 1
    ]


def find_duplicates(train: Mapping[str, Rows], test: Mapping[str, Rows]) -> list[str]:
    """Find test rows that are also train rows of any client, and rows that several clients have."""
    owners: dict[bytes, set[str]] = defaultdict(set)
    for client, rows in train.items():
        for row in set(_keys(rows)):
            owners[row].add(client)
    problems = []
    for client, rows in test.items():
        holders = [owners[row] for row in _keys(rows) if row in owners]
        if holders:
            counts = Counter(name for own in holders for name in own)
            listed = ", ".join(f"{count} of {name!r}" for name, count in counts.most_common(3))
            problems.append(
                f"client {client!r}: {len(holders)} of {len(rows)} test rows are also train rows "
                f"({listed}): remove copies, or keep them together with `group`"
            )
    shared = Counter(pair for own in owners.values() for pair in _pairs(sorted(own)))
    problems += [
        f"clients {one!r} and {other!r}: "
        + ("1 row is" if count == 1 else f"{count} different rows are")
        + " in both train parts"
        for (one, other), count in shared.most_common(3)
    ]
    return problems


def _keys(rows: Rows) -> Iterable[bytes]:
    return (row.tobytes() for row in rows)


def _pairs(names: Sequence[str]) -> Iterable[tuple[str, str]]:
    return ((one, other) for i, one in enumerate(names) for other in names[i + 1 :])
