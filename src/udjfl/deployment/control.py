"""The control side of a SuperLink: who is admitted and online, and how a run goes.

Flower's own client is used, which is quicker than starting `flwr` for each question and, unlike
it, knows the names of nodes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from udjfl.deployment import keys
from udjfl.deployment.flwr_internals import describe_tested
from udjfl.deployment.supervisor import COLOUR
from udjfl.errors import DeploymentError

OTHER_FLOWER = f"this version of Flower is not known; install one {describe_tested()}"
ONLINE, UNREGISTERED = "online", "unregistered"
FINISHED, FAILED = "finished", "failed"
# Flower lists the newest runs first; one older than so many others is taken to be finished.
MOST_RUNS = 1000
# How a server app logs the error that ended it: the last line of a traceback.
RAISED = re.compile(r"^(?:\w+\.)*(\w*(?:Error|Exception|Interrupt)): (.*)$")


@dataclass(frozen=True)
class NodeInfo:
    """A node that the SuperLink knows: `status` is registered, online, offline or unregistered.

    `since` is when it went online or offline, in ISO 8601; empty if it never was.
    """

    id: int
    name: str
    key: bytes
    status: str
    since: str


@dataclass(frozen=True)
class RunInfo:
    """A run: `status` is pending, starting, running or finished, `outcome` how it finished."""

    id: int
    status: str
    outcome: str
    details: str

    @property
    def is_finished(self) -> bool:
        return self.status == FINISHED

    @property
    def state(self) -> str:
        """Its status and, once it is finished, its outcome instead."""
        return self.outcome if self.is_finished else self.status

    @property
    def is_completed(self) -> bool:
        return self.is_finished and self.outcome == "completed"


class Control:
    """A connection to the control side of a SuperLink."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def nodes(self) -> list[NodeInfo]:
        """Return the registered nodes."""
        return [node for node in self.all_nodes() if node.status != UNREGISTERED]

    def all_nodes(self) -> list[NodeInfo]:
        """Return the registered nodes and those that are registered no longer.

        The SuperLink never registers a key of the latter again.
        """
        from flwr.proto.control_pb2 import ListNodesRequest

        with _explain_failures():
            reply = self._client.ListNodes(ListNodesRequest())
        return [
            NodeInfo(
                info.node_id,
                info.name,
                info.public_key,
                info.status,
                info.last_activated_at if info.status == ONLINE else info.last_deactivated_at,
            )
            for info in reply.nodes_info
        ]

    def register(self, name: str, key: bytes) -> None:
        """Admit the node that has this key, under this name."""
        from flwr.proto.control_pb2 import RegisterNodeRequest

        with _explain_failures():
            self._client.RegisterNode(RegisterNodeRequest(public_key=key, name=name))

    def unregister(self, node: NodeInfo) -> None:
        """Admit a node no longer."""
        from flwr.proto.control_pb2 import UnregisterNodeRequest

        with _explain_failures():
            self._client.UnregisterNode(UnregisterNodeRequest(node_id=node.id))

    def run(self, run_id: int) -> RunInfo:
        """Return the state of a run."""
        from flwr.proto.control_pb2 import ListRunsRequest

        with _explain_failures():
            reply = self._client.ListRuns(ListRunsRequest(run_id=run_id))
        return _read_run(run_id, reply.run_dict[run_id])

    def unfinished(self) -> dict[int, RunInfo]:
        """Return the runs that wait or go on, by id."""
        from flwr.proto.control_pb2 import ListRunsRequest

        with _explain_failures():
            reply = self._client.ListRuns(ListRunsRequest(limit=MOST_RUNS))
        runs = {run_id: _read_run(run_id, run) for run_id, run in reply.run_dict.items()}
        return {run_id: run for run_id, run in runs.items() if not run.is_finished}

    def stop(self, run_id: int) -> None:
        """Stop a run."""
        from flwr.proto.control_pb2 import StopRunRequest

        with _explain_failures():
            self._client.StopRun(StopRunRequest(run_id=run_id))

    def log(self, run_id: int) -> str:
        """Return what the server app of a finished run has logged."""
        from flwr.proto.control_pb2 import StreamLogsRequest

        with _explain_failures():
            replies = self._client.StreamLogs(StreamLogsRequest(run_id=run_id, after_timestamp=0.0))
            return "".join(reply.log_output for reply in replies)

    def describe_failure(self, run: RunInfo) -> str:
        """Return why a run failed, in the words of the error that ended it."""
        reason = find_reason(self.log(run.id)) or run.details or run.outcome
        for node in self.nodes():  # before a node has introduced itself, Flower's id is used
            reason = reason.replace(f"node {node.id}", f"node {node.name}")
        return reason


def _read_run(run_id: int, run: Any) -> RunInfo:
    return RunInfo(run_id, run.status.status, run.status.sub_status, run.status.details)


def find_reason(log: str) -> str | None:
    """Return the error that ended a server app, in its own words, from its log."""
    lines = COLOUR.sub("", log).splitlines()
    raised = [index for index, line in enumerate(lines) if RAISED.match(line.strip())]
    if not raised:
        return None
    first = RAISED.match(lines[raised[-1]].strip())
    assert first is not None
    rest = []
    for line in lines[raised[-1] + 1 :]:  # errors of several lines
        if not line.strip() or re.match(r"\s*(INFO|ERROR|WARNING|DEBUG|WARN)\b", line):
            break
        rest.append(line.strip())
    return "\n".join([first[2], *rest])


@contextmanager
def connect(address: str, ca: Path) -> Iterator[Control]:
    """Connect to the control side of a SuperLink over TLS, trusting the authority `ca` only."""
    try:
        from flwr.supercore.control import ControlHttpClient
        from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
    except ImportError as error:
        raise DeploymentError(f"{OTHER_FLOWER} ({error})") from None
    keys.load_certificate(ca)  # an error that names the file
    client = ControlHttpClient.from_server_address(
        server_address=address,
        insecure=False,
        root_certificates=ca.read_bytes(),
        interceptors=[RuntimeVersionHttpInterceptor(component_name="flwr CLI")],
    )
    try:
        yield Control(client)
    finally:
        client.close()


@contextmanager
def _explain_failures() -> Iterator[None]:
    import httpx

    try:
        yield
    except httpx.HTTPStatusError as error:
        reason = error.response.text.strip()[:300]
        raise DeploymentError(f"the SuperLink refuses: {reason}") from None
    except httpx.HTTPError as error:
        raise DeploymentError(
            f"the SuperLink does not answer ({type(error).__name__}); look at its log, or start it "
            "again with `udjfl flower up`"
        ) from None


def read_public_key(path: Path) -> bytes:
    """Return the public key in a file (OpenSSH format), as the SuperLink knows it."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_ssh_public_key
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes, uses_nist_ec_curve

    content = path.read_bytes()
    if b"PRIVATE KEY" in content:
        raise DeploymentError(
            f"{path} is a private key: it stays with its node. Ask for the file {path.name}.pub, "
            "and for a new key, as this one was given away"
        )
    try:
        key = load_ssh_public_key(content)
    except (ValueError, NotImplementedError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, ec.EllipticCurvePublicKey) or not uses_nist_ec_curve(key):
        raise DeploymentError(
            f"{path} is not the public key of a node; `udjfl flower keys FOLDER --node NAME` "
            "makes one, NAME.pub"
        )
    return bytes(public_key_to_bytes(key))
