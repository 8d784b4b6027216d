"""A run on disk.

A run folder holds

    settings.json            everything chosen, and which data it was
    versions.json            of udjfl and the libraries that make the numbers
    manifest.json            the SHA-256 of every other file: what belongs to this run
    uncertainty.json         one number per client, measured once
    records.jsonl            one line per (round, client, metric, value), only ever appended to
    checkpoint.safetensors   the server after some round, and the length and SHA-256 of the records
    model.safetensors        the final model, where there is one for everybody
    served.safetensors       the models clients use in the end, in which shares, and what a service
                             adds to their logits, where those differ between clients
    result.json              the final metrics; these last are written when the run has finished

Files are replaced atomically (written beside, synced, renamed), so a killed process leaves the old
file or the new one. Records written after the last checkpoint are cut off on resume and made again,
so none is lost and none is there twice. One process at a time may write: it holds a lock on the
folder, which the operating system releases when the process ends, however it ends. What is read is
compared with the manifest first. Folders of versions before the manifest are read without that.
"""

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from udjfl._files import explain_os_errors, remove_file, to_json, write_atomic
from udjfl.errors import CheckpointError, StorageError
from udjfl.training.file_names import (
    LEFTOVERS,
    PARTS,
    RESTORE,
    RESULT,
    SETTINGS,
    VERSIONS,
)
from udjfl.training.folder_lock import FolderLock
from udjfl.training.listed_files import ListedFiles
from udjfl.training.manifest import MANIFEST, Entry, Manifest, load_manifest
from udjfl.training.record_file import CHECKPOINT, RECORDS, START_AGAIN, RecordFile
from udjfl.training.records import History, Record
from udjfl.training.resuming import advise_to_resume
from udjfl.training.tensor_file import pack, unpack_content

# In settings.json: the folder has a manifest, so one without was not made by an older version.
FORMAT_KEY, FORMAT = "folder_format", 2
# What settings.json holds as an object, where it holds it.
OBJECTS = ("params", "training", "federation", "flower", "comparison")


@dataclass(frozen=True)
class Checkpoint:
    """The server between two rounds."""

    round: int
    tensors: dict[str, Tensor]
    records_length: int
    records_sha256: str | None = None  # None: of an older version


class RunFolder(ListedFiles):
    """One run on disk. A process that writes holds the lock: see `lock`, `unlock`."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._lock = FolderLock(path)
        self.records = RecordFile(path / RECORDS)

    @classmethod
    def create(
        cls, path: str | os.PathLike[str], settings: Mapping[str, Any], versions: Mapping[str, str]
    ) -> "RunFolder":
        """Start a run, in a folder that does not hold one; the folder is locked."""
        folder = cls(Path(path))
        folder.lock()
        try:
            folder._check_is_free()
            contents = to_json({**settings, FORMAT_KEY: FORMAT}), to_json(versions)
            folder.manifest = Manifest.of_run(*contents)
            write_atomic(folder.path / VERSIONS, contents[1])
            folder._write_manifest(folder.manifest)
            # Last: a folder with settings is a run that can be resumed.
            write_atomic(folder.path / SETTINGS, contents[0])
        except BaseException:
            folder.unlock()
            raise
        return folder

    def _check_is_free(self) -> None:
        if self.holds_a_run:
            raise StorageError(
                f"{self.path} already holds a run; continue it with "
                f"{advise_to_resume(self.path)}, or choose another folder"
            )
        left = [name for name in LEFTOVERS if os.path.lexists(self.path / name)]
        if left:
            raise StorageError(
                f"{self.path} has {left[0]} of a run without settings; choose another folder, "
                "or delete it"
            )

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> "RunFolder":
        """Open a run that was started before, to read it; `lock` it before writing."""
        folder = cls(Path(path))
        if not folder.holds_a_run:
            raise StorageError(
                f"{folder.path} holds no run (there is no settings.json); "
                "start one with `udjfl run --out`"
            )
        folder._load_manifest()
        return folder

    def _load_manifest(self) -> None:
        """Read the manifest; a folder without one must be of an older version."""
        self.manifest = load_manifest(self.path)
        if self.manifest is None:
            settings = self.read_json(SETTINGS)
            if isinstance(settings, dict) and FORMAT_KEY in settings:
                raise StorageError(f"{self.path / MANIFEST} is missing; {RESTORE}")

    def lock(self) -> None:
        """Acquire the write lock, or raise an error that names the process that has it."""
        self._lock.acquire()
        try:
            self._tidy()
        except BaseException:
            self.unlock()
            raise

    def _tidy(self) -> None:
        """Remove what a killed process was writing, and find out which files it had replaced."""
        with explain_os_errors(self.path):
            for path in self.path.iterdir():
                if PARTS.fullmatch(path.name):
                    remove_file(path)
        if not self.holds_a_run:
            return
        self._load_manifest()
        if self.manifest is not None and self.manifest.before:
            contents = {name: self._read_content(name) for name in self.manifest.before}
            self._write_manifest(self.manifest.settle(contents))

    def unlock(self) -> None:
        """Let other processes write here."""
        self._lock.release()

    @property
    def holds_a_run(self) -> bool:
        with explain_os_errors(self.path, "read"):
            return os.path.lexists(self.path / SETTINGS)

    @property
    def has_checkpoint(self) -> bool:
        """True if a run that is resumed here does not start from the beginning."""
        return (self.path / CHECKPOINT).exists()

    @property
    def finished(self) -> bool:
        return (self.path / RESULT).exists()

    def read_settings(self, *keys: str) -> dict[str, Any]:
        """Read settings.json, which must have these keys."""
        settings = self.read_json(SETTINGS)
        if (
            not isinstance(settings, dict)
            or any(key not in settings for key in keys)
            or not all(isinstance(settings.get(key, {}), dict) for key in OBJECTS)
        ):
            raise StorageError(
                f"{self.path / SETTINGS} is not that of a run; restore it, "
                "or start the run again elsewhere"
            )
        return settings

    def finish(self, contents: Mapping[str, bytes]) -> None:
        """Write what is written last, and list the records and the checkpoint with it."""
        if self.manifest is not None:
            checkpoint = self._read_content(CHECKPOINT)
            entries = {RECORDS: self.records.entry}
            if checkpoint is not None:
                entries[CHECKPOINT] = Entry.of(checkpoint)
            self._expect({**entries, **{k: Entry.of(v) for k, v in contents.items()}})
        self.write_files(contents)

    def append(self, records: Iterable[Record]) -> None:
        """Add records to the end of the file; `save_checkpoint` makes them last."""
        self.records.append(records)

    def save_checkpoint(self, round: int, tensors: Mapping[str, Tensor]) -> None:
        """Sync the records, then replace the checkpoint.

        Killed in between, the older checkpoint still fits.
        """
        self.records.sync()
        metadata = {
            "round": round,
            "records_length": self.records.entry.size,
            "records_sha256": self.records.entry.sha256,
            **({} if self.manifest is None else {"run": self.manifest.run}),
        }
        write_atomic(self.path / CHECKPOINT, pack(tensors, metadata))

    def read_checkpoint(self) -> Checkpoint | None:
        """Read the checkpoint of this run; None if there is none."""
        content = self._read_content(CHECKPOINT)
        if content is None:
            return None
        tensors, metadata = unpack_content(content, self.path / CHECKPOINT)
        round, length = metadata.get("round"), metadata.get("records_length")
        if type(round) is not int or type(length) is not int or round < 1 or length < 0:
            raise self._damaged(CHECKPOINT, "it is of no round")
        digest, run = metadata.get("records_sha256"), metadata.get("run")
        if self.manifest is not None and (run != self.manifest.run or digest is None):
            raise self._damaged(CHECKPOINT, "of another run", "does not belong here")
        return Checkpoint(round, tensors, length, digest)

    def rewind(self) -> tuple[Checkpoint | None, History]:
        """Go back to the last checkpoint (or to the start): cut off later records, return both."""
        checkpoint = self.read_checkpoint()
        kept = self.records_until(checkpoint)
        records = self.records.parse(kept)
        if self.manifest is not None and self.manifest.files.get(RECORDS, None) not in (
            None,
            Entry.of(kept),
        ):
            # It had finished and begins again: these are written anew.
            self._write_manifest(self.manifest.without(RECORDS, CHECKPOINT))
        self.records.cut(kept)
        return checkpoint, History(records)

    def records_until(self, checkpoint: Checkpoint | None) -> bytes:
        """Return the records up to a checkpoint, compared with those it was written after."""
        if checkpoint is None:
            return b""
        kept = (self.records.read() or b"")[: checkpoint.records_length]
        if len(kept) < checkpoint.records_length:
            raise CheckpointError(
                f"{self.records.path} is shorter than when {CHECKPOINT} was written; {START_AGAIN}"
            )
        digest = checkpoint.records_sha256
        if digest is not None and hashlib.sha256(kept).hexdigest() != digest:
            raise CheckpointError(
                f"{self.records.path} is damaged: up to the checkpoint it is not what it was then; "
                f"{START_AGAIN}"
            )
        return kept

    def read_records(self) -> Iterator[Record]:
        """Read all records; of a run that has not finished, those up to its last checkpoint."""
        content = self.records.read()
        if content is None:
            raise StorageError(f"{self.records.path} is missing; {START_AGAIN}")
        if self._lock.is_held:
            if Entry.of(content) != self.records.entry:
                raise self._damaged(RECORDS, "another program changed it")
        elif self.manifest is not None and RECORDS in self.manifest.files:
            self.read(RECORDS)
        elif self.manifest is not None:
            content = self.records_until(self.read_checkpoint())
        return iter(self.records.parse(content))
