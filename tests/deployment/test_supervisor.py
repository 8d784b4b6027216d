"""Services that are kept running, and end with their supervisor."""

from __future__ import annotations

import errno
import io
import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest

pytest.importorskip("flwr")

from filelock import FileLock

from udjfl.deployment.processes import process_table
from udjfl.deployment.supervisor import (
    Service,
    make_logs_folder,
    read_log,
    read_running,
    report,
    stop_running,
)

LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs Linux")
# Two services; the second writes its id to a file and sleeps.
PROGRAM = """
import sys
from pathlib import Path
from udjfl.deployment.supervisor import Service, Supervisor
state = Path(sys.argv[1])
sleep = (
    "import os, time; file = open(os.environ['FLWR_HOME'] + '/pid', 'a'); "
    "print(os.getpid(), file=file, flush=True); time.sleep(1000)"
)
services = [Service(name, [sys.executable, "-c", sleep], state / name) for name in "ab"]
Supervisor(state, services, {"kind": "test"}).run()
"""


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "study" / "state"


@pytest.fixture
def supervisor(state: Path) -> Iterator[subprocess.Popen[str]]:
    with start(state) as process:
        try:
            assert wait(lambda: len(pids(state, "a")) == len(pids(state, "b")) == 1)
            yield process
        finally:
            process.kill()


def start(state: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(state)], stdout=subprocess.PIPE, stderr=-2, text=True
    )


def pids(state: Path, name: str) -> list[int]:
    path = state / name / "pid"
    return [int(line) for line in path.read_text().split()] if path.exists() else []


def wait(done: Callable[[], bool], seconds: float = 60.0) -> bool:
    deadline = time.monotonic() + seconds
    while not done() and time.monotonic() < deadline:
        time.sleep(0.05)
    return done()


def test_services_end_with_their_supervisor(state: Path, supervisor: subprocess.Popen[str]) -> None:
    description = read_running(state)
    assert description is not None
    assert (description["kind"], description["pid"]) == ("test", supervisor.pid)
    services = {*pids(state, "a"), *pids(state, "b")}
    assert services <= set(process_table())
    assert stop_running(state)
    assert supervisor.wait(60) == 0
    assert not services & set(process_table())
    assert read_running(state) is None
    assert not stop_running(state)


def test_a_killed_service_is_started_again(state: Path, supervisor: subprocess.Popen[str]) -> None:
    os.kill(pids(state, "a")[0], signal.SIGKILL)
    assert wait(lambda: len(pids(state, "a")) == 2)
    assert len(pids(state, "b")) == 1  # the other is left alone
    assert stop_running(state)
    assert supervisor.stdout is not None
    assert "a ended with -9; it is started again" in supervisor.stdout.read()


def test_a_service_that_cannot_be_started_is_tried_again(
    state: Path, supervisor: subprocess.Popen[str]
) -> None:
    """Its log cannot be written, as on a full disk; the other service goes on."""
    log = state / "logs" / "a.log"
    log.unlink()
    log.mkdir()
    os.kill(pids(state, "a")[0], signal.SIGKILL)
    time.sleep(3)
    assert (len(pids(state, "a")), len(pids(state, "b"))) == (1, 1)
    log.rmdir()
    assert wait(lambda: len(pids(state, "a")) == 2)
    assert pids(state, "b")[0] in process_table()
    assert stop_running(state)
    assert supervisor.stdout is not None
    assert "a cannot be started: [Errno 21] Is a directory" in supervisor.stdout.read()


def test_a_full_disk_does_not_stop_a_supervisor_that_reports(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Full(io.StringIO):
        def flush(self) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        print("a line", file=Full(), flush=True)
    monkeypatch.setattr(sys, "stdout", Full())
    report("a line")


def test_a_folder_has_one_supervisor(state: Path, supervisor: subprocess.Popen[str]) -> None:
    second = start(state)
    output, _ = second.communicate(timeout=60)
    assert second.returncode != 0
    assert f"is running already (process {supervisor.pid}); `udjfl flower down" in output
    assert supervisor.poll() is None


@LINUX
def test_a_killed_supervisor_leaves_nothing_and_can_be_started_again(
    state: Path, supervisor: subprocess.Popen[str]
) -> None:
    services = {*pids(state, "a"), *pids(state, "b")}
    supervisor.kill()
    supervisor.wait()
    assert wait(lambda: not services & set(process_table()))
    assert read_running(state) is None  # the file is there, the lock is not
    with start(state) as again:
        assert wait(lambda: len(pids(state, "a")) == 2)
        assert stop_running(state)
        assert again.wait(60) == 0


def test_a_process_that_is_no_supervisor_is_never_stopped(state: Path) -> None:
    """A file that names a living process, but without the lock, is of a killed supervisor."""
    state.mkdir(parents=True)
    (state / "running.json").write_text(f'{{"pid": {os.getpid()}}}')
    assert not stop_running(state)


@pytest.mark.parametrize("start", [None, "an earlier time"])
def test_two_looks_at_once_do_not_take_each_other_for_a_supervisor(
    state: Path, start: str | None
) -> None:
    """The file of a killed supervisor, whose id another process has now; a second look locks."""
    state.mkdir(parents=True)
    description = {"pid": os.getpid(), **({} if start is None else {"start": start})}
    (state / "running.json").write_text(json.dumps(description))
    with FileLock(state / "lock"):
        assert read_running(state) is None
        assert not stop_running(state)


@pytest.mark.parametrize("by_hand", [False, True])
def test_the_state_is_closed_to_other_users(state: Path, by_hand: bool) -> None:
    if by_hand:
        state.mkdir(parents=True, mode=0o755)
    logs = make_logs_folder(state)
    assert [stat.S_IMODE(path.stat().st_mode) for path in (logs, state)] == [0o700] * 2


def test_a_log_that_strangers_fill_is_put_aside_while_its_service_runs(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("udjfl.deployment.supervisor.LARGEST_LOG", 1000)
    program = """
import sys, time
from pathlib import Path
print("a" * 2000, flush=True)
while not Path(sys.argv[1]).exists():
    time.sleep(0.05)
print("told")
"""
    go = state / "go"
    logs = make_logs_folder(state)
    command = [sys.executable, "-c", program, str(go)]
    for strangers in (False, True):
        service = Service("proxy", command, state, is_logging_strangers=strangers)
        go.unlink(missing_ok=True)
        service.start(logs)
        assert service.tree is not None
        log = service.tree.log
        assert wait(lambda log=log: log.exists() and log.stat().st_size > 2000)
        service.put_log_aside()
        assert (log.stat().st_size == 0) == strangers
        go.touch()
        assert service.tree.process.wait(60) == 0
        assert log.read_text().endswith("told\n")
    assert log.read_text() == "told\n"
    assert log.with_suffix(".log.1").read_text() == "a" * 2000 + "\n"


@pytest.fixture
def proxy(state: Path, monkeypatch: pytest.MonkeyPatch) -> Service:
    """A service with a log that is large, and an earlier one that was put aside."""
    monkeypatch.setattr("udjfl.deployment.supervisor.LARGEST_LOG", 10)
    log = make_logs_folder(state) / "proxy.log"
    log.write_text("a line that is new\n")
    log.with_suffix(".log.1").write_text("old\n")
    service = Service("proxy", [], state, is_logging_strangers=True)
    service.tree = Mock(log=log)
    return service


def test_a_copy_that_is_not_whole_replaces_no_log(
    proxy: Service, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def copy_a_part(source: Path, target: Path) -> None:
        target.write_text("a line")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("udjfl.deployment.supervisor.shutil.copyfile", copy_a_part)
    proxy.put_log_aside()
    assert proxy.tree is not None
    logs = {path.name: path.read_text() for path in proxy.tree.log.parent.iterdir()}
    assert logs == {"proxy.log": "", "proxy.log.1": "old\n"}  # strangers do not fill the disk
    assert "proxy: its log cannot be put aside: [Errno 28] No space" in capsys.readouterr().out


def test_a_log_that_cannot_be_emptied_does_not_end_the_supervisor(
    proxy: Service, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    with monkeypatch.context() as patched:
        patched.setattr(os, "truncate", refuse)
        proxy.put_log_aside()
    assert "proxy: its log cannot be put aside: [Errno 1]" in capsys.readouterr().out
    assert proxy.tree is not None
    proxy.tree.log.unlink()  # as by hand, between two looks
    monkeypatch.setattr(Path, "exists", lambda self: True)
    proxy.put_log_aside()
    assert capsys.readouterr().out == ""


def test_a_log_is_read_without_colours(state: Path) -> None:
    log = make_logs_folder(state) / "superlink.log"
    log.write_text("first\n\x1b[92mINFO \x1b[0m: second\n\x1b[1;31mthird\x1b[m\n")
    assert read_log(state, "superlink", 2) == "INFO : second\nthird"
    assert read_log(state, "superlink", None) == "first\nINFO : second\nthird\n"
    assert read_log(state, "proxy") == ""
