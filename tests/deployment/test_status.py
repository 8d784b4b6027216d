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


@pytest.mark.parametrize(
    ("log", "connected", "problem"),
    [
        ("CERTIFICATE_VERIFY_FAILED\nStarting Flower SuperNode\n", False, "no connection yet"),
        ("SuperNode ID: 1\nStarting Flower SuperNode\nInvalid SuperNode auth", False, "no conn"),
        ("Starting Flower SuperNode\nCERTIFICATE_VERIFY_FAILED\n", False, "not signed by"),
        ("Starting Flower SuperNode\nSuperNode ID: 1\n", True, ""),
        ("SuperNode ID: 1\n", True, ""),
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
