"""Faults at the effects of a program on the disk, one at a time, in processes forked from this one.

An effect is a call that writes, syncs, cuts, renames or removes. The n-th of a scenario, counted
over all its processes, is where the fault happens:

    kill      the process that makes it is killed before it
    parent    the process that started the scenario is killed, whichever process makes it
    full      it fails, as on a full disk
    torn      a write writes half and the process is killed
    short     a write writes half and then fails, as on a full disk
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from multiprocessing import resource_sharer
from typing import Any

from udjfl.errors import UdjflError

EFFECTS = ("write", "fsync", "ftruncate", "replace", "unlink")
FINISHED, REFUSED, BROKEN = 0, 2, 3  # exit codes: done, an error of ours, any other exception


class Fault:
    """A fault at one effect; number 0 is none, and counts the effects."""

    def __init__(self, kind: str = "kill", number: int = 0) -> None:
        self.kind, self.number = kind, number
        self.count = multiprocessing.get_context("fork").Value("q", 0)
        self.main = 0

    def install(self) -> None:
        """Replace the functions of `os` in this process, and in those forked from it."""
        self.main = os.getpid()
        for name in EFFECTS:
            setattr(os, name, self._wrap(name, getattr(os, name)))

    def _wrap(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **keywords: Any) -> Any:
            with self.count.get_lock():
                self.count.value += 1
                is_due = self.count.value == self.number
            if is_due:
                self._happen(name, real, arguments)
            return real(*arguments, **keywords)

        return call

    def _happen(self, name: str, real: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        if self.kind in ("torn", "short") and name == "write":
            descriptor, content = arguments
            real(descriptor, content[: len(content) // 2])
        if self.kind in ("full", "short"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        victim = self.main if self.kind == "parent" else os.getpid()
        os.kill(victim, signal.SIGKILL)


def fork() -> int:
    """Fork this process without the thread that hands tensors to workers.

    A child of `os.fork` would go on to name that thread to its own workers: only processes that
    multiprocessing starts forget it. Whether an earlier test had begun it is chance.
    """
    resource_sharer.stop()
    return os.fork()


def run_forked(scenario: Callable[[], object], fault: Fault | None = None) -> tuple[int, str]:
    """Run a scenario in a forked process; return its exit code and what it printed as an error.

    The code is negative if a signal ended it.
    """
    reading, writing = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = fork()
    if pid == 0:
        _run_and_exit(scenario, fault, writing)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        text = pipe.read().decode(errors="replace")
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status), text


def preload(scenario: Callable[[], object]) -> None:
    """Import here what a scenario imports, so that processes forked from this one need not."""
    before = set(sys.modules)

    def list_modules() -> None:
        scenario()
        raise UdjflError("\n".join(name for name in sys.modules if name not in before))

    _, names = run_forked(list_modules)
    for name in names.splitlines():
        with contextlib.suppress(Exception):
            importlib.import_module(name)


def _run_and_exit(scenario: Callable[[], object], fault: Fault | None, writing: int) -> None:
    write = os.write
    if fault is not None:
        fault.install()
    code, text = run_here(scenario)
    write(writing, text.encode())
    os._exit(code)


def run_here(scenario: Callable[[], object]) -> tuple[int, str]:
    """Run a scenario in this process, which was forked for it; return its exit code and error."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (1, 2):
        os.dup2(nowhere, descriptor)
    try:
        scenario()
    except UdjflError as error:
        return REFUSED, str(error)
    except BaseException as error:
        return BROKEN, f"{type(error).__name__}: {error}"
    return FINISHED, ""


def make_failing(code: int) -> Callable[..., None]:
    """Return a function that fails with an error of the system."""

    def fail(*args: object, **options: object) -> None:
        raise OSError(code, os.strerror(code))

    return fail
