"""The memory that the columns of a parquet file would take, found before they are read.

The sizes in a file are those of encoded columns, where a text that many rows have is there once.
So texts and lists are measured column by column and a few rows at a time; texts as codes of a
dictionary, which has each of them once, or, where pyarrow reads no codes, fewer rows at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyarrow.parquet import ParquetFile  # type: ignore[import-untyped]  # it has no types

TEXT_ROWS, LIST_ROWS = 1 << 16, 1 << 8  # read at once


def exceeds(path: Path, most: int) -> bool:
    """Tell whether the columns of a file would take more than so many bytes of memory.

    What a file says of a part of a column is not looked at: pyarrow ends the process where that is
    damaged (26.0).
    """
    from pyarrow.parquet import read_metadata

    described = read_metadata(path)
    columns = [described.schema.column(index) for index in range(described.num_columns)]
    groups = range(described.num_row_groups)
    rows = [described.row_group(index).num_rows for index in groups]
    if min(rows, default=0) < 0 or sum(rows) != described.num_rows:  # memory is taken for them
        raise ValueError("its parts have other numbers of rows than the whole")
    encoded = [described.row_group(index).total_byte_size for index in groups]
    total = sum(described.num_rows * max(8, column.length) for column in columns)
    if max(total, sum(encoded)) > most:
        return True
    plain_rows = most // 4 // max([1, *encoded])  # a text has at most the bytes of its group
    for column in columns:
        is_list, is_text = column.max_repetition_level > 0, column.physical_type == "BYTE_ARRAY"
        if not (is_list or is_text):
            continue
        at_once = LIST_ROWS if is_list else TEXT_ROWS
        fewer = max(1, min(at_once, plain_rows)) if is_text else at_once
        for size in _measure_column(path, column.path, at_once, fewer):
            total += size
            if total > most:
                return True
    return False


def _measure_column(path: Path, name: str, rows: int, plain_rows: int) -> Iterator[int]:
    """Yield the bytes that a column takes, some rows at a time; fewer if texts have no codes."""
    from pyarrow.parquet import ParquetFile

    with ParquetFile(path, read_dictionary=[name]) as file:
        rows = rows if _has_codes(file, name) else plain_rows
        try:
            for batch in file.iter_batches(batch_size=rows, columns=[name], use_threads=False):
                yield sum(map(_measure, batch.columns))
            return
        except OSError:  # texts encoded by what they share with the one before have no codes
            pass
    with ParquetFile(path) as file:
        for batch in file.iter_batches(batch_size=plain_rows, columns=[name], use_threads=False):
            yield sum(map(_measure, batch.columns))


def _has_codes(file: ParquetFile, name: str) -> bool:
    """Tell whether a column is read as codes; a name goes on after a point in nested columns."""
    types = [f.type for f in file.schema_arrow if f"{name}.".startswith(f"{f.name}.")]
    return bool(types) and all("dictionary" in str(type) for type in types)


def _measure(array: Any) -> int:
    """Return the bytes of an array; of codes those of their texts, each time they are there."""
    import pyarrow  # type: ignore[import-untyped]
    import pyarrow.compute as compute  # type: ignore[import-untyped]

    kind = array.type
    if pyarrow.types.is_dictionary(kind):
        lengths = compute.binary_length(array.dictionary)
        return compute.sum(lengths.take(array.indices)).as_py() or 0
    if pyarrow.types.is_struct(kind):
        return sum(map(_measure, array.flatten()))
    return _measure(array.flatten()) if pyarrow.types.is_nested(kind) else int(array.nbytes)
