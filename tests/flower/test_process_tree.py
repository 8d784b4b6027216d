"""No process is left behind, however a deployment ends."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from deploy import APP
from shared_deployment import wait_until

from udjfl.deployment.processes import ProcessTree, process_table, stop

TIMEOUT = 600.0
LINUX = sys.platform.startswith("linux")
PROGRAM = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored by jobs in the background
sys.path.insert(0, sys.argv[1])
from deploy.local import Deployment
with Deployment() as deployment:
    print(deployment.folder, *deployment.start_superlink().alive(), flush=True)
    if sys.argv[2] == "exception":
        raise ZeroDivisionError
    time.sleep(1000)
"""
ENDINGS = ("exception", "SIGINT", *(["SIGKILL"] if LINUX else []))


@dataclass(frozen=True)
class Ended:
    """A program that has ended: its deployment's folder and processes."""

    folder: Path
    pids: set[int]
    exit_code: int


@pytest.fixture(scope="module")
def ended() -> Iterator[dict[str, Ended]]:
    """Programs with a SuperLink each, started together and ended in different ways."""
    programs = {
        ending: subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(APP), ending],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for ending in ENDINGS
    }
    results = {}
    for ending, program in programs.items():
        with program:
            assert program.stdout is not None
            folder, *pids = program.stdout.readline().split()
            if ending != "exception":
                program.send_signal(getattr(signal, ending))
            code = program.wait(TIMEOUT)
        results[ending] = Ended(Path(folder), {int(pid) for pid in pids}, code)
    yield results
    for result in results.values():
        shutil.rmtree(result.folder, ignore_errors=True)


@pytest.mark.processes
@pytest.mark.parametrize("ending", ENDINGS)
def test_a_program_that_ends_early_leaves_no_process_behind(
    ending: str, ended: dict[str, Ended]
) -> None:
    """After SIGKILL, which leaves the program no chance, the kernel ends them (on Linux)."""
    program = ended[ending]
    assert program.exit_code != 0
    assert len(program.pids) > 1  # the SuperLink has a helper, in a session of its own
    assert wait_until(lambda: not program.pids & set(process_table()))
    if ending != "SIGKILL":
        assert not program.folder.exists()


@pytest.mark.skipif(not LINUX, reason="elsewhere orphans cannot be traced to their ancestors")
def test_orphans_and_processes_that_ignore_sigterm_are_stopped(tmp_path: Path) -> None:
    """A grandchild in its own session whose parent has ended; a child that ignores SIGTERM."""
    sleep = "[sys.executable, '-c', 'import time; time.sleep(1000)']"
    leave = f"import subprocess, sys; subprocess.Popen({sleep}, start_new_session=True)"
    ignore = (
        "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        "print('ignoring', flush=True); time.sleep(1000)"
    )
    program = (
        f"import subprocess, sys, time; subprocess.run([sys.executable, '-c', {leave!r}]); {ignore}"
    )
    tree = ProcessTree("stubborn", [sys.executable, "-c", program], {}, tmp_path / "log")
    try:
        assert wait_until(lambda: "ignoring" in tree.output)
        pids = tree.alive()
        assert len(pids) == 2  # the one that ignores SIGTERM, and the orphan
        stop([tree], grace=1.0)
        assert not set(pids) & set(process_table())
    finally:
        tree.kill()
