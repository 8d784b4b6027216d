"""Parquet files: columns of single values, read once it is known what memory they take.

A text that many rows have may be in a file once, and a file may give wrong sizes of its parts. So
the texts are counted, few at a time, before all are read. Lists and records are no features: their
columns are left out unread.
"""

from __future__ import annotations

import logging
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from udjfl.errors import DataError

if TYPE_CHECKING:
    import pandas as pd
    from pyarrow.parquet import FileMetaData  # type: ignore[import-untyped]  # it has no types

logger = logging.getLogger("udjfl.data")
ROWS = 64  # whose texts are in memory at once while they are counted
NUMBER_BYTES = 8  # a value takes at least these


def read_parquet(path: Path, most: int) -> pd.DataFrame:
    """Read the columns of single values; an error if they would take more than `most` bytes.

    Of what a file says of itself, only its columns and numbers of rows are used. Column sizes and
    statistics (smallest and largest text) are not: pyarrow ends the process where they are damaged
    (26.0).
    """
    from pyarrow.parquet import read_metadata, read_table

    described = read_metadata(path)
    _check_rows(described)
    flat = _find_flat_columns(described)
    if path.stat().st_size > most or _exceed(path, flat, described.num_rows, most):
        raise DataError(f"{path} would take more than {most} bytes; split it, or make it CSV")
    names = [column.path for column in flat]
    for name in described.schema.to_arrow_schema().names:
        if name not in names:
            logger.warning("%s: column %r is left out: it has lists or records", path, name)
    # pandas.read_parquet would also read the columns that the file names as its index.
    frame: pd.DataFrame = read_table(path, columns=names).to_pandas()
    return frame


def _check_rows(described: FileMetaData) -> None:
    """Raise an error if the parts have other rows than the file: memory is taken for the parts."""
    rows = [described.row_group(index).num_rows for index in range(described.num_row_groups)]
    if min(rows, default=0) < 0 or sum(rows) != described.num_rows:
        raise ValueError("its parts have other numbers of rows than the whole")


def _find_flat_columns(described: FileMetaData) -> list[Any]:
    """Return the columns of single values.

    A column "a.b" beside a record "a" with a field "b" is none: pyarrow reads both by this name.
    """
    columns = [described.schema.column(index) for index in range(described.num_columns)]
    nested = [c.path for c in columns if c.path != c.name or c.max_repetition_level > 0]
    taken = {name for path in nested for name in accumulate(path.split("."), "{}.{}".format)}
    return [column for column in columns if column.path not in taken]


def _exceed(path: Path, columns: list[Any], rows: int, most: int) -> bool:
    """Tell whether these columns would take more than `most` bytes."""
    from pyarrow.parquet import ParquetFile

    left = most - rows * sum(max(NUMBER_BYTES, column.length) for column in columns)
    if left < 0:
        return True
    texts = [column.path for column in columns if column.physical_type == "BYTE_ARRAY"]
    with ParquetFile(path) as file:
        for name in texts:
            for batch in file.iter_batches(batch_size=ROWS, columns=[name], use_threads=False):
                left -= _count_bytes(batch.column(name))
                if left < 0:
                    return True
    return False


def _count_bytes(array: Any) -> int:
    """Return the bytes of an array; of a dictionary's texts, each time that they are there."""
    import pyarrow  # type: ignore[import-untyped]
    import pyarrow.compute as compute  # type: ignore[import-untyped]

    if not pyarrow.types.is_dictionary(array.type):
        return int(array.nbytes)
    lengths = compute.binary_length(array.dictionary)
    return compute.sum(lengths.take(array.indices)).as_py() or 0
