"""Checks of run folders: which files are whole or damaged, and which can be made again."""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from udjfl.errors import CheckpointError, StorageError
from udjfl.training.file_names import MADE_AGAIN, SETTINGS, find_advice
from udjfl.training.folder_lock import FolderLock
from udjfl.training.manifest import MANIFEST
from udjfl.training.record_file import CHECKPOINT, RECORDS
from udjfl.training.run_folder import RunFolder

logger = logging.getLogger("udjfl")
UNCHECKED = "no manifest.json (an older version made it), so damage may go unnoticed"
TRIES = 3  # to read a folder while none of its files is replaced
# whole: it is what the run wrote; damaged: it is not; missing: the run wrote it, or was about to;
# unchecked: of an older version, with nothing to compare it with; unknown: not of the run
State = Literal["whole", "damaged", "missing", "unchecked", "unknown"]


@dataclass(frozen=True)
class FileStatus:
    """One file of a run folder: its state, and what is wrong or what to do about it."""

    name: str
    state: State
    note: str = ""


def check_files(folder: RunFolder) -> list[FileStatus]:
    """Check every file in an opened run folder."""
    if folder.manifest is None:
        return list(_check_older(folder))
    listed = sorted({*folder.manifest.files, *folder.manifest.before})
    statuses = [_check_listed(folder, name) for name in listed]
    if CHECKPOINT not in listed:
        statuses += _check_progress(folder)
    known = {status.name for status in statuses} | {MANIFEST}
    others = sorted(path.name for path in folder.path.iterdir() if not path.is_dir())
    return [
        FileStatus(MANIFEST, "whole"),
        *statuses,
        *(
            FileStatus(name, "unknown", f"{MANIFEST} does not list it")
            for name in others
            if name not in known and not name.startswith(".")
        ),
    ]


def _check_listed(folder: RunFolder, name: str) -> FileStatus:
    advice = find_advice(name)
    try:
        is_there = folder.read(name) is not None
    except StorageError as error:
        return FileStatus(name, "damaged", _without_path(error, folder, name))
    return FileStatus(name, "whole") if is_there else FileStatus(name, "missing", advice)


def _check_progress(folder: RunFolder) -> Iterator[FileStatus]:
    """Check the checkpoint and the records of a run that has not finished."""
    try:
        checkpoint = folder.read_checkpoint()
    except StorageError as error:
        yield FileStatus(CHECKPOINT, "damaged", _without_path(error, folder, CHECKPOINT))
        return
    if checkpoint is not None:
        yield FileStatus(CHECKPOINT, "whole", f"after round {checkpoint.round}")
    try:
        kept = len(folder.records_until(checkpoint))
        rest = len(folder.records.read() or b"") - kept
    except StorageError as error:
        yield FileStatus(RECORDS, "damaged", _without_path(error, folder, RECORDS))
        return
    after = f"{rest} bytes after the checkpoint are made again by `udjfl resume`" if rest else ""
    if kept or rest:
        yield FileStatus(RECORDS, "whole", after)


def _check_older(folder: RunFolder) -> Iterator[FileStatus]:
    for path in sorted(folder.path.iterdir()):
        if path.is_dir() or path.name.startswith("."):
            continue
        state: State = "unchecked" if folder.is_whole(path.name) else "damaged"
        yield FileStatus(path.name, state, "" if state == "unchecked" else find_advice(path.name))


def _without_path(error: StorageError, folder: RunFolder, name: str) -> str:
    return str(error).removeprefix(f"{folder.path / name} ")


def refuse_damage(folder: RunFolder, resuming: bool = False) -> None:
    """Raise an error if a file is damaged; not for one that resuming makes again.

    The files of a folder without a manifest cannot be checked: see `warn_of_unchecked`.
    """
    if folder.manifest is None:
        if resuming:
            warn_of_unchecked([folder.path])
        return
    for status in check_files(folder):
        if status.state != "damaged":
            continue
        if resuming and status.name in MADE_AGAIN:
            logger.warning("%s is damaged and is made again.", folder.path / status.name)
            continue
        error = CheckpointError if status.name == CHECKPOINT else StorageError
        raise error(f"{folder.path / status.name} {status.note}")


def open_whole(path: Path) -> RunFolder:
    """Open a folder to read it, and raise an error if a file is damaged.

    Where a process writes, a file may be replaced after its manifest was read, and seem damaged:
    then both are read again.
    """
    for _ in range(TRIES - 1):
        folder = RunFolder.open(path)
        try:
            refuse_damage(folder)
        except StorageError:
            if not FolderLock(path).is_owned():
                raise
        else:
            return folder
    folder = RunFolder.open(path)
    refuse_damage(folder)
    return folder


def warn_of_unchecked(paths: Sequence[Path]) -> None:
    """Log that these folders have no manifest, in one line."""
    if paths:
        more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
        logger.warning("%s%s: %s.", paths[0], more, UNCHECKED)


def find_folders(path: Path) -> list[Path]:
    """Return the run folders at and below a path, in the order of their names."""
    found = sorted({file.parent for file in path.rglob(SETTINGS)})
    if not found:
        raise StorageError(f"{path} holds no run; name the folder given as --out")
    return found


@dataclass(frozen=True)
class FolderStatus:
    """One run folder: its files, or the error that kept them from being checked."""

    path: Path
    files: tuple[FileStatus, ...] = ()
    error: str | None = None

    @property
    def is_whole(self) -> bool:
        return self.error is None and all(f.state in ("whole", "unknown") for f in self.files)

    @property
    def is_damaged(self) -> bool:
        return self.error is not None or any(f.state == "damaged" for f in self.files)


def check_folder(path: Path) -> list[FolderStatus]:
    """Check every run folder at and below a path."""
    statuses = []
    for each in find_folders(path):
        try:
            statuses.append(FolderStatus(each, tuple(check_files(RunFolder.open(each)))))
        except StorageError as error:
            statuses.append(FolderStatus(each, error=str(error)))
    return statuses
