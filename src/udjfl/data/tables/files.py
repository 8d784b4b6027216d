"""CSV and parquet files of clients: found by pattern, decoded, and read as frames."""

from __future__ import annotations

import csv
import io
import logging
import os
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from udjfl._files import read_prefix
from udjfl.data.tables.frames import import_pandas
from udjfl.data.tables.parquet import read_parquet
from udjfl.errors import DataError, quote_values

if TYPE_CHECKING:
    import pandas as pd

Files: TypeAlias = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

logger = logging.getLogger("udjfl.data")
SUFFIXES = (".csv", ".tsv", ".txt", ".parquet")
MISSING = ["?", ""]  # beside pandas' own: NA, NaN, null, None, n/a, ...
MOST_BYTES = 1 << 31  # of a file, and of the columns of parquet in memory
SNIFFED = 1 << 16  # characters that show how the columns are separated
BOMS = {b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16", b"\xef\xbb\xbf": "utf-8-sig"}


def name_files(text: str) -> bool:
    """Tell whether the name of data is that of files: one with a suffix of tables, or a path."""
    pieces = [piece.strip() for piece in text.split(",")]
    return all(
        piece.lower().endswith(SUFFIXES)
        or "*" in piece
        or piece.startswith((".", "/", "~"))
        or Path(piece).is_dir()
        for piece in pieces
    )


def find_files(files: Files) -> list[Path]:
    """Return the files that patterns, folders and paths name, sorted; an error if there is none.

    A text may name several, separated by commas; paths and the items of a list may have commas.
    """
    if isinstance(files, str):
        pieces = [piece.strip() for piece in files.split(",")]
    else:
        pieces = [
            os.fspath(path) for path in ([files] if isinstance(files, os.PathLike) else files)
        ]
    found: list[Path] = []
    for piece in pieces:
        path = Path(piece).expanduser()
        if path.is_dir():
            matches = [own for own in path.iterdir() if own.suffix.lower() in SUFFIXES]
        elif path.is_file():
            matches = [path]
        else:
            anchor = Path(path.anchor)
            pattern = str(path.relative_to(anchor) if path.is_absolute() else path)
            matches = [own for own in anchor.glob(pattern) if own.is_file()]
        if not matches and path.is_dir():
            raise DataError(
                f"{piece} has no tables ({', '.join(SUFFIXES)}), no images in folders "
                "client/class/image, and no saved federation"
            )
        if not matches:
            raise DataError(f"no file is called {piece}, and none matches it as a pattern")
        found += matches
    return sorted(set(found))


def read_tables(files: Files, has_client_column: bool = False) -> dict[str, pd.DataFrame]:
    """Read a frame for each file, by the name of the file without its suffix.

    One file alone needs a column that names the clients.
    """
    paths = find_files(files)
    if len(paths) == 1 and not has_client_column:
        raise DataError(
            f"{paths[0]} is one file: name the column that says which client a row belongs to "
            "(client=..., --client), or give one file for each client"
        )
    stems = Counter(path.stem for path in paths)
    names = [
        path.stem if stems[path.stem] == 1 else f"{path.parent.name}/{path.stem}" for path in paths
    ]
    twice = [name for name, times in Counter(names).items() if times > 1]
    if twice:
        raise DataError(f"several files are called {twice[0]}: give every client a name of its own")
    return {name: read_table(path) for name, path in zip(names, paths, strict=True)}


def describe_files(files: Files) -> str:
    """Return a short name for the data in these files: their folder, or the only file."""
    paths = find_files(files)
    return paths[0].stem if len(paths) == 1 else paths[0].resolve().parent.name


def read_table(path: Path) -> pd.DataFrame:
    """Read one file; errors name it."""
    import_pandas()
    try:
        if path.suffix.lower() == ".parquet":
            return read_parquet(path, MOST_BYTES)
        text = decode(read_prefix(path, MOST_BYTES), path)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from None
    except ImportError:
        raise DataError(
            f"{path}: parquet files need pyarrow: pip install 'udjfl[frames]'"
        ) from None
    except DataError:
        raise
    except MemoryError:
        raise DataError(f"{path} needs more memory than there is; split it") from None
    except (ValueError, LookupError, TypeError, NotImplementedError) as error:  # of pyarrow, pandas
        raise DataError(f"{path} is not a parquet file: {quote_values(str(error))}") from None
    return parse_csv(text, path)


def decode(content: bytes, path: Path) -> str:
    """Return the text of a file: UTF-8, UTF-16 with its mark, or else Windows-1252 with a warning.

    Lines of UTF-8 beside lines that are not are an error: no reading of both can be right.
    """
    encoding = next((name for mark, name in BOMS.items() if content.startswith(mark)), "utf-8")
    try:
        return content.decode(encoding)
    except UnicodeDecodeError as error:
        if encoding != "utf-8":
            raise DataError(f"{path} is not {encoding}: {error.reason}; save it as UTF-8") from None
        wrong = content.count(b"\n", 0, error.start) + 1
    for number, line in enumerate(content.split(b"\n"), start=1):
        if not line.isascii() and _is_utf8(line):
            raise DataError(
                f"{path} mixes encodings: line {number} is UTF-8, line {wrong} is not; save the "
                "whole file as UTF-8"
            )
    logger.warning(
        "%s is not UTF-8 (line %d); it is read as Windows-1252: save it as UTF-8 if texts look "
        "wrong",
        path,
        wrong,
    )
    return content.decode("cp1252", errors="replace")


def _is_utf8(line: bytes) -> bool:
    try:
        line.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def parse_csv(text: str, path: Path) -> pd.DataFrame:
    """Read a CSV text whose columns are separated by commas, semicolons, tabs or bars."""
    pandas = import_pandas()
    if not text.strip():
        raise DataError(f"{path}: the file is empty")
    separator = _find_separator(text[:SNIFFED])
    options: dict[str, Any] = {"sep": separator, "na_values": MISSING, "skipinitialspace": True}
    edge = re.escape(separator)
    if separator != "," and re.search(rf"(^|{edge})-?\d+,\d+({edge}|$)", text[:SNIFFED], re.M):
        options["decimal"] = ","
    try:
        frame: pd.DataFrame = pandas.read_csv(io.StringIO(text), **options)
    except (ValueError, csv.Error) as error:
        raise DataError(
            f"{path} cannot be read as a table: {quote_values(str(error).strip())}"
        ) from None
    if frame.empty:
        raise DataError(f"{path}: has a header and no rows")
    return frame


def _find_separator(text: str) -> str:
    """Return the separator that the header has most often; a comma if there is none."""
    header = text.lstrip().splitlines()[0]
    return max(",;\t|", key=header.count)
