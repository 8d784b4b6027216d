"""A contender's process, from outside: start it, ask it, watch its memory, end it."""

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
    """Why a contender cannot go on, in one line."""


class Child:
    """One contender, kept alive between repetitions so that those of all contenders can take turns."""

    def __init__(self, python: str, module: str, variant: str, work: Work) -> None:
        self.log = tempfile.TemporaryFile(mode="w+")  # noqa: SIM115 - closed in `close`
        begin = time.perf_counter()
        self.process = subprocess.Popen(
            [python, "-m", "benchmarks.contender", module, variant, work.to_json()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            env=child_environment(),
            start_new_session=True,
        )
        self.memory = Memory(self.process.pid)
        try:
            ready = self._hear(timeout=300)
        except ContenderError:
            self.close()
            raise
        self.startup = time.perf_counter() - begin
        self.setup, self.torch = ready["setup"], ready["torch"]

    def ask(self, do: str, rounds: int, timeout: float = 600) -> dict[str, Any]:
        assert self.process.stdin is not None, "it was made with a pipe"
        try:
            self.process.stdin.write(json.dumps({"do": do, "rounds": rounds}) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise ContenderError(self._last_words()) from None
        return self._hear(timeout)

    def _hear(self, timeout: float) -> dict[str, Any]:
        assert self.process.stdout is not None, "it was made with a pipe"
        if not select.select([self.process.stdout], [], [], timeout)[0]:
            raise ContenderError(f"no answer in {timeout:.0f} s")
        line = self.process.stdout.readline()
        if not line:
            raise ContenderError(self._last_words())
        message = json.loads(line)
        if "error" in message:
            raise ContenderError(message["error"])
        return message

    def _last_words(self) -> str:
        self.log.seek(0)
        lines = self.log.read().strip().splitlines()
        return lines[-1][:200] if lines else "it ended without a word"

    def close(self) -> None:
        """Ask it to stop; end it, and what it started, if it does not."""
        self.memory.stop()
        with contextlib.suppress(BrokenPipeError, ValueError, OSError):
            if self.process.stdin:
                self.process.stdin.write(json.dumps({"do": "stop"}) + "\n")
                self.process.stdin.close()
        started = tree(self.process.pid)
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
    """The most memory a process and its descendants had at once, looked at now and then until told to stop.

    Proportional set size: what processes share is counted once.
    """

    def __init__(self, pid: int, every: float = 0.05) -> None:
        self.pid, self.every, self.peak = pid, every, 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._stop.wait(self.every):
            self.peak = max(self.peak, sum(_set_size(pid) for pid in tree(self.pid)))

    def stop(self) -> int:
        """In bytes."""
        self._stop.set()
        self._thread.join()
        return self.peak


def tree(pid: int) -> list[int]:
    """A process and all its descendants."""
    found = [pid]
    for parent in found:
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{parent}/task").iterdir():
                found += [int(child) for child in (task / "children").read_text().split()]
    return found


def _set_size(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:  # it has just ended
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
