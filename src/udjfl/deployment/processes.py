"""Start, watch and stop processes together with every process that they start themselves.

A SuperLink and a SuperNode start helper processes, some in a session of their own, so stopping a
process group is not enough. A `ProcessTree` records the descendants while their parent lives.
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
PAUSE = 0.1
# On Linux the kernel ends the process when this program is killed (PR_SET_PDEATHSIG = 1, SIGTERM),
# and makes it the parent of its orphaned descendants (PR_SET_CHILD_SUBREAPER = 36). A program that
# was killed before the kernel was asked is no longer the parent.
_BIND = (
    "import ctypes, os, sys; c = ctypes.CDLL(None); c.prctl(1, 15); c.prctl(36, 1); "
    "os.getppid() == int(sys.argv[1]) or sys.exit(1); os.execv(sys.argv[2], sys.argv[2:])"
)

# Process id -> (id of the parent, start time). Ids are reused; an id with its start time is not.
ProcessTable = dict[int, tuple[int, str]]


class ProcessTree:
    """A process and its descendants. Its output is appended to the file `log`."""

    def __init__(
        self, name: str, command: Sequence[str], environment: Mapping[str, str], log: Path
    ) -> None:
        self.name, self.log = name, log
        log.parent.mkdir(parents=True, exist_ok=True)
        self._log_start = log.stat().st_size if log.exists() else 0
        with log.open("ab") as file:
            self.process = subprocess.Popen(
                bind(command, os.getpid()),
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,  # Ctrl-C reaches this program only, which stops the rest
            )
        self._start_times: dict[int, str] = {}
        self.update()

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    @property
    def output(self) -> str:
        """The output of this process, without that of earlier ones with the same log."""
        with self.log.open("rb") as file:
            file.seek(self._log_start)
            return file.read().decode(errors="replace")

    def alive(self) -> list[int]:
        """Return the ids of the process and its descendants that are running."""
        return sorted(self._alive_in(self.update()))

    def update(self) -> ProcessTable:
        """Record new descendants. After a parent has ended they can no longer be found."""
        self.process.poll()  # removes an ended process from the table
        table = process_table()
        tree = self._alive_in(table)
        if self.process.returncode is None:  # later, its id may be that of any process
            tree.add(self.process.pid)
        while children := {pid for pid, (parent, _) in table.items() if parent in tree} - tree:
            tree |= children
        self._start_times |= {pid: table[pid][1] for pid in tree if pid in table}
        return table

    def _alive_in(self, table: ProcessTable) -> set[int]:
        return {
            pid for pid, start in self._start_times.items() if table.get(pid, (0, ""))[1] == start
        }

    def signal(self, number: int) -> None:
        """Send a signal to the first process only."""
        if self.running:
            self.process.send_signal(number)

    def kill(self) -> None:
        """Kill the whole tree with SIGKILL."""
        deadline = time.monotonic() + GRACE
        while (pids := self.alive()) and time.monotonic() < deadline:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(PAUSE)
        self.process.wait()

    def wait(self, seconds: float) -> int | None:
        """Return the exit code, or None if the process is still running after `seconds`."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.process.wait(seconds)
        return None


def bind(command: Sequence[str], parent: int) -> list[str]:
    """Return a command that ends with the process `parent`, which starts it (on Linux)."""
    if not sys.platform.startswith("linux"):
        return list(command)
    return [sys.executable, "-c", _BIND, str(parent), *command]


def stop(trees: Iterable[ProcessTree], grace: float = GRACE) -> None:
    """Send SIGTERM to all first processes, wait, then kill whatever is still running."""
    trees = list(trees)
    for tree in trees:
        tree.update()
        tree.signal(signal.SIGTERM)
    deadline = time.monotonic() + grace
    while any(tree.alive() for tree in trees) and time.monotonic() < deadline:
        time.sleep(PAUSE)
    for tree in trees:
        tree.kill()


@contextlib.contextmanager
def ignore_interrupts() -> Iterator[None]:
    """Ignore SIGINT and SIGTERM, so that stopping processes is not interrupted half way."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    try:
        handlers = [signal.signal(number, signal.SIG_IGN) for number in numbers]
    except ValueError:  # not in the main thread, which alone receives signals
        yield
        return
    try:
        yield
    finally:
        for number, handler in zip(numbers, handlers, strict=True):
            signal.signal(number, handler)


def process_table() -> ProcessTable:
    """Return every running process, without zombies."""
    if not Path("/proc/self/stat").exists():
        return _table_from_ps()
    table: ProcessTable = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # the process has ended since the listing
            # The command name stands in brackets and may contain any character.
            state, parent, *fields = path.read_text(errors="replace").rpartition(")")[2].split()
            if state != "Z":
                table[int(path.parent.name)] = (int(parent), fields[17])
    return table


def _table_from_ps() -> ProcessTable:
    command = ["ps", "-A", "-o", "pid=,ppid=,stat=,lstart="]
    listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    rows = [line.split(None, 3) for line in listing.splitlines()]
    return {
        int(pid): (int(parent), start)
        for pid, parent, state, start in rows
        if not state.startswith("Z")
    }
