"""Processes that end when their parent does, however it dies; and which of them are there.

A killed process cannot stop the workers it started. On Linux the kernel does (PR_SET_PDEATHSIG),
at once; elsewhere a thread of the worker looks for its parent every second.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

PR_SET_PDEATHSIG = 1  # of <sys/prctl.h>
WATCH_INTERVAL = 1.0  # seconds
ORPHANED = 1  # the exit code of a process without its parent


@dataclass(frozen=True)
class Parent:
    """The process that starts workers: made there, followed in the worker.

    The kernel's signal comes when the thread that started the worker ends, so it is asked for only
    where that is the main thread.
    """

    pid: int = field(default_factory=os.getpid)
    in_main_thread: bool = field(
        default_factory=lambda: threading.current_thread() is threading.main_thread()
    )

    def follow(self) -> None:
        """End this process when its parent ends."""
        if not (self.in_main_thread and _ask_kernel_for_signal()):
            threading.Thread(target=self._watch, name="udjfl parent", daemon=True).start()
        if self._is_gone():  # it died before this process could follow it
            os._exit(ORPHANED)

    def _watch(self) -> None:
        while not self._is_gone():
            time.sleep(WATCH_INTERVAL)
        os._exit(ORPHANED)

    def _is_gone(self) -> bool:
        return os.getppid() != self.pid


def is_alive(pid: int) -> bool:
    """Tell whether there is a process with this number."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True  # it is another user's, or not a number of this machine
    return True


def start_time(pid: int) -> int | None:
    """Return when a process started, in the kernel's ticks since the boot; None if unknown.

    A number is given to another process when its own has ended, with a later start.
    """
    try:
        status = Path(f"/proc/{pid}/stat").read_bytes()
        # The name, in brackets, may contain anything; after it the start is field 20.
        return int(status.rpartition(b")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return None  # no such process, or not Linux


def _ask_kernel_for_signal() -> bool:
    """Let the kernel kill this process when its parent ends; return whether it will."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        failed = ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    except (OSError, AttributeError):  # a libc without it
        return False
    return not failed
