"""New rows of a table, prepared as those that a model was trained on."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from udjfl.data.tables.columns import UNKNOWN, Column, Values, as_numbers, as_texts
from udjfl.data.tables.preprocessing import Preprocessing
from udjfl.errors import DataError, did_you_mean

if TYPE_CHECKING:
    import pandas as pd

logger = logging.getLogger("udjfl.data")
MAX_SHOWN = 3


def is_frame(x: Any) -> bool:
    """Tell whether a value is a frame: of pandas, or one that has `to_pandas`."""
    return hasattr(x, "to_pandas") or (hasattr(x, "iloc") and hasattr(x, "columns"))


def prepare_rows(frame: Any, preprocessing: Preprocessing, client: str | None) -> Values:
    """Return the features of raw rows, with the numbers of a client (None: of all together).

    Columns are found by their names; others, such as the target, are not read.
    """
    table = frame.to_pandas() if hasattr(frame, "to_pandas") else frame
    if not all(isinstance(name, str) and name == name.strip() for name in table.columns):
        table = table.rename(columns=lambda name: str(name).strip())
    names = [str(name) for name in table.columns]
    if not len(table):
        raise DataError("there are no rows to predict")
    numbers = preprocessing.numbers.get(client)
    if numbers is None:
        known = [name for name in preprocessing.numbers if name is not None]
        raise DataError(f"client: there is no {client!r}.{did_you_mean(str(client), known)}")
    used = [column for column in preprocessing.schema.columns if numbers[column.name] is not None]
    mistakes = [mistake for column in used for mistake in _find_mistakes(column, table, names)]
    if mistakes:
        raise DataError("\n".join(mistakes))
    encoded = preprocessing.schema.encode(table)
    for position, column in enumerate(preprocessing.schema.columns):
        is_new = encoded[:, position] == UNKNOWN
        if column.codes and is_new.any():
            texts = list(dict.fromkeys(as_texts(table[column.name])[is_new]))
            logger.warning(
                "column %r: %d rows have categories that the model was not trained on (%s); they "
                "count as none of the others",
                column.name,
                int(is_new.sum()),
                ", ".join(map(repr, texts[:MAX_SHOWN])),
            )
    return preprocessing.transform(encoded, client)


def _find_mistakes(column: Column, table: pd.DataFrame, names: Sequence[str]) -> list[str]:
    """Find what keeps a column from being read: that it is not there, or texts among numbers."""
    if names.count(column.name) > 1:
        return [f"column {column.name!r} is there more than once: give every column its own name"]
    if column.name not in names:
        return [
            f"there is no column {column.name!r}, which the model was trained on."
            f"{did_you_mean(column.name, names)}"
        ]
    if column.codes:
        return []
    values = table[column.name]
    is_wrong = np.isnan(as_numbers(values)) & values.notna().to_numpy()
    if not is_wrong.any():
        return []
    row = int(np.flatnonzero(is_wrong)[0])
    return [
        f"column {column.name!r}, row {row + 1}: {values.iloc[row]!r} is not a number"
        + (f", nor are {int(is_wrong.sum()) - 1} more" if is_wrong.sum() > 1 else "")
    ]
