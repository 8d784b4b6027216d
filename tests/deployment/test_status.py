"""The state of a deployment while its processes do not answer."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from unittest.mock import Mock

import pytest

pytest.importorskip("flwr")

from flwr.proto.control_pb2 import ListNodesResponse, ListRunsResponse

from udjfl.deployment import keys
from udjfl.deployment.control import Control
from udjfl.deployment.coordinator import Coordinator
from udjfl.deployment.node import Node
from udjfl.deployment.status import UNKNOWN, read_own_status, read_status
from udjfl.deployment.submissions import Submitted, append_submitted
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


def reply_with(runs: dict[int, tuple[str, str]]) -> ListRunsResponse:
    reply = ListRunsResponse()
    for run_id, (status, outcome) in runs.items():
        reply.run_dict[run_id].status.status = status
        reply.run_dict[run_id].status.sub_status = outcome
    return reply


def test_what_goes_on_is_asked_for_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many runs go on; the latest is asked for by itself once it has ended."""
    coordinator = Coordinator(tmp_path / "study")
    coordinator.state.mkdir(parents=True)
    for number, name in enumerate(("first", "second", "third")):
        run = Submitted(name, coordinator.runs / name, number, 0.0)
        append_submitted(coordinator.state / "submitted.jsonl", run)
    runs = {0: ("running", ""), 1: ("pending", ""), 2: ("running", "")}
    client = Mock()
    client.ListNodes.return_value = ListNodesResponse()
    client.ListRuns.side_effect = lambda request: reply_with(
        {
            id: run
            for id, run in runs.items()
            if not request.HasField("run_id") or request.run_id == id
        }
    )
    monkeypatch.setattr(coordinator, "running", lambda: {"listen": "0.0.0.0:8443"})
    monkeypatch.setattr(coordinator, "control", lambda: nullcontext(Control(client)))
    for last, requests in ((("running", ""), 1), (("finished", "completed"), 2)):
        runs[2] = last
        client.ListRuns.reset_mock()
        status = read_status(coordinator)
        assert [(run.name, run.state) for run in status.others] == [
            ("first", "running"),
            ("second", "pending"),
        ]
        assert status.run is not None
        assert (status.run.name, status.run.state) == ("third", last[1] or last[0])
        assert client.ListRuns.call_count == requests


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
