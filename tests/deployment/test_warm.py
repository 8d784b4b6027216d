"""The executor's command line and environment, and what it does where it is not supported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from udjfl.deployment import warm
from udjfl.deployment.fork_server import ExecutorOptions

LINUX = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs Linux")


def test_the_command_is_read_as_it_was_written(tmp_path: Path) -> None:
    command = warm.executor_command(
        "127.0.0.1:9094",
        tmp_path / "secret",
        root_certificates=tmp_path / "ca.crt",
        messages=tmp_path / "messages",
        message_timeout=2.5,
        preload=["json", "csv"],
        supernode_pid=12,
    )
    assert command[:3] == [sys.executable, "-m", "udjfl.deployment.warm"]
    options, preload = warm._parse(command[3:])
    assert preload == ["json", "csv"]
    assert options == ExecutorOptions(
        "127.0.0.1:9094",
        tmp_path / "secret",
        tmp_path / "messages",
        tmp_path / "ca.crt",
        2.5,
        parent_pid=12,
    )
    short, _ = warm._parse(warm.executor_command("127.0.0.1:9094", tmp_path / "secret")[3:])
    assert short.messages == tmp_path / "secret.messages"


def test_the_environment_has_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    assert warm.executor_environment()["OMP_NUM_THREADS"] == "1"
    assert warm.executor_environment({"A": "b"})["A"] == "b"


@LINUX
def test_nothing_that_does_not_survive_a_fork_is_alive_after_the_imports() -> None:
    """A process of its own: neither a thread nor CUDA, whatever the tests have started."""
    program = (
        "from udjfl.deployment import warm, flwr_internals\n"
        "import ctypes, os, sys, torch\n"
        "flwr_internals.protect_memory()\n"
        "print(warm.unsupported_reason(), warm.import_all([]), torch.cuda.is_initialized())\n"
        "print(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))\n"  # PR_GET_DUMPABLE
        "pid = os.fork()\n"
        "if not pid: os._exit(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=warm.executor_environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["None", "None", "False", "0", "0"]


@LINUX
def test_a_preloaded_module_with_a_thread_is_noticed(tmp_path: Path) -> None:
    module = "import threading as t\nt.Thread(target=t.Event().wait, daemon=True).start()"
    (tmp_path / "starts_a_thread.py").write_text(module)
    program = "from udjfl.deployment import warm\nprint(warm.import_all(['starts_a_thread']))"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**warm.executor_environment(), "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "have started 1 threads" in done.stdout


def test_elsewhere_flowers_own_executor_runs_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    replaced: list[Any] = []

    def execute(file: str, command: list[str]) -> None:
        replaced.append(command)
        raise SystemExit

    for name, value in warm.executor_environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(os, "execvp", execute)
    monkeypatch.setattr(warm, "show_log", lambda: None)
    monkeypatch.setattr(sys, "platform", "darwin")
    secret = tmp_path / "secret"
    with pytest.raises(SystemExit):
        warm.main(warm.executor_command("127.0.0.1:9094", secret, supernode_pid=12)[3:])
    ((program, *arguments),) = replaced
    assert Path(program).name == "flower-superexec"
    assert arguments == [
        *("--runtime-api-address", "127.0.0.1:9094"),
        *("--superexec-auth-secret-file", str(secret)),
        *("--insecure", "--parent-pid", "12"),
    ]
    assert "only Linux is supported" in caplog.text
