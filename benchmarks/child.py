"""A contender's process as its parent sees it: start it, ask it, watch its memory, end it."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from benchmarks.environments import child_environment
from benchmarks.work import Work


class ContenderError(Exception):
    """The reason why a contender cannot go on, in one line."""


class Child:
    """One contender. It stays up between repetitions, so that all contenders can take turns."""

    def __init__(
        self, python: str, module: str, variant: str, work: Work, source: str | None = None
    ) -> None:
        self.log = tempfile.TemporaryFile(mode="w+")  # noqa: SIM115 - closed in `close`
        begin = time.perf_counter()
        self.process = subprocess.Popen(
            [python, "-m", "benchmarks.contender", module, variant, work.to_json()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            env=child_environment(source),
            start_new_session=True,
        )
        self.memory = Memory(self.process.pid)
        try:
            ready = self._receive(timeout=300)
        except ContenderError:
            self.close()
            raise
        self.startup = time.perf_counter() - begin
        self.setup, self.torch = ready["setup"], ready["torch"]

    def ask(self, command: str, rounds: int, timeout: float = 600) -> dict[str, Any]:
        """Send a command and return the answer."""
        assert self.process.stdin is not None, "it was started with a pipe"
        try:
            self.process.stdin.write(json.dumps({"command": command, "rounds": rounds}) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise ContenderError(self._last_log_line()) from None
        return self._receive(timeout)

    def _receive(self, timeout: float) -> dict[str, Any]:
        assert self.process.stdout is not None, "it was started with a pipe"
        if not select.select([self.process.stdout], [], [], timeout)[0]:
            raise ContenderError(f"no answer in {timeout:.0f} s")
        line = self.process.stdout.readline()
        if not line:
            raise ContenderError(self._last_log_line())
        message = json.loads(line)
        if "error" in message:
            raise ContenderError(message["error"])
        return message

    def _last_log_line(self) -> str:
        self.log.seek(0)
        lines = self.log.read().strip().splitlines()
        return lines[-1][:200] if lines else "it ended without a message"

    def close(self) -> None:
        """Stop it; kill it and the processes it started if it does not end."""
        self.memory.stop()
        with contextlib.suppress(BrokenPipeError, ValueError, OSError):
            if self.process.stdin:
                self.process.stdin.write(json.dumps({"command": "stop"}) + "\n")
                self.process.stdin.close()
        started = process_tree(self.process.pid)
        try:
            self.process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        for pid in started:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                if pid != self.process.pid:
                    os.kill(pid, signal.SIGKILL)
        if self.process.stdout:
            self.process.stdout.close()
        self.log.close()


class Memory:
    """The peak memory of a process and its descendants, sampled until `stop`.

    It is the proportional set size: shared memory is counted once.
    """

    def __init__(self, pid: int, every: float = 0.05) -> None:
        self.pid, self.every, self.peak = pid, every, 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._stop.wait(self.every):
            self.peak = max(self.peak, sum(_set_size(pid) for pid in process_tree(self.pid)))

    def stop(self) -> int:
        """Stop sampling and return the peak in bytes."""
        self._stop.set()
        self._thread.join()
        return self.peak


def process_tree(pid: int) -> list[int]:
    """Return a process and all its descendants."""
    pids = [pid]
    for parent in pids:
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{parent}/task").iterdir():
                pids += [int(child) for child in (task / "children").read_text().split()]
    return pids


def _set_size(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:  # it has just ended
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
