"""records.jsonl: appended to, synced, cut back to a checkpoint; its SHA-256 is kept up to date."""

import contextlib
import errno
import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from udjfl._files import explain_os_errors, open_file, read_file, write_all
from udjfl.errors import StorageError
from udjfl.training.manifest import Entry
from udjfl.training.records import Record, parse_record

RECORDS, CHECKPOINT = "records.jsonl", "checkpoint.safetensors"
START_AGAIN = (
    f"delete {RECORDS} and {CHECKPOINT} and resume: the run starts again from the beginning, "
    "with the same result"
)


class RecordFile:
    """The records of a run. `entry` describes what this process has read or written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._digest, self._length = hashlib.sha256(), 0

    @property
    def entry(self) -> Entry:
        return Entry(self._digest.hexdigest(), self._length)

    def append(self, records: Iterable[Record]) -> None:
        """Add records to the end; `sync` makes them last."""
        content = b"".join(record.to_line() for record in records)
        with self._open() as descriptor:
            if os.fstat(descriptor).st_size != self._length:
                raise StorageError(
                    f"{self.path} was changed by another program while this one wrote; "
                    "resume the run: it goes on from the last checkpoint"
                )
            write_all(descriptor, content)
        self._digest.update(content)
        self._length += len(content)

    def sync(self) -> None:
        """Have everything written so far on the disk."""
        with self._open() as descriptor:
            os.fsync(descriptor)

    def cut(self, content: bytes) -> None:
        """Go on from this content, with which the file begins; what follows it is cut off."""
        with self._open() as descriptor:
            os.ftruncate(descriptor, len(content))
        self._digest, self._length = hashlib.sha256(content), len(content)

    def read(self) -> bytes | None:
        """Read the file as it is; None if there is none."""
        try:
            return read_file(self.path)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StorageError(
                f"{self.path} cannot be read ({error.strerror or error}); {START_AGAIN}"
            ) from None

    def parse(self, content: bytes) -> list[Record]:
        """Return the records in a content."""
        records = []
        for number, line in enumerate(content.splitlines(keepends=True), start=1):
            try:
                records.append(parse_record(line))
            except ValueError as error:
                raise StorageError(
                    f"{self.path} is damaged in line {number} ({error}); {START_AGAIN}"
                ) from None
        return records

    @contextlib.contextmanager
    def _open(self) -> Iterator[int]:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        with explain_os_errors(self.path), open_file(self.path, flags) as descriptor:
            if os.fstat(descriptor).st_nlink > 1:
                raise OSError(
                    errno.EMLINK, "it has a second name elsewhere, a hard link; remove one of them"
                )
            yield descriptor
