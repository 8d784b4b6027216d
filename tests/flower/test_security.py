"""Who gets in, who does not, and where keys are. With a real SuperLink and real SuperNodes."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from deploying import APP, HOST, Deployment, flower_keys, secrets_in, stop
from door import fleet_door

pytestmark = pytest.mark.processes

PATIENCE = 300.0  # a refused SuperNode ends by itself, on a busy machine after a while
NODE = {
    "client-id": "north",
    "data": "/nowhere",
}  # nothing is trained here, so nobody looks at the data
ONE_TRY = ["--max-retries", "1"]


@pytest.fixture(scope="module")
def deployment() -> Iterator[Deployment]:
    """A SuperLink that knows one key, north's, and has one SuperNode online, south."""
    with Deployment() as deployment:
        deployment.start_superlink()
        flower_keys.make_node_key(deployment.keys, "north")
        deployment.register("north")
        deployment.add_node("south", {**NODE, "client-id": "south"})
        deployment.wait_online(["south"])
        yield deployment


@pytest.fixture
def north(deployment: Deployment) -> Iterator[Deployment]:
    """Afterwards north is gone again, and has said so: of one that was killed the SuperLink learns only after a while."""
    yield deployment
    stop([deployment.nodes.pop("north")])


def test_a_registered_key_over_tls_gets_in(north: Deployment) -> None:
    """Else the refusals below would prove nothing."""
    north.start_node("north", NODE)
    north.wait_online(["north"])


def test_an_unregistered_key_is_refused(north: Deployment) -> None:
    flower_keys.make_node_key(north.keys, "stranger")
    node = north.start_node("north", NODE, key="stranger", options=ONE_TRY)
    assert node.wait(PATIENCE) is not None
    assert "Failed to activate SuperNode" in node.output
    assert north.online() == {"south"}


def test_a_node_without_a_key_is_refused(north: Deployment) -> None:
    node = north.start_node("north", NODE, key=None, options=ONE_TRY)
    assert node.wait(PATIENCE) is not None
    assert "Failed to initialize the connection" in node.output
    assert north.online() == {"south"}


@pytest.mark.parametrize("authority", ["none", "another"])
def test_without_the_right_authority_a_node_refuses_the_server(
    north: Deployment, authority: str, tmp_path: Path
) -> None:
    """Its key is registered: it is the certificate that it cannot check."""
    trusted = None if authority == "none" else flower_keys.make_ca(tmp_path)
    node = north.start_node("north", NODE, root_certificates=trusted, options=ONE_TRY)
    assert node.wait(PATIENCE) is not None
    assert "CERTIFICATE_VERIFY_FAILED" in node.output
    assert north.online() == {"south"}


def test_a_certificate_for_another_host_is_refused(north: Deployment) -> None:
    """127.1 is another way to write 127.0.0.1, so the server is reached; but its certificate is not for that name."""
    node = north.start_node("north", NODE, address=f"127.1:{north.port}", options=ONE_TRY)
    assert node.wait(PATIENCE) is not None
    assert "CERTIFICATE_VERIFY_FAILED" in node.output
    assert north.online() == {"south"}


@pytest.mark.parametrize("key", ["own", None])
def test_a_node_without_tls_is_refused(north: Deployment, key: str | None) -> None:
    node = north.start_node("north", NODE, insecure=True, key=key, options=ONE_TRY)
    assert node.wait(PATIENCE) is not None
    assert north.online() == {"south"}


def test_plain_text_gets_no_answer(deployment: Deployment) -> None:
    with socket.create_connection((HOST, deployment.port), timeout=60) as plain:
        plain.sendall(b"GET /health HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n")
        try:
            answer = plain.recv(1000)
        except ConnectionResetError:
            answer = b""
    assert b"HTTP/" not in answer
    assert deployment._superlink_answers()  # over TLS it does


@pytest.mark.parametrize("connection", ["", "insecure = true\n"])
def test_an_operator_without_the_authority_gets_no_connection(
    deployment: Deployment, connection: str, tmp_path: Path
) -> None:
    (tmp_path / "config.toml").write_text(
        f'[superlink.here]\naddress = "{deployment.address}"\n{connection}'
    )
    assert deployment.flwr("supernode", "list", "here", home=tmp_path).returncode != 0
    assert deployment.flwr("supernode", "list", "here").returncode == 0


def test_a_proxy_can_let_in_nodes_and_nobody_else(north: Deployment, tmp_path: Path) -> None:
    """Whoever can reach a SuperLink's port can also start runs on it and register keys; docs/deploying.md has the remedy."""
    with fleet_door(north) as (port, refused):
        north.start_node("north", NODE, address=f"{HOST}:{port}")
        north.wait_online(["north"])
        (tmp_path / "config.toml").write_text(
            f'[superlink.door]\naddress = "{HOST}:{port}"\nroot-certificates = "{north.ca}"\n'
        )
        assert north.flwr("supernode", "list", "door", home=tmp_path).returncode != 0
        assert north.flwr("run", str(APP), "door", home=tmp_path).returncode != 0
        stop([north.nodes["north"]])
    assert refused == ["/v1/control/list-nodes", "/v1/control/start-run"]


def test_private_keys_are_the_owners_from_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even where new files are open to everybody, and before the first byte is written."""
    seen = {}
    opened = os.fdopen

    def look(descriptor: int, mode: str):
        about = os.fstat(descriptor)
        seen[about.st_ino] = (stat.S_IMODE(about.st_mode), about.st_size)
        return opened(descriptor, mode)

    monkeypatch.setattr(os, "fdopen", look)
    before = os.umask(0)
    try:
        flower_keys.make_ca(tmp_path / "keys")
        flower_keys.make_server_certificate(tmp_path / "keys", ["127.0.0.1"])
        flower_keys.make_node_key(tmp_path / "keys", "north")
    finally:
        os.umask(before)
    private = [tmp_path / "keys" / name for name in ("ca.key", "server.key", "north")]
    assert [stat.S_IMODE(path.stat().st_mode) for path in private] == [0o600] * 3
    assert [seen[path.stat().st_ino] for path in private] == [(0o600, 0)] * 3
    assert stat.S_IMODE((tmp_path / "keys").stat().st_mode) == 0o700


def test_a_deployments_private_keys_are_the_owners(deployment: Deployment) -> None:
    private = [path for path in deployment.keys.iterdir() if b"PRIVATE KEY" in path.read_bytes()]
    assert {path.name for path in private} >= {"ca.key", "server.key", "north", "south"}
    assert {stat.S_IMODE(path.stat().st_mode) for path in private} == {0o600}
    assert stat.S_IMODE(deployment.folder.stat().st_mode) == 0o700


def test_a_key_is_never_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flower_keys.main(["node", str(tmp_path), "north"])
    assert "north.pub may be given to anybody" in capsys.readouterr().out
    first = (tmp_path / "north").read_bytes()
    with pytest.raises(SystemExit, match="north is there already"):
        flower_keys.main(["node", str(tmp_path), "north"])
    assert (tmp_path / "north").read_bytes() == first


def test_a_server_certificate_needs_an_authority(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"ca\.crt is missing; make the authority first"):
        flower_keys.main(["server", str(tmp_path), "example.org"])


def test_the_app_bundle_is_code_alone(deployment: Deployment, tmp_path: Path) -> None:
    """Even if keys, certificates, data and connections lie in the app's folder when it is built."""
    app = tmp_path / "app"
    shutil.copytree(APP, app)
    flower_keys.make_ca(app)
    flower_keys.make_node_key(app / "udjfl_app", "north")
    (app / "config.toml").write_text('[superlink.here]\naddress = "example.org:8000"\n')
    (app / "keys.json").write_text('{"key": "BEGIN PRIVATE KEY"}')
    assert deployment.flwr("build", "--app", str(app)).returncode == 0
    (bundle,) = deployment.folder.glob("*.fab")
    unpacked = tmp_path / "unpacked"
    with zipfile.ZipFile(bundle) as archive:
        names = sorted(archive.namelist())
        archive.extractall(unpacked)
    code = [f"udjfl_app/{name}.py" for name in ("__init__", "client_app", "server_app", "task")]
    assert names == [".info/CONTENT", "pyproject.toml", *code]
    assert secrets_in(unpacked) == []
    assert secrets_in(app) != []  # the search finds them where they are
