"""A SuperNode's pauses, and what runs where they cannot be replaced."""

from __future__ import annotations

import ast
import importlib
import inspect
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr")

from udjfl.deployment import flwr_internals, supernode
from udjfl.deployment.pauses import GrowingPause
from udjfl.deployment.supernode import WAITS


def test_flower_asks_for_the_waits_that_are_shortened() -> None:
    tree = ast.parse(inspect.getsource(importlib.import_module(flwr_internals.SUPERNODE)))
    asked = [
        ast.literal_eval(node.args[0])
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "time.sleep"
    ]
    assert set(asked) == WAITS.keys()


def test_flowers_supernode_runs_with_these_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = importlib.import_module(flwr_internals.SUPERNODE)
    clocks = []
    for name in ("time", "_pull_and_store_message", "_push_messages"):
        monkeypatch.setattr(module, name, getattr(module, name))  # restored at the end
    monkeypatch.setattr(
        "flwr.supernode.cli.flower_supernode", lambda: clocks.append(vars(module)["time"])
    )
    supernode.choose_program()()
    assert [type(clock) for clock in clocks] == [GrowingPause]


def test_elsewhere_flowers_own_program_runs_with_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from flwr.supernode.cli import flower_supernode

    monkeypatch.setattr(supernode, "show_log", lambda: None)
    monkeypatch.setattr(sys, "argv", ["supernode", supernode.STOCK, "--superlink", "here:1"])
    assert supernode.choose_program() is flower_supernode
    assert sys.argv[1:] == ["--superlink", "here:1"]
    assert caplog.text == ""
    monkeypatch.setattr("flwr.__version__", "1.99.0")
    assert supernode.choose_program() is flower_supernode
    assert "flwr is 1.99.0" in caplog.text


@pytest.mark.parametrize(
    ("ends_by", "code"),
    [
        ("pass", 1),
        ("raise OSError('cut off')", 1),
        ("raise SystemExit(7)", 7),
        ("raise SystemExit('cut off')", 1),
        ("raise SystemExit", 0),
    ],
)
def test_the_process_ends_with_the_supernode(ends_by: str, code: int) -> None:
    """Though a thread goes on, as the one does that serves an executor."""
    program = f"""
import threading
from udjfl.deployment.supernode import end_with

def run():
    threading.Thread(target=threading.Event().wait).start()
    {ends_by}

end_with(run)
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == code
    assert ("cut off" in done.stderr) == ("cut off" in ends_by)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("ends_by", ["raise OSError", "raise SystemExit('why')", "print('x')"])
def test_the_process_ends_though_its_log_cannot_be_written(ends_by: str) -> None:
    program = f"""
import threading
from udjfl.deployment.supernode import end_with

def run():
    threading.Thread(target=threading.Event().wait).start()
    {ends_by}

end_with(run)
"""
    command = [sys.executable, "-c", program]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=full, timeout=300, check=False)
    assert done.returncode == 1


def test_a_late_reply_is_not_taken_for_that_to_the_next_message() -> None:
    """A reply to an earlier message comes first; that to the last message must be sent as well."""
    replies = [["to the one before"], ["to this one"], ["to the next"]]
    sent: list[str] = []

    def make(message_id: str = "", reply_to: str = "") -> Any:
        return SimpleNamespace(
            metadata=SimpleNamespace(message_id=message_id, reply_to_message_id=reply_to)
        )

    def pull(*, receive: Any, state: object) -> int | None:
        return None if receive() is None else 1

    def push(*, send: Any, state: object) -> None:
        for reply in replies.pop(0):
            send(make(reply_to=reply), "its tree", 1.0)

    def send(message: Any, *_: object) -> None:
        sent.append(message.metadata.reply_to_message_id)

    pull_message, push_messages = supernode.wait_for_own_reply(pull, push)
    assert pull_message(receive=lambda: None, state=None) is None
    for own, expected in (("to this one", 2), ("to the next", 3)):
        assert pull_message(receive=lambda own=own: (make(own), "its tree"), state=None) == 1
        push_messages(send=send, state=None)
        assert len(sent) == expected
        assert sent[-1] == own
