"""The installed Flower looks as warm clients expect, and another one is noticed."""

from __future__ import annotations

import base64
import importlib
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr")

import flwr

from udjfl.deployment import flwr_internals
from udjfl.deployment.message_journal import PULLED, Journal, Launch


def test_the_installed_flower_is_as_expected() -> None:
    assert flwr_internals.find_mismatch() is None
    assert flwr_internals.find_supernode_mismatch() is None


@pytest.mark.parametrize("version", ["1.39.9", "1.43.0", "2.0.0", "unknown"])
def test_another_version_is_noticed(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flwr, "__version__", version)
    assert f"flwr is {version}" in str(flwr_internals.find_mismatch())
    assert f"flwr is {version}" in str(flwr_internals.find_supernode_mismatch())


@pytest.mark.parametrize("name", sorted(flwr_internals.PARAMETERS))
def test_other_parameters_are_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, _, function = name.rpartition(".")
    monkeypatch.setattr(_find_owner(owner), function, lambda: None)
    assert name in str(flwr_internals.find_mismatch())


@pytest.mark.parametrize("name", sorted(flwr_internals.PARAMETERS))
def test_a_missing_function_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, _, function = name.rpartition(".")
    monkeypatch.delattr(_find_owner(owner), function)
    assert function in str(flwr_internals.find_mismatch())


def test_a_function_that_is_no_longer_called_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"{flwr_internals.CLIENTAPP}.run_clientapp"
    monkeypatch.setitem(flwr_internals.CALLS, name, {"pull_task_input", "pull_it_another_way"})
    assert f"{name} does not call pull_it_another_way" in str(flwr_internals.find_mismatch())


@pytest.mark.parametrize(
    "source",
    [
        "import time\ntime.sleep(3)\ntime.monotonic()",
        "import time\ntime.sleep(3)\nwait = time",
        "import time\nfrom time import sleep\ntime.sleep(3)\nsleep(3)",
        "import asyncio",
    ],
)
def test_other_uses_of_time_are_noticed(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inspect.getsource", lambda _: source)
    both = flwr_internals.find_supernode_mismatch(), flwr_internals.find_mismatch()
    names = flwr_internals.SUPERNODE, flwr_internals.SUPEREXEC
    assert both == tuple(f"{name} {flwr_internals.OTHER_USE}" for name in names)


@pytest.mark.parametrize("name", sorted(flwr_internals.SUPERNODE_PARAMETERS))
def test_other_steps_of_a_supernode_are_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, _, function = name.rpartition(".")
    monkeypatch.setattr(_find_owner(owner), function, lambda: None)
    assert name in str(flwr_internals.find_supernode_mismatch())
    monkeypatch.delattr(_find_owner(owner), function)
    assert function in str(flwr_internals.find_supernode_mismatch())


@pytest.fixture
def alarm() -> Iterator[None]:
    """Ends the time limit of a message, and with it what would kill this process."""
    handler = signal.getsignal(signal.SIGALRM)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, handler)


@pytest.mark.usefixtures("alarm")
@pytest.mark.parametrize(("limit", "expected"), [(None, 60), (1000.0, 60), (40.0, 40)])
def test_fetching_a_message_ends_when_the_server_no_longer_waits(
    limit: float | None, expected: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is still missing of it; and it can be replied to from then on."""
    from flwr.app import ConfigRecord, Message, RecordDict
    from flwr.common.serde import message_from_proto, message_to_proto
    from flwr.proto.message_pb2 import Message as ProtoMessage
    from flwr.supercore.task_identity import TaskIdentity

    monkeypatch.setattr(TaskIdentity, "_run_id", 7)
    monkeypatch.setattr(TaskIdentity, "_task_id", 5)
    monkeypatch.setattr(TaskIdentity, "_node_id", 1)
    content = RecordDict({"config": ConfigRecord({"secret": "of the hospital"})})
    message = Message(content, dst_node_id=3, message_type="train", ttl=60.0)
    message.metadata.__dict__.update(_message_id="abc")
    announced = SimpleNamespace(messages_list=[message_to_proto(message)])
    module: Any = importlib.import_module(flwr_internals.CLIENTAPP)
    journal = Journal.create(tmp_path, Launch(1, "address", "token", None, False))
    left = []

    def pull_task_input(client: Any) -> None:
        left.append(signal.getitimer(signal.ITIMER_REAL)[0])
        assert client.PullMessages("request") is announced
        left.append(signal.getitimer(signal.ITIMER_REAL)[0])

    def run_clientapp(**_: object) -> None:
        module.pull_task_input(SimpleNamespace(PullMessages=lambda _: announced))

    for function in (pull_task_input, run_clientapp):
        monkeypatch.setattr(module, function.__name__, function)
    for name in ("push_message", "push_task_output"):  # `run_message` replaces them
        monkeypatch.setattr(module, name, getattr(module, name))
    flwr_internals.run_message(journal, limit)
    before, after = left
    allowed = limit or flwr_internals.START_LIMIT
    assert allowed - 15 < before <= allowed
    assert expected - 15 < after <= expected
    assert journal.stage == PULLED
    assert journal.message is not None
    noted = message_from_proto(ProtoMessage.FromString(base64.b64decode(journal.message)))
    assert (noted.metadata.message_id, noted.metadata.run_id) == ("abc", 7)
    assert noted.metadata.dst_node_id == 3
    assert b"of the hospital" not in base64.b64decode(journal.message)


def _find_owner(name: str) -> object:
    """Return a module, or a class in one."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        module, _, cls = name.rpartition(".")
        return getattr(importlib.import_module(module), cls)
