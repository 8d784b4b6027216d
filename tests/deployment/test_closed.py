"""Attempts to use a federation from outside, with real processes: all of them are refused."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")
pytest.importorskip("pandas")

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from deployed_study import NAMES, Study
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    PullMessagesRequest,
    RegisterNodeFleetRequest,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.node_pb2 import Node as NodeProto
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from udjfl.deployment import keys
from udjfl.deployment.control import connect
from udjfl.deployment.flwr_command import FlwrCommand
from udjfl.errors import DeploymentError

pytestmark = pytest.mark.processes

PAGES = ("/", "/docs", "/redoc", "/openapi.json", "/health", "/v1/runtime/acquire-task")
LOOPBACK = "0100007F"  # 127.0.0.1, as the kernel prints it
REFUSED = (DeploymentError, httpx.HTTPStatusError)


@pytest.fixture(scope="module")
def stranger() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP384R1())


def own_key(study: Study, name: str) -> ec.EllipticCurvePrivateKey:
    key = load_ssh_private_key((study.nodes[name].keys / name).read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return key


def node_id(study: Study, name: str) -> int:
    with study.coordinator.control() as control:
        return next(node.id for node in control.nodes() if node.name == name)


@contextmanager
def fleet(study: Study, key: ec.EllipticCurvePrivateKey | None) -> Iterator[FleetHttpClient]:
    """A SuperNode's client, through the proxy; None: without a signature."""
    signed = [] if key is None else [NodeAuthHttpInterceptor(key, key.public_key())]
    ca = study.coordinator.ca.read_bytes()
    with FleetHttpClient.from_server_address(study.address, False, ca, signed) as client:
        yield client


def try_each(attempts: dict[str, Callable[[], Any]], *refusals: type[Exception]) -> None:
    """Count the attempts that are refused; all of them have to be."""
    refused = []
    for name, attempt in attempts.items():
        try:
            attempt()
        except refusals:
            refused.append(name)
    print(f"refused {len(refused)} of {len(attempts)}: {', '.join(refused)}")
    assert refused == list(attempts)


def test_the_control_side_cannot_be_reached(study: Study, stranger: Any, tmp_path: Path) -> None:
    """Everybody has the authority's certificate. On the machine itself the same calls answer."""
    ca, north = study.coordinator.ca, node_id(study, "north")
    with study.coordinator.control() as inside:
        node = next(node for node in inside.nodes() if node.id == north)
    with connect(study.address, ca) as control:
        attempts = {
            "list nodes": control.nodes,
            "list runs": lambda: control.run(1),
            "read a log": lambda: control.log(1),
            "stop a run": lambda: control.stop(1),
            "register a key": lambda: control.register(
                "stranger", public_key_to_bytes(stranger.public_key())
            ),
            "unregister a node": lambda: control.unregister(node),
        }
        try_each(attempts, DeploymentError)
    command = FlwrCommand(tmp_path / "operator", {})
    command.write_connection(study.address, ca)
    done = command.try_run("run", str(study.folder / "study"), "here")
    assert done.returncode != 0, done.stdout
    print("refused 1 of 1: start a run with `flwr run`")
    with study.coordinator.control() as inside:
        assert {node.name for node in inside.nodes()} == set(NAMES)


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_no_page_is_open(study: Study, method: str) -> None:
    context = ssl.create_default_context(cafile=study.coordinator.ca)
    inside = study.coordinator.running()
    assert inside is not None
    with httpx.Client(verify=context, trust_env=False) as client:
        replies = {path: client.request(method, f"https://{study.address}{path}") for path in PAGES}
        closed = [path for path, reply in replies.items() if reply.status_code == 404]
        print(f"refused {len(closed)} of {len(PAGES)} ({method}): {', '.join(closed)}")
        assert closed == list(PAGES)
        assert {reply.content for reply in replies.values()} == {b""}
        # The SuperLink itself has these pages: they are behind the proxy.
        assert client.get(f"https://{inside['superlink']}/openapi.json").status_code == 200


def test_only_an_admitted_key_counts_and_only_for_its_own_node(study: Study, stranger: Any) -> None:
    north, south = own_key(study, "north"), node_id(study, "south")
    other = NodeProto(node_id=south)

    def call(key: Any, method: str, request: Any) -> Callable[[], Any]:
        def attempt() -> Any:
            with fleet(study, key) as client:
                return getattr(client, method)(request)

        return attempt

    unknown = public_key_to_bytes(stranger.public_key())
    activate = ActivateNodeRequest(public_key=unknown, heartbeat_interval=30.0)
    heartbeat = SendNodeHeartbeatRequest(node=other, heartbeat_interval=30.0)
    attempts = {
        "unknown key": call(stranger, "ActivateNode", activate),
        "register with an unknown key": call(
            stranger, "RegisterNode", RegisterNodeFleetRequest(public_key=unknown)
        ),
        "unknown key for a node": call(stranger, "PullMessages", PullMessagesRequest(node=other)),
        "another node's key": call(north, "PullMessages", PullMessagesRequest(node=other)),
        "another node's key, heartbeat": call(north, "SendNodeHeartbeat", heartbeat),
        "no signature": call(None, "PullMessages", PullMessagesRequest(node=other)),
    }
    try_each(attempts, httpx.HTTPStatusError)
    own = SendNodeHeartbeatRequest(node=other, heartbeat_interval=30.0)
    assert call(own_key(study, "south"), "SendNodeHeartbeat", own)().success  # its own passes


def test_plain_text_and_other_authorities_get_no_answer(study: Study, tmp_path: Path) -> None:
    with socket.create_connection(("localhost", study.port), timeout=60) as plain:
        plain.sendall(b"GET /health HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n")
        try:
            answer = plain.recv(1000)
        except ConnectionResetError:
            answer = b""
    assert b"HTTP/" not in answer
    another = keys.make_ca(tmp_path / "another")
    address = f"https://{study.address}/"
    by_another_name = f"https://127.1:{study.port}/"  # the same machine, not by a certified name

    def get(ca: Path | None, address: str) -> Callable[[], Any]:
        context = ssl.create_default_context(cafile=ca)
        return lambda: httpx.get(address, verify=context, trust_env=False)

    attempts = {
        "another authority": get(another, address),
        "the system's authorities": get(None, address),
        "another name": get(study.coordinator.ca, by_another_name),
    }
    try_each(attempts, httpx.ConnectError)
    print("refused 1 of 1: plain text")


def test_one_port_is_open_and_tasks_need_a_secret(study: Study) -> None:
    """All sockets on which the processes of the study listen; each but one is on loopback."""
    listening = find_listening(set(study.processes()))
    ports = {port for _, port in listening}
    open_ports = {port for host, port in listening if host != LOOPBACK}
    print(f"{len(ports)} ports, open to other machines: {sorted(open_ports)}")
    assert open_ports == {study.port}
    superlink = study.coordinator.running()
    assert superlink is not None
    inner = int(superlink["superlink"].rpartition(":")[2])
    assert {inner, study.port} < ports
    assert len(ports) == 2 + len(NAMES)
    context = ssl.create_default_context(cafile=study.coordinator.ca)
    addresses = [f"https://127.0.0.1:{inner}"]
    addresses += [f"http://127.0.0.1:{port}" for port in sorted(ports - {inner, study.port})]
    headers = {"content-type": PROTOBUF_MEDIA_TYPE}
    statuses = [
        httpx.post(
            f"{address}/v1/runtime/acquire-task", verify=context, headers=headers, trust_env=False
        ).status_code
        for address in addresses
    ]
    print(f"acquire-task without the secret on this machine: {statuses}")
    assert statuses == [401] * len(addresses)


def find_listening(pids: set[int]) -> set[tuple[str, int]]:
    """Return the addresses, in hexadecimal, and ports on which these processes listen."""
    inodes = set()
    for pid in pids:
        for path in Path(f"/proc/{pid}/fd").glob("*"):
            try:
                link = str(path.readlink())
            except OSError:
                continue
            if link.startswith("socket:["):
                inodes.add(link[8:-1])
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *rest = line.split()
            if state == "0A" and rest[5] in inodes:
                host, _, port = local.partition(":")
                found.add((host, int(port, 16)))
    return found
