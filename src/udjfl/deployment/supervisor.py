"""A supervisor: one process that starts services, starts them again, and stops them together.

Its state is in a folder:

    lock           locked while the supervisor lives
    running.json   its process id and start time, and what it was started with
    logs/          the output of each service

Services end with their supervisor, however it ends (on Linux), so nothing is left behind.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from udjfl._files import as_argument, make_private_folder, write_atomic
from udjfl.deployment.flwr_command import flower_environment, tail
from udjfl.deployment.processes import ProcessTree, ignore_interrupts, process_table, stop
from udjfl.errors import DeploymentError

LOCK, RUNNING, LOGS, OWN_LOG = "lock", "running.json", "logs", "supervisor"
TICK = 0.5  # seconds
LOOK = 5.0  # seconds between two looks for new descendants; reading all processes takes a while
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0  # seconds before a service is started again
STEADY = 60.0  # seconds after which a service counts as running well
LARGEST_LOG = 10 << 20  # bytes; a larger log is put aside
PROBE = 2.0  # seconds; `read_running` locks for a moment, too
STOPPING = 60.0  # seconds that a supervisor has to stop
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@dataclass
class Service:
    """A process that is kept running: its command, and its home folder for Flower's files.

    Its log is put aside when it starts; one to which strangers add lines, while it runs as well.
    """

    name: str
    command: Sequence[str]
    home: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    is_logging_strangers: bool = False
    tree: ProcessTree | None = None
    pause: float = FIRST_PAUSE
    started_at: float = 0.0
    looked_at: float = 0.0

    def start(self, logs: Path) -> None:
        """Start the process; its output is added to its log."""
        self.started_at = time.monotonic()
        make_private_folder(self.home)
        log = logs / f"{self.name}.log"
        if _is_large(log):
            log.replace(log.with_suffix(".log.1"))
        environment = flower_environment(self.home, self.environment)
        self.tree = ProcessTree(self.name, self.command, environment, log)

    def put_log_aside(self) -> None:
        """Copy a large log and empty it; the process goes on writing to it, at its end.

        It is emptied as well if there is no place for the copy, as on a full disk.
        """
        assert self.tree is not None, "it was started"
        log = self.tree.log
        if not self.is_logging_strangers:
            return
        try:
            if _is_large(log):
                try:
                    _copy_whole(log, log.with_suffix(".log.1"))
                finally:
                    os.truncate(log, 0)
        except OSError as error:
            report(f"{self.name}: its log cannot be put aside: {error}")


def _is_large(log: Path) -> bool:
    try:
        return log.stat().st_size > LARGEST_LOG
    except FileNotFoundError:
        return False


def _copy_whole(source: Path, target: Path) -> None:
    """Put a copy in the place of the target, which stays as it is unless the copy is whole."""
    partial = target.with_name(f"{target.name}.partial")
    try:
        shutil.copyfile(source, partial)
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


class Supervisor:
    """Keeps services running until SIGTERM or SIGINT. `on_tick` is called now and then."""

    def __init__(
        self,
        state: Path,
        services: Sequence[Service],
        description: Mapping[str, Any],
        on_tick: Callable[[], None] = lambda: None,
    ) -> None:
        self.state, self.services, self.description = state, services, dict(description)
        self._on_tick, self._stopped = on_tick, False

    def run(self) -> None:
        """Start the services in order and watch them; stop them in the opposite order."""
        logs = make_logs_folder(self.state)
        lock = FileLock(self.state / LOCK)
        try:
            lock.acquire(timeout=PROBE)
        except Timeout:
            raise DeploymentError(already_running(self.state)) from None
        handlers = {
            number: signal.signal(number, self._stop) for number in (signal.SIGTERM, signal.SIGINT)
        }
        try:
            pid = os.getpid()
            own = {"pid": pid, "start": process_table()[pid][1], "since": time.time()}
            description = {**self.description, **own}
            write_atomic(self.state / RUNNING, json.dumps(description).encode())
            self._watch(logs)
        finally:
            with ignore_interrupts():
                for service in reversed(self.services):
                    stop([service.tree] if service.tree else [])
                (self.state / RUNNING).unlink(missing_ok=True)
                lock.release()
            for number, handler in handlers.items():
                signal.signal(number, handler)

    def _stop(self, *_: object) -> None:
        self._stopped = True

    def _watch(self, logs: Path) -> None:
        for service in self.services:
            if not self._stopped:
                service.start(logs)
        while not self._stopped:
            for service in self.services:
                self._restart_if_ended(service, logs)
            self._on_tick()
            time.sleep(TICK)

    def _restart_if_ended(self, service: Service, logs: Path) -> None:
        tree = service.tree
        assert tree is not None, "all were started"
        age = time.monotonic() - service.started_at
        if tree.running:
            if age > STEADY:
                service.pause = FIRST_PAUSE
            if time.monotonic() - service.looked_at > LOOK:
                service.looked_at = time.monotonic()
                tree.update()
                service.put_log_aside()
            return
        if age < service.pause:
            return
        report(f"{service.name} ended with {tree.process.returncode}; it is started again")
        tree.kill()  # what it left behind
        service.pause = min(2 * service.pause, LONGEST_PAUSE)
        try:
            service.start(logs)
        except (
            OSError
        ) as error:  # such as a full disk: the others go on, and this one is tried again
            report(f"{service.name} cannot be started: {error}")


def make_logs_folder(state: Path) -> Path:
    """Make the folder of logs, and close the folder around it to other users."""
    logs = make_private_folder(state / LOGS)
    state.chmod(0o700)  # it may have been made by hand
    return logs


def report(line: str) -> None:
    """Print a line with the time: the supervisor's log. A full disk stops nothing."""
    with contextlib.suppress(OSError):
        print(time.strftime("%Y-%m-%d %H:%M:%S"), line, flush=True)


def read_running(state: Path) -> dict[str, Any] | None:
    """Return what a running supervisor was started with; None if there is none."""
    try:
        description = json.loads((state / RUNNING).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    # A killed supervisor leaves the file, but not the lock.
    lock = FileLock(state / LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout:  # it may also be another look like this one that has the lock
        return dict(description) if _is_alive(description) else None
    lock.release()
    return None


def _is_alive(description: Mapping[str, Any]) -> bool:
    """Tell if the process that wrote this lives, and not another one with its id."""
    _, start = process_table().get(description.get("pid", 0), (0, None))
    return start is not None and start == description.get("start")


def already_running(state: Path) -> str:
    """Return the error that a supervisor is running in this folder."""
    pid = (read_running(state) or {}).get("pid", "?")
    stop = f"udjfl flower down {as_argument(state.parent)}"
    return f"{state.parent} is running already (process {pid}); `{stop}` stops it"


def start_in_background(arguments: Sequence[str], state: Path) -> subprocess.Popen[bytes]:
    """Start `udjfl` with these arguments, detached from this terminal."""
    logs = make_logs_folder(state)
    with (logs / f"{OWN_LOG}.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "udjfl", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def stop_running(state: Path) -> bool:
    """Stop the supervisor of a folder and wait for its end; False if none is running."""
    description = read_running(state)
    if description is None:
        return False
    pid = int(description["pid"])
    with contextlib.suppress(ProcessLookupError):  # it has just ended
        os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + STOPPING
    while _is_alive(description):
        if time.monotonic() > deadline:
            raise DeploymentError(
                f"process {pid} does not stop; its log is {state / LOGS / OWN_LOG}.log"
            )
        time.sleep(TICK)
    return True


def read_log(state: Path, name: str, lines: int | None = 25) -> str:
    """Return the last lines of a service's log, without colours; None: all."""
    try:
        text = (state / LOGS / f"{name}.log").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    text = COLOUR.sub("", text)
    return text if lines is None else tail(text, lines)
