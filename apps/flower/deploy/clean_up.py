"""Stops the deployments in a folder and removes it, when the program that made it has ended.

    python apps/flower/deploy/clean_up.py FOLDER < PIPE

The program holds the other end of the pipe, which the kernel closes however the program ends: a
killed program cannot stop what runs in the background.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import time
from pathlib import Path

from udjfl.deployment.supervisor import stop_running
from udjfl.errors import DeploymentError

PATIENCE = 120.0  # seconds; a command that was interrupted can start a process a little later
PAUSE = 1.0


def clean_up(folder: Path) -> None:
    """Stop everything that runs in a folder, the nodes first, and remove it."""
    deadline = time.monotonic() + PATIENCE
    while True:
        states = [path for path in folder.glob("*/state") if path.is_dir()]
        for state in sorted(states, key=lambda path: not (path.parent / "node.toml").exists()):
            with contextlib.suppress(DeploymentError):  # it does not stop; it is tried again
                stop_running(state)
        left = find_processes(folder)
        if not left or time.monotonic() > deadline:
            break
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        time.sleep(PAUSE)
    shutil.rmtree(folder, ignore_errors=True)


def find_processes(folder: Path) -> list[int]:
    """Return the other processes that have a folder in their command line."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if os.fsencode(folder) in path.read_bytes():
                found.append(int(path.parent.name))
    return [pid for pid in found if pid != os.getpid()]


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.read()
    folder = Path(sys.argv[1])
    if folder.exists():
        clean_up(folder)


if __name__ == "__main__":
    main()
