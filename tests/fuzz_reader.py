"""A reader of something from outside, and damaged input for it until it fails."""

from __future__ import annotations

import io
import json
import logging
import random
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fuzz_damage import mutate

from udjfl.errors import UdjflError

MOST_FAILURES = 20  # distinct ones, after which no more input is read
SHOWN = 2000  # characters of an input


@dataclass(frozen=True)
class Reader:
    """A reader, an input that it takes, the errors it may raise, and how inputs are changed."""

    valid: Any
    read: Callable[[Any, Path], object]
    errors: tuple[type[Exception], ...] = (UdjflError,)
    change: Callable[[Any, random.Random], Any] = mutate


def make_input(reader: Reader, seed: int, number: int) -> Any:
    """Make the damaged input of this number."""
    return reader.change(reader.valid, random.Random(seed << 32 | number))


def fuzz_reader(
    name: str, reader: Reader, folder: Path, numbers: Iterable[int], seed: int
) -> Counter[str]:
    """Read damaged inputs: each is read, or refused with an error of ours.

    Other errors are collected until there are too many. One of the same type from the same line is
    described once.
    """
    outcomes, failures = Counter[str](), dict[tuple[type[Exception], str, int], str]()
    before = repr(reader.valid)
    with _formatted_log():
        reader.read(reader.valid, folder)
        for number in numbers:
            content = make_input(reader, seed, number)
            try:
                reader.read(content, folder)
                outcomes["read"] += 1
            except reader.errors:
                outcomes["refused"] += 1
            except Exception as error:
                outcomes["failed"] += 1
                place = (type(error), *_innermost(error))
                if place not in failures:
                    shown = repr(content)[:SHOWN]
                    trace = "".join(traceback.format_exception(error))
                    failures[place] = f"{name}, seed {seed}, input {number}: {shown}\n{trace}"
                if len(failures) == MOST_FAILURES:
                    break
    print(f"{name}: {sum(outcomes.values())} inputs: {dict(outcomes)}")
    if failures:
        # Without the errors themselves, which keep alive what was being read.
        raise AssertionError(f"{len(failures)} kinds of errors\n\n" + "\n".join(failures.values()))
    assert repr(reader.valid) == before, f"{name} changes what it reads"
    return outcomes


def _innermost(error: Exception) -> tuple[str, int]:
    """Return the file and the line that raised an error."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return ("", 0) if trace is None else (trace.tb_frame.f_code.co_filename, trace.tb_lineno)


class _Formatting(logging.Handler):
    """Formats every message, which has to be possible, and keeps none."""

    def emit(self, record: logging.LogRecord) -> None:
        record.getMessage()


@contextmanager
def _formatted_log() -> Iterator[None]:
    """Give messages of the package to nobody: of a million inputs they would fill the memory."""
    logger, handler = logging.getLogger("udjfl"), _Formatting()
    propagate, logger.propagate = logger.propagate, False
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagate


# --- readers of files


def write_file(path: Path, content: bytes) -> None:
    with path.open("wb", buffering=0) as file:
        file.write(content)


def of_file(read: Callable[[Path], object], name: str = "input") -> Callable[[Any, Path], object]:
    """Return a reader of contents from one of files."""

    def read_content(content: bytes, folder: Path) -> object:
        path = folder / name
        write_file(path, content)
        return read(path)

    return read_content


def of_json(read: Callable[[Path], object], name: str = "input") -> Callable[[Any, Path], object]:
    """Return a reader of values from one of JSON files."""
    read_content = of_file(read, name)
    return lambda values, folder: read_content(json.dumps(values).encode(), folder)


@dataclass
class FolderReader:
    """Writes files into a folder and reads it. A file that is there already is left alone."""

    read: Callable[[Path], object]
    files: Mapping[str, bytes]  # of the valid folder
    folder: Path | None = None
    written: dict[str, bytes] = field(default_factory=dict)

    def __call__(self, changed: Mapping[str, bytes], folder: Path) -> object:
        if folder != self.folder:
            self.folder, self.written = folder, {}
        for name, content in {**self.files, **changed}.items():
            if self.written.get(name) != content:
                write_file(folder / name, content)
                self.written[name] = content
        return self.read(folder)

    def of_json(self, name: str) -> Callable[[Any, Path], object]:
        """Return a reader of values of one JSON file."""
        return lambda values, folder: self({name: json.dumps(values).encode()}, folder)

    def of_bytes(self, name: str) -> Callable[[Any, Path], object]:
        """Return a reader of the content of one file."""
        return lambda content, folder: self({name: content}, folder)


def save_to_files(save: Callable[[Path], object]) -> dict[str, bytes]:
    """Return the contents of the files that something is saved to."""
    with tempfile.TemporaryDirectory() as root:
        save(Path(root))
        return {path.name: path.read_bytes() for path in Path(root).iterdir() if path.is_file()}


def save_to_bytes(save: Callable[[io.BytesIO], object]) -> bytes:
    stream = io.BytesIO()
    save(stream)
    return stream.getvalue()
