"""Who is admitted to a SuperLink and who is refused, with real processes."""

from __future__ import annotations

import shutil
import socket
import stat
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from deploy import APP
from deploy.local import Deployment
from shared_deployment import DeployedFederation, files_with_secrets

from udjfl.deployment import keys
from udjfl.deployment.network import HOST, is_healthy
from udjfl.deployment.processes import ProcessTree, stop

pytestmark = pytest.mark.processes

TIMEOUT = 300.0  # seconds; a refused SuperNode ends by itself
NODE = {"client-id": "north", "data": "/nowhere"}  # nothing is trained here
REGISTERED = {"key": "north"}
# 127.1 is another spelling of 127.0.0.1: the server is reached, but not by its certified name.
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "unregistered key": ({"key": "stranger"}, "Failed to activate SuperNode"),
    "no key": ({"key": None}, "Failed to initialize the connection"),
    "no authority": ({**REGISTERED, "root_certificates": None}, "CERTIFICATE_VERIFY_FAILED"),
    "another authority": (
        {**REGISTERED, "root_certificates": "another"},
        "CERTIFICATE_VERIFY_FAILED",
    ),
    "another host name": ({**REGISTERED, "address": "127.1"}, "CERTIFICATE_VERIFY_FAILED"),
    "no TLS": ({**REGISTERED, "insecure": True}, ""),
    "no TLS and no key": ({"key": None, "insecure": True}, ""),
}


@pytest.fixture(scope="module")
def deployment(deployed: DeployedFederation) -> Deployment:
    """The shared deployment with a registered key `north`, and a key `stranger` that is not."""
    for name in ("north", "stranger"):
        keys.make_node_key(deployed.deployment.keys, name)
    deployed.deployment.register("north")
    return deployed.deployment


@pytest.fixture(scope="module")
def refused(
    deployment: Deployment, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, ProcessTree]]:
    """Every SuperNode that must be refused, all started at the same time and ended."""
    another = keys.make_ca(tmp_path_factory.mktemp("another-authority"))
    nodes = {}
    for case, (options, _) in REFUSED.items():
        changes = dict(options)
        if changes.get("root_certificates") == "another":
            changes["root_certificates"] = another
        if "address" in changes:
            changes["address"] = f"{changes['address']}:{deployment.port}"
        name = f"refused: {case}".replace(" ", "-")
        nodes[case] = deployment.start_node(name, NODE, **changes, options=["--max-retries", "1"])
    for node in nodes.values():
        node.wait(TIMEOUT)
    yield nodes
    stop(nodes.values())


@pytest.mark.parametrize("case", REFUSED)
def test_a_node_is_refused(case: str, refused: dict[str, ProcessTree]) -> None:
    assert not refused[case].running
    assert refused[case].process.returncode != 0
    assert REFUSED[case][1] in refused[case].output


@pytest.mark.usefixtures("refused")
def test_only_nodes_with_registered_keys_over_tls_are_online(
    deployment: Deployment, deployed: DeployedFederation
) -> None:
    """The clients are admitted, so the refusals are not due to something else."""
    assert deployment.online() == set(deployed.files)


def test_plain_text_gets_no_answer(deployment: Deployment) -> None:
    with socket.create_connection((HOST, deployment.port), timeout=60) as plain:
        plain.sendall(b"GET /health HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n")
        try:
            answer = plain.recv(1000)
        except ConnectionResetError:
            answer = b""
    assert b"HTTP/" not in answer
    assert is_healthy(deployment.address, deployment.ca)  # over TLS it answers


@pytest.mark.parametrize("connection", ["", "insecure = true\n"])
def test_an_operator_without_the_authority_gets_no_connection(
    deployment: Deployment, connection: str, tmp_path: Path
) -> None:
    """With it, the operator of the other tests does."""
    (tmp_path / "config.toml").write_text(
        f'[superlink.here]\naddress = "{deployment.address}"\n{connection}'
    )
    assert deployment.flwr("supernode", "list", "here", home=tmp_path).returncode != 0


def test_the_deployments_private_keys_are_readable_by_their_owner_only(
    deployment: Deployment, deployed: DeployedFederation
) -> None:
    private = [path for path in deployment.keys.iterdir() if b"PRIVATE KEY" in path.read_bytes()]
    names = {"ca.key", "server.key", "north", "stranger", *deployed.files}
    assert {path.name for path in private} == names
    assert {stat.S_IMODE(path.stat().st_mode) for path in private} == {0o600}
    assert stat.S_IMODE(deployment.folder.stat().st_mode) == 0o700


def test_the_app_bundle_contains_code_only(deployment: Deployment, tmp_path: Path) -> None:
    """Keys, certificates, data and connections in the app's folder stay out of the bundle."""
    app = tmp_path / "app"
    shutil.copytree(APP, app)
    keys.make_ca(app)
    keys.make_node_key(app / "udjfl_app", "north")
    (app / "config.toml").write_text('[superlink.here]\naddress = "example.org:8000"\n')
    (app / "keys.json").write_text('{"key": "BEGIN PRIVATE KEY"}')
    assert deployment.flwr("build", "--app", str(app)).returncode == 0
    (bundle,) = deployment.command.home.glob("*.fab")
    unpacked = tmp_path / "unpacked"
    with zipfile.ZipFile(bundle) as archive:
        names = sorted(archive.namelist())
        archive.extractall(unpacked)
    code = [f"udjfl_app/{name}.py" for name in ("__init__", "client_app", "server_app", "task")]
    assert names == [".info/CONTENT", "pyproject.toml", *code]
    assert files_with_secrets(unpacked) == []
    assert files_with_secrets(app) != []  # the search finds them where they are
