"""The lock of a run folder: one process at a time writes there, and others can tell which."""

import os
import socket
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from udjfl._files import (
    check_no_link,
    explain_os_errors,
    parse_json,
    read_file,
    remove_file,
    to_json,
    write_atomic,
)
from udjfl._processes import is_alive, start_time
from udjfl.errors import StorageError

LOCK, OWNER = ".lock", ".writer.json"
# Seconds to wait for a process that was killed to be gone.
TIMEOUT = 2.0


class FolderLock:
    """The lock of one folder; the operating system releases it when the process ends."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: FileLock | None = None

    @property
    def is_held(self) -> bool:
        """True if this object holds the lock."""
        return self._lock is not None

    def acquire(self) -> None:
        """Make the folder and lock it, or raise an error that names the process that has it."""
        with explain_os_errors(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            check_no_link(self.path / LOCK)
            lock = FileLock(self.path / LOCK, timeout=TIMEOUT)
            try:
                lock.acquire()
            except Timeout:
                owner = self.read_owner()
                raise StorageError(
                    f"{self.path} is being written by process {owner.get('pid', '?')} on "
                    f"{owner.get('host', '?')}; wait until it ends, or stop it"
                ) from None
        self._lock = lock
        try:
            pid = os.getpid()
            owner = {"pid": pid, "host": socket.gethostname(), "started": start_time(pid)}
            write_atomic(self.path / OWNER, to_json(owner))
        except BaseException:
            self.release()
            raise

    def read_owner(self) -> dict[str, Any]:
        """Return id, host and start of the process that writes; empty if unknown."""
        try:
            owner = parse_json(read_file(self.path / OWNER, 10_000))
        except (OSError, ValueError):
            return {}
        return owner if isinstance(owner, dict) else {}

    def is_owned(self) -> bool:
        """Tell if a process writes here; one that was killed on this machine does not.

        The lock itself is not tried: that would keep the process from taking it.
        """
        owner = self.read_owner()
        try:
            pid, host = int(owner["pid"]), str(owner["host"])
        except (KeyError, ValueError, TypeError):
            return False
        if host != socket.gethostname():
            return True
        if pid <= 0 or not is_alive(pid):
            return False
        # Unknown in files of older versions, and on other systems than Linux.
        before, now = owner.get("started"), start_time(pid)
        return before is None or now is None or before == now

    def release(self) -> None:
        """Let other processes write here."""
        if self._lock is None:
            return
        lock, self._lock = self._lock, None
        try:
            remove_file(self.path / OWNER)  # if it can be: the disk may have become read-only
        finally:
            lock.release()
