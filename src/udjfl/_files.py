"""Atomic writes, and operating system errors explained."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from udjfl.errors import StorageError


def write_atomic(path: Path, content: bytes) -> None:
    """Replace a file, or leave it as it was; a killed process leaves the old or the new one."""
    beside = path.with_name(path.name + ".part")
    with explain_os_errors(path):
        try:
            with beside.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            beside.replace(path)
        except OSError:
            beside.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Make a rename survive a power cut, where the system allows it."""
    if os.name == "posix":
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextmanager
def explain_os_errors(path: Path) -> Iterator[None]:
    """Turn an OSError into a `StorageError` that says what to do."""
    try:
        yield
    except OSError as error:
        free = "free some space, then `udjfl resume`: what is there is intact"
        advice = {
            errno.ENOSPC: f"the disk is full; {free}",
            errno.EDQUOT: f"the quota is used up; {free}",
            errno.EROFS: "the file system is read-only; choose another folder with --out",
            errno.EACCES: "permission denied; choose another folder with --out",
            errno.EPERM: "permission denied; choose another folder with --out",
            errno.ENOENT: "there can be no such folder; choose another folder with --out",
            errno.ENOTDIR: "a file is in the way; choose another folder with --out",
            errno.EEXIST: "a file is in the way; choose another folder with --out",
            errno.ENAMETOOLONG: "the name is too long; choose another folder with --out",
        }.get(error.errno or 0, error.strerror or str(error))
        raise StorageError(f"cannot write {path}: {advice}") from error
