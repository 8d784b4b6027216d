"""Problems of tables: columns that tell nothing or too much, values that are missing or new."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from udjfl.data.tables.columns import Column, Schema, Values

Labels: TypeAlias = npt.NDArray[np.int64]

MOSTLY_MISSING = 0.5
LEAK = 0.995  # one column that predicts this share of the labels is probably a form of the target
MOST_VALUES = 20  # of a number that is tried as a category
ROWS_PER_VALUE = 5  # with fewer rows for each category, a table of them can only memorise
# With fewer rows, or fewer outside the largest class, a column can predict everything by chance.
FEWEST_ROWS, FEWEST_OTHERS = 20, 5


def find_column_problems(
    schema: Schema, train: Mapping[str, Values], test: Mapping[str, Values]
) -> Iterator[str]:
    """Find values that are mostly missing, constant columns, and categories of test parts only."""
    for position, column in enumerate(schema.columns):
        everywhere = np.concatenate([part[:, position] for part in train.values()])
        known = np.unique(everywhere[~np.isnan(everywhere)])
        for client, table in train.items():
            where = f"client {client!r}, column {column.name!r}: "
            values = table[:, position]
            missing = float(np.isnan(values).mean())
            if missing == 1:
                yield where + "no value in the train part: it counts as missing for this client"
            elif missing > MOSTLY_MISSING:
                yield where + f"{missing:.0%} of the values are missing"
            if missing < 1 and len(known) > 1 and len(np.unique(values[~np.isnan(values)])) == 1:
                yield where + "constant in the train part: it tells nothing there"
            yield from _find_new_categories(column, where, test[client][:, position], known)


def _find_new_categories(
    column: Column, where: str, values: Values, known: Values
) -> Iterator[str]:
    labels = dict(zip(column.codes, column.labels, strict=True))
    for code in np.setdiff1d(values[~np.isnan(values)], known) if labels else ():
        count = np.count_nonzero(values == code)
        rows = "1 row" if count == 1 else f"{count} rows"
        yield (
            f"{where}category {labels[float(code)]!r} is in the test part only (in {rows}): no "
            "model can learn it, and it counts as none of the others"
        )


def find_leaks(
    schema: Schema, train: Mapping[str, Values], labels: Mapping[str, npt.NDArray[Any]], target: str
) -> Iterator[str]:
    """Find columns that predict the labels alone, of all clients or of one: forms of the target."""
    pooled = np.concatenate(list(labels.values()))
    for position, column in enumerate(schema.columns):
        is_category = bool(column.codes)
        everywhere = np.concatenate([part[:, position] for part in train.values()])
        share = _measure_leak(everywhere, pooled, is_category)
        advice = "if it is another form of the target, leave it out with `drop`"
        if share >= LEAK:
            yield (
                f"column {column.name!r} alone predicts {share:.1%} of {target!r} in the train "
                f"parts of all clients: {advice}"
            )
            continue
        for client, part in train.items():
            share = _measure_leak(part[:, position], labels[client], is_category)
            if share >= LEAK:
                yield (
                    f"client {client!r}, column {column.name!r}: it alone predicts {share:.1%} of "
                    f"{target!r} in the train part: {advice}"
                )


def _measure_leak(values: Values, y: npt.NDArray[Any], is_category: bool) -> float:
    """Return the share of the labels that a column predicts; 0 where chance could do so, too."""
    if len(y) < FEWEST_ROWS:
        return 0.0
    if y.dtype.kind == "f":
        return _share_explained(values, y, is_category)
    n_others = len(y) - np.bincount(y).max()
    if n_others < max(FEWEST_OTHERS, 0.05 * len(y)):
        return 0.0
    return _share_predicted(values, y, is_category)


def _share_explained(values: Values, y: Values, is_category: bool) -> float:
    """Return the share of the labels' variance that a table by value, or a line, explains."""
    known = ~np.isnan(values)
    if known.sum() < FEWEST_ROWS or y[known].std() == 0:
        return 0.0
    x, labels = values[known], y[known]
    distinct, index = np.unique(x, return_inverse=True)
    if not is_category:
        return float(np.corrcoef(x, labels)[0, 1] ** 2) if len(distinct) > 1 else 0.0
    if len(distinct) > len(x) / ROWS_PER_VALUE:
        return 0.0
    means = np.bincount(index, labels) / np.bincount(index)
    return float(1 - (labels - means[index]).var() / labels.var())


def _share_predicted(values: Values, y: Labels, is_category: bool) -> float:
    """Return the share of labels that a table by value, or one threshold, predicts."""
    # NaN is one value more.
    distinct, index = np.unique(np.nan_to_num(values, nan=np.inf), return_inverse=True)
    counts = np.zeros((len(distinct), int(y.max()) + 1))
    np.add.at(counts, (index, y), 1)
    if is_category and len(distinct) > len(y) / ROWS_PER_VALUE:
        return 0.0
    if is_category or len(distinct) <= MOST_VALUES:
        return float(counts.max(axis=1).sum() / len(y))
    below = counts.cumsum(axis=0)
    above = counts.sum(axis=0) - below
    return float((below.max(axis=1) + above.max(axis=1)).max() / len(y))
