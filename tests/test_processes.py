"""Worker processes end when their parent is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from udjfl._processes import is_alive, start_time

POSIX = pytest.mark.skipif(os.name != "posix", reason="needs SIGKILL")
# A parent that starts one child, prints its process id, and waits.
SCRIPT = """
import os, sys, threading, time
from udjfl import _processes
from udjfl._processes import Parent

def work(parent):
    parent.follow()
    print(os.getpid(), flush=True)
    time.sleep(600)

def start():
    parent = Parent()
    if os.fork() == 0:
        work(parent)

if sys.argv[1] == "thread":
    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
else:
    if sys.argv[1] == "watch":  # a system whose kernel sends no signal
        _processes._ask_kernel_for_signal = lambda: False
    start()
time.sleep(600)
"""


def is_gone(pid: int) -> bool:
    """Tell whether a process has ended; one that nothing has waited for yet has."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        return False
    return state == "Z"


def wait_until(happened: Callable[[], bool], seconds: float = 30) -> bool:
    deadline = time.monotonic() + seconds
    while not happened() and time.monotonic() < deadline:
        time.sleep(0.02)
    return happened()


@POSIX
@pytest.mark.parametrize("way", ["kernel", "watch", "thread"])
def test_a_process_ends_when_its_parent_is_killed(way: str) -> None:
    """By the kernel's signal, by looking for the parent, and if a thread had started it."""
    parent = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, way], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    time.sleep(0.1)
    assert not is_gone(child)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    assert wait_until(lambda: is_gone(child))
    parent.stdout.close()


WORKERS = """
import os, sys, time
from udjfl.simulation.process_pool import run_in_processes

class Hold:
    def __call__(self, send):
        send(os.getpid())
        time.sleep(600)

def show(pid):
    print(pid, flush=True)

run_in_processes([Hold(), Hold()], 2, show, fork=True)
"""


@POSIX
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="processes are forked on Linux")
def test_workers_that_share_seeds_end_when_their_parent_is_killed() -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", WORKERS],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )
    assert parent.stdout is not None
    workers = [int(parent.stdout.readline()) for _ in range(2)]
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    assert wait_until(lambda: all(is_gone(pid) for pid in workers))
    parent.stdout.close()


@POSIX
def test_a_process_is_alive_until_it_was_waited_for() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert is_alive(process.pid)
    process.communicate(b"\n")
    assert not is_alive(process.pid)
    assert is_alive(2**70)  # of another machine


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")
def test_a_later_process_has_a_later_start() -> None:
    own = start_time(os.getpid())
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        later = start_time(process.pid)
        process.communicate(b"\n")
    assert own is not None
    assert later is not None
    assert own < later
    assert start_time(os.getpid()) == own
    assert start_time(process.pid) is None
