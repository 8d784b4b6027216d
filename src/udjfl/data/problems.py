"""Problems of a federation that training would not report: sentences that name client and column.

They are no errors: the data can be used, but a reader of the results should know.
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from udjfl.data.federation import Federation

logger = logging.getLogger("udjfl")
MAX_LOGGED = 8
MAX_OF_A_KIND = 10
MAX_COLUMNS = 256  # a longer vector is an image or an embedding: a column of it means nothing
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
    """Log the problems of a federation that was read from tables, as warnings."""
    problems = () if federation.preprocessing is None else federation.preprocessing.problems
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
