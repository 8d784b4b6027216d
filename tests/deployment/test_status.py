"""The state of a deployment while its processes do not answer."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("flwr")

from udjfl.deployment import keys
from udjfl.deployment.coordinator import Coordinator
from udjfl.deployment.node import Node
from udjfl.deployment.status import UNKNOWN, read_own_status, read_status
from udjfl.errors import DeploymentError


def test_nodes_are_unknown_while_the_superlink_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinator = Coordinator(tmp_path / "study")
    keys.make_node_key(tmp_path, "north")
    coordinator.admit([tmp_path / "north.pub"])
    coordinator.state.mkdir()
    (coordinator.state / "submitted.jsonl").write_text('{"name": "a", "ou')

    def control(self: Coordinator) -> None:
        raise DeploymentError("the SuperLink does not answer")

    monkeypatch.setattr(Coordinator, "running", lambda self: {"listen": "0.0.0.0:8443"})
    monkeypatch.setattr(Coordinator, "control", control)
    status = read_status(coordinator)
    assert (status.running, status.run) == (True, None)
    assert [(node.name, node.state) for node in status.nodes] == [("north", UNKNOWN)]


START, REFUSED = "Starting Flower SuperNode", "SuperNode terminated gracefully."
LOST = "Connection attempt failed, retrying in 0.39 seconds"
FOUND = "Connection successful after 1.84 seconds and 3 tries."


@pytest.mark.parametrize(
    ("log", "connected", "problem"),
    [
        (f"{START}\nCERTIFICATE_VERIFY_FAILED\n", False, "not signed by"),
        (f"{START}\nSuperNode ID: 1\n", True, ""),
        # It is being started again: why it could not connect before still holds.
        (f"{START}\n{REFUSED}\n{START}\n", False, "the clock of this machine"),
        # It was connected, and is being started again: nothing is known yet.
        (f"{START}\nSuperNode ID: 1\n{REFUSED}\n{START}\n", False, "no connection yet"),
        (f"{START}\n{REFUSED}\n{START}\nSuperNode ID: 1\n", True, ""),
        ("", False, "no connection yet"),
        # It was connected, and requests get no answer since.
        (f"{START}\nSuperNode ID: 1\n{LOST}\n", False, "does not answer"),
        (f"{START}\n{LOST}\n{FOUND}\nSuperNode ID: 1\n{LOST}\n{FOUND}\n", True, ""),
        # The request that is tried again is refused; the next ones have answers at once.
        (f"{START}\nSuperNode ID: 1\n{LOST}\nReceiving: train message (ID: 1)\n", True, ""),
        (f"{START}\nSuperNode ID: 1\nSent successfully\n{LOST}\n", False, "does not answer"),
        (f"{START}\n{LOST}\n", False, "does not answer: is the coordinator up"),
        (f"{START}\n{LOST}\n{FOUND}\n", False, "no connection yet"),
        (f"{START}\n{REFUSED}\n{START}\n{LOST}\n", False, "the clock of this machine"),
    ],
)
def test_the_last_start_of_a_node_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log: str, connected: bool, problem: str
) -> None:
    node = Node(tmp_path / "hospital")
    node.make_key("north")
    (node.state / "logs").mkdir(parents=True)
    (node.state / "logs" / "supernode.log").write_text(log)
    monkeypatch.setattr(Node, "running", lambda self: {"pid": 1})
    status = read_own_status(node)
    assert status.connected == connected
    assert problem in (status.problem or "")
