"""The process that forks a process for every message, with Flower's parts replaced by scripts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from udjfl.deployment import flwr_internals, fork_server
from udjfl.deployment.fork_server import ExecutorOptions, ForkServer, explain
from udjfl.deployment.message_journal import Journal, Launch
from udjfl.deployment.warm import executor_environment

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs Linux")

# SuperExec sends a launch for every line of the file `tasks`; the token says what happens then.
PROGRAM = """
import json, os, signal, subprocess, sys, threading, time
from pathlib import Path
from udjfl.deployment import flwr_internals
from udjfl.deployment.fork_server import ExecutorOptions, ForkServer
from udjfl.deployment.message_journal import PULLED, REPLIED, Launch

folder = Path(sys.argv[1])

def write(name, **values):
    with (folder / name).open("a") as file:
        file.write(json.dumps(values) + "\\n")

def run_superexec(address, secret_file, root_certificates, install_dependencies, launches):
    write("superexec", pid=os.getpid())
    def read(name):
        path = folder / name
        return path.read_text().splitlines() if path.exists() else []
    while True:
        lines = read("tasks")
        for number in range(len(read("sent")), len(lines)):
            write("sent", number=number)
            launches.sendall(Launch(number + 1, address, lines[number], None, False).write())
        time.sleep(0.01)

def run_message(journal, limit):
    what = journal.launch.token
    write("messages", pid=os.getpid(), what=what, threads=threading.active_count(),
          group=os.getpgid(0), handler=signal.getsignal(signal.SIGTERM) == signal.SIG_DFL)
    journal.note(PULLED, message="the message")
    if what == "crash":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "raise":
        raise ValueError("no such thing")
    if what == "hang":
        flwr_internals.kill_after(0.2)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGINT])
        time.sleep(600)
    if what == "wait":
        time.sleep(600)
    if what == "spawn":
        child = subprocess.Popen(["sleep", "600"])
        write("spawned", pid=child.pid)
    journal.note(REPLIED)
    raise SystemExit(0)

def answer(launch, noted, reason):
    write("answers", task=launch.task, message=noted, reason=reason)

flwr_internals.run_superexec, flwr_internals.run_message = run_superexec, run_message
flwr_internals.answer = answer
parent = int(sys.argv[2]) if len(sys.argv) > 2 else None
ForkServer(ExecutorOptions("address", folder / "secret", folder / "journals",
                           parent_pid=parent)).run()
"""


class Server:
    """A fork server, and what it and its processes have written."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.folder, self._arguments = folder, arguments
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(self.folder), *self._arguments],
            env=executor_environment(),
        )

    def send(self, what: str) -> None:
        with (self.folder / "tasks").open("a", encoding="utf-8") as file:
            file.write(f"{what}\n")

    def read(self, name: str) -> list[dict[str, Any]]:
        path = self.folder / name
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        return [json.loads(line) for line in lines]

    def wait_for(self, name: str, count: int = 1) -> list[dict[str, Any]]:
        wait_until(lambda: len(self.read(name)) >= count)
        return self.read(name)

    def journals(self) -> list[Journal]:
        return Journal.find(self.folder / "journals")


def wait_until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def is_running(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except FileNotFoundError:
        return False
    return status[0] != "Z"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path)
    yield server
    server.process.kill()
    server.process.wait()


def test_each_message_has_a_process_of_its_own(server: Server) -> None:
    for _ in range(3):
        server.send("reply")
    messages = server.wait_for("messages", 3)
    assert len({message["pid"] for message in messages}) == 3
    for message in messages:
        assert message["threads"] == 1
        assert message["group"] == message["pid"]
        assert message["handler"]  # Flower's own handlers replace the default ones
    wait_until(lambda: server.journals() == [])
    assert server.read("answers") == []


@pytest.mark.parametrize(
    ("what", "reason"),
    [("crash", "killed by SIGKILL"), ("hang", "it took too long"), ("raise", "exit code 1")],
)
def test_a_lost_message_is_answered_and_the_next_one_is_handled(
    what: str, reason: str, server: Server
) -> None:
    server.send(what)
    (answer,) = server.wait_for("answers")
    assert (answer["task"], answer["message"]) == (1, "the message")
    assert reason in answer["reason"]
    server.send("reply")
    assert [message["what"] for message in server.wait_for("messages", 2)] == [what, "reply"]
    wait_until(lambda: server.journals() == [])
    assert len(server.read("answers")) == 1


def test_what_an_app_started_ends_with_its_message(server: Server) -> None:
    server.send("spawn")
    (spawned,) = server.wait_for("spawned")
    wait_until(lambda: not is_running(spawned["pid"]))


def test_a_killed_superexec_is_started_again_and_messages_go_on(server: Server) -> None:
    server.send("wait")
    (message,) = server.wait_for("messages")
    os.kill(server.read("superexec")[0]["pid"], signal.SIGKILL)
    server.wait_for("superexec", 2)
    server.send("reply")
    assert [each["what"] for each in server.wait_for("messages", 2)] == ["wait", "reply"]
    assert is_running(message["pid"])
    assert server.read("answers") == []


def test_a_killed_server_takes_all_with_it_and_answers_when_it_is_back(server: Server) -> None:
    server.send("wait")
    (message,) = server.wait_for("messages")
    wait_until(lambda: [journal.stage for journal in server.journals()] == ["pulled"])
    server.process.kill()
    server.process.wait()
    superexec = server.read("superexec")[0]["pid"]
    wait_until(lambda: not is_running(message["pid"]) and not is_running(superexec))
    server.start()
    (answer,) = server.wait_for("answers")
    assert answer["reason"] == "the executor was killed"
    wait_until(lambda: server.journals() == [])


def test_sigterm_ends_all_of_them(server: Server) -> None:
    server.send("wait")
    (message,) = server.wait_for("messages")
    server.process.terminate()
    assert server.process.wait(60) == 128 + signal.SIGTERM
    assert not is_running(message["pid"])
    assert not is_running(server.read("superexec")[0]["pid"])


def test_it_ends_with_the_process_it_serves(tmp_path: Path) -> None:
    supernode = subprocess.Popen(["sleep", "600"])
    server = Server(tmp_path, str(supernode.pid))
    (superexec,) = server.wait_for("superexec")
    supernode.kill()
    supernode.wait()
    assert server.process.wait(60) == 0
    assert not is_running(superexec["pid"])


def test_it_does_not_start_without_the_process_it_serves(tmp_path: Path) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    assert Server(tmp_path, str(gone.pid)).process.wait(60) == 0


@pytest.fixture
def forking(tmp_path: Path) -> Iterator[ForkServer]:
    server = ForkServer(ExecutorOptions("address", tmp_path / "secret", tmp_path / "journals"))
    yield server
    server._stop()
    server._selector.close()


def test_a_child_has_its_group_before_it_has_run(
    forking: ForkServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wait(self: ForkServer, run: object) -> None:
        time.sleep(5)  # long enough to look, and no longer if the test fails
        os._exit(0)

    monkeypatch.setattr(ForkServer, "_become_child", wait)
    pid = forking._fork(lambda: None, lambda status: None)
    assert os.getpgid(pid) == pid


def test_a_group_is_killed_while_its_number_is_still_taken(
    forking: ForkServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    def look(pid: int) -> None:
        found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # fails if it is gone
        seen.append(0 if found is None else found.si_pid)

    statuses: list[int] = []
    monkeypatch.setattr(fork_server, "_kill_group", look)
    pid = forking._fork(lambda: None, statuses.append)
    for key, _ in forking._selector.select(60):
        key.data()
    assert (seen, statuses) == ([pid], [0])


def test_an_answer_that_fails_is_logged(
    forking: ForkServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(launch: Launch, noted: str | None, reason: str) -> None:
        raise SystemExit(3)

    monkeypatch.setattr(flwr_internals, "answer", fail)
    forking.options.messages.mkdir()
    journal = Journal.create(
        forking.options.messages, Launch(7, "address", "token", None, install_dependencies=False)
    )
    forking._finish(journal, "it was killed")
    for key, _ in forking._selector.select(60):
        key.data()
    assert "could not be told that message 7 was lost (exit code 3)" in caplog.text
    assert not journal.path.exists()


def test_a_message_without_a_journal_is_answered_at_once(
    forking: ForkServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder of journals is missing, as on a disk that is full."""
    answers = forking.options.secret_file.with_name("answers")

    def answer(launch: Launch, noted: str | None, reason: str) -> None:
        answers.write_text(f"{launch.task} {noted} {reason}", encoding="utf-8")

    monkeypatch.setattr(flwr_internals, "answer", answer)
    forking._launch(Launch(7, "address", "token", None, install_dependencies=False))
    for key, _ in forking._selector.select(60):
        key.data()
    text = answers.read_text(encoding="utf-8")
    assert text == "7 None the executor cannot write its notes: No such file or directory"


def test_endings_are_explained_in_words() -> None:
    assert explain(0) == "exit code 0"
    assert explain(3 << 8) == "exit code 3"
    assert explain(signal.SIGKILL) == "killed by SIGKILL"
    assert explain(signal.SIGALRM) == "it took too long"


def test_a_launch_is_read_as_it_was_written() -> None:
    launch = Launch(7, "127.0.0.1:9094", "token", "ca.crt", True)
    assert Launch.read(launch.write()) == launch
