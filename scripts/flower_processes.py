"""Processes that are started, waited for and stopped by their id, with everything they started themselves.

A SuperLink and a SuperNode start helpers of their own, some in a session of their own, so a process group is not enough:
a family is whoever descends from the first process, and is remembered as long as that lives.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

GRACE = 15.0  # seconds a process gets to end by itself before it is killed
PAUSE = 0.2
# On Linux the kernel ends a part when we are killed and cannot do it ourselves (PR_SET_PDEATHSIG, 1, with SIGTERM), and gives
# it the descendants whose parent has ended (PR_SET_CHILD_SUBREAPER, 36), so that none gets out of sight.
_BIND = "import ctypes, os, sys; c = ctypes.CDLL(None); c.prctl(1, 15); c.prctl(36, 1); os.execv(sys.argv[1], sys.argv[1:])"
_BOUND = [sys.executable, "-c", _BIND] if sys.platform.startswith("linux") else []

Table = dict[
    int, tuple[int, str]
]  # process id -> its parent's, and when it started (ids are used again, together they are not)


class Part:
    """One process of a deployment and its descendants; what it prints is in `log`."""

    def __init__(
        self, name: str, command: Sequence[str], environment: Mapping[str, str], log: Path
    ) -> None:
        self.name, self.log = name, log
        log.parent.mkdir(parents=True, exist_ok=True)
        self._log_begins = log.stat().st_size if log.exists() else 0
        with log.open("ab") as file:
            self.process = subprocess.Popen(
                [*_BOUND, *command],
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,  # Ctrl-C is for us: we then stop the parts in order
            )
        self._family: dict[int, str] = {}
        self.remember()

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    @property
    def output(self) -> str:
        """What this process has printed, not those before it of the same name."""
        with self.log.open("rb") as file:
            file.seek(self._log_begins)
            return file.read().decode(errors="replace")

    def family(self) -> list[int]:
        """The ids of the process and all its descendants that are alive."""
        table = self.remember()
        return sorted(
            pid for pid, started in self._family.items() if table.get(pid, (0, ""))[1] == started
        )

    def remember(self) -> Table:
        """Take note of the descendants: once a parent has ended, nothing says whose they were."""
        self.process.poll()  # a process nobody has asked about stays in the table after its end
        table = process_table()
        known = {
            pid for pid, started in self._family.items() if table.get(pid, (0, ""))[1] == started
        } | {self.process.pid}
        while more := {pid for pid, (parent, _) in table.items() if parent in known} - known:
            known |= more
        self._family |= {pid: table[pid][1] for pid in known if pid in table}
        return table

    def signal(self, number: int) -> None:
        """To the first process alone."""
        if self.running:
            self.process.send_signal(number)

    def kill(self) -> None:
        """End the whole family at once, without a chance to say goodbye."""
        deadline = time.monotonic() + GRACE
        while (alive := self.family()) and time.monotonic() < deadline:
            for pid in alive:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(PAUSE)
        self.process.wait()

    def wait(self, seconds: float) -> int | None:
        """The exit code, or None if it is still running after so many seconds."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.process.wait(seconds)
        return None


def stop(parts: Iterable[Part], grace: float = GRACE) -> None:
    """Ask all of them to end, wait, then kill whoever is left, helpers included."""
    parts = list(parts)
    for part in parts:
        part.remember()
        part.signal(signal.SIGTERM)
    deadline = time.monotonic() + grace
    while any(part.family() for part in parts) and time.monotonic() < deadline:
        time.sleep(PAUSE)
    for part in parts:
        part.kill()


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold back Ctrl-C and SIGTERM, so that stopping is not itself stopped half way."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    try:
        before = [signal.signal(number, signal.SIG_IGN) for number in numbers]
    except ValueError:  # not the main thread, which alone gets signals
        yield
        return
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def process_table() -> Table:
    """Every process that is alive; those that ended and only wait to be noticed are not."""
    if not Path("/proc/self/stat").exists():
        listing = subprocess.run(
            ["ps", "-A", "-o", "pid=,ppid=,stat=,lstart="],
            capture_output=True,
            text=True,
            check=True,
        )
        rows = [line.split(None, 3) for line in listing.stdout.splitlines()]
        return {
            int(pid): (int(parent), started)
            for pid, parent, state, started in rows
            if not state.startswith("Z")
        }
    table: Table = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it ended while we looked
            # The name is in brackets and may have any character in it; what we want comes after it.
            state, parent, *fields = path.read_text(errors="replace").rpartition(")")[2].split()
            if state != "Z":
                table[int(path.parent.name)] = (int(parent), fields[17])
    return table
