"""A node's folder without its processes: its key, its settings, and why it is not connected."""

from __future__ import annotations

import os
import re
import stat
import tomllib
from pathlib import Path
from unittest.mock import Mock

import pytest

pytest.importorskip("flwr")

from flwr.common.config import parse_config_args

from udjfl.deployment import node as node_module
from udjfl.deployment.network import HOST
from udjfl.deployment.node import Node
from udjfl.deployment.supervisor import Supervisor, make_logs_folder
from udjfl.errors import DeploymentError


@pytest.fixture
def node(tmp_path: Path) -> Node:
    node = Node(tmp_path / "hospital")
    node.make_key("north")
    (tmp_path / "ca.crt").touch()
    (tmp_path / "north.csv").touch()
    return node


def flags(node: Node) -> dict[str, str]:
    folder = node.folder.parent
    return {
        "server": "fl.example.org:8443",
        "ca": str(folder / "ca.crt"),
        "data": str(folder / "north.csv"),
    }


def test_a_node_has_one_key(node: Node, tmp_path: Path) -> None:
    assert node.name == "north"
    with pytest.raises(DeploymentError, match="has the key of north already"):
        node.make_key("south")
    with pytest.raises(DeploymentError, match="has no key; make one with `udjfl flower keys"):
        _ = Node(tmp_path / "other").name


def test_a_private_key_is_never_called_like_a_public_one(tmp_path: Path) -> None:
    node = Node(tmp_path / "hospital")
    with pytest.raises(DeploymentError, match=r"leave out \.pub: north"):
        node.make_key("north.pub")
    assert not node.keys.exists()


def test_flags_are_kept_and_need_not_be_repeated(node: Node) -> None:
    first = node.configure(flags(node))
    assert node.configure({}) == first
    changed = node.configure({"disclose": "updates,losses", "server": None})
    assert (changed.disclose, changed.server) == ("updates,losses", "fl.example.org:8443")
    assert node.configure({}) == changed


def test_the_file_may_be_changed_by_hand(node: Node) -> None:
    node.configure(flags(node))
    path = node.folder / "node.toml"
    text = path.read_text(encoding="utf-8") + 'ward = "Ä \\"7\\""\nbeds = 12\n'
    path.write_text(text, encoding="utf-8")
    settings = node.configure({"disclose": "updates"})
    assert settings.config == {"ward": 'Ä "7"', "beds": 12}
    assert tomllib.loads(path.read_text(encoding="utf-8"))["config"] == settings.config


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"server": "fl.example.org"}, "not of the form HOST:PORT"),
        ({"data": "nowhere.csv"}, "data: there is no"),
        ({"ca": "nowhere.crt"}, "ca: there is no"),
    ],
)
def test_wrong_flags_are_named_and_not_kept(
    node: Node, change: dict[str, str], problem: str
) -> None:
    with pytest.raises(DeploymentError, match=problem):
        node.configure({**flags(node), **change})
    assert node.read_settings() == {}


def test_a_mistake_in_a_complete_file_is_named_alone(node: Node) -> None:
    node.configure(flags(node))
    path = node.folder / "node.toml"
    path.write_text(path.read_text(encoding="utf-8") + "beds = [1, 2]\n")
    rule = r"config: beds must be a text, a number, true or false, got \[1, 2\]$"
    with pytest.raises(DeploymentError, match=rule):
        node.configure({})
    path.write_text(path.read_text(encoding="utf-8").replace("[1, 2]", f"[{'1, ' * 500}2]"))
    with pytest.raises(DeploymentError, match=r"got \[1, .{,124}\.\.\.$"):
        node.configure({})


def test_missing_and_unknown_settings_are_named(node: Node) -> None:
    with pytest.raises(DeploymentError, match=r"data: is missing.*--server, --ca and --data"):
        node.configure({**flags(node), "data": None})
    (node.folder / "node.toml").write_text("sever = 1\n")
    with pytest.raises(DeploymentError, match=r"sever: no such setting.*server"):
        node.configure(flags(node))
    (node.folder / "node.toml").write_text("data = [1]\n")
    with pytest.raises(DeploymentError, match=r"data: must be a text, got \[1\]"):
        node.configure({**flags(node), "data": None})
    (node.folder / "node.toml").write_text("= 1\n")
    with pytest.raises(DeploymentError, match=r"node\.toml: "):
        node.configure(flags(node))


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        ("[SSL: CERTIFICATE_VERIFY_FAILED]", "not signed by"),
        ("[SSL: CERTIFICATE_VERIFY_FAILED]: certificate has expired", "has expired"),
        ("[SSL: CERTIFICATE_VERIFY_FAILED]: certificate is not yet valid", "clock .* is behind"),
        ("[code: 2004] Failed to activate SuperNode", r"has not admitted north\.pub"),
        ("INFO : SuperNode terminated gracefully.", "clock of this machine"),
    ],
)
def test_the_reason_for_no_connection_is_found(node: Node, log: str, reason: str) -> None:
    node.configure(flags(node))
    found = node.find_reason(log)
    assert found is not None
    assert re.search(reason, found)
    assert node.find_reason("Starting Flower SuperNode") is None


def run_without_processes(node: Node, monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """Return the commands that would be kept running."""
    commands = {}

    def run(self: Supervisor) -> None:
        commands.update({service.name: list(service.command) for service in self.services})

    monkeypatch.setattr(Supervisor, "run", run)
    node.run_services(node.configure({}))
    return commands


def test_other_users_cannot_read_a_nodes_settings(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither in files nor on a command line, which every user of a machine sees."""
    umask = os.umask(0)
    try:
        node.configure(flags(node))
        path = node.folder / "node.toml"
        secret = '"s3cret \\u00e4 \\u007f\\" = x"'
        path.write_text(path.read_text(encoding="utf-8") + f"password = {secret}\nlow = -inf\n")
        path.chmod(0o644)
        node.sent.touch(0o644)
        command = run_without_processes(node, monkeypatch)["supernode"]
    finally:
        os.umask(umask)
    assert "s3cret" not in " ".join(command)
    config = parse_config_args([command[command.index("--node-config") + 1]])
    assert (config["client-id"], config["password"]) == ("north", 's3cret \u00e4 \x7f" = x')
    assert config["low"] == float("-inf")
    private = [path, node.sent, Path(command[-1])]
    assert [stat.S_IMODE(path.stat().st_mode) for path in private] == [0o600] * 3
    assert stat.S_IMODE(node.state.stat().st_mode) == 0o700


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        ({}, HOST),
        ({"no_proxy": "a"}, f"a,{HOST}"),
        ({"NO_PROXY": "b,c"}, f"b,c,{HOST}"),
        ({"no_proxy": "a", "NO_PROXY": "b"}, f"a,b,{HOST}"),
        ({"no_proxy": "a", "NO_PROXY": "a"}, f"a,{HOST}"),
    ],
)
def test_addresses_without_a_proxy_are_kept_however_they_are_written(
    before: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {**before, "HTTPS_PROXY": "http://p"}.items():
        monkeypatch.setenv(name, value)
    outside = node_module._outside()
    assert (outside["no_proxy"], outside["NO_PROXY"]) == (expected, expected)
    assert outside["HTTPS_PROXY"] == "http://p"


def test_a_log_that_was_put_aside_is_read_from_its_beginning(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The SuperNode puts a large log aside when it starts, after its size was noted."""
    node.configure(flags(node))
    log = make_logs_folder(node.state) / "supernode.log"
    log.write_text("x" * 1000)

    def start(*_: object) -> Mock:
        log.replace(log.with_suffix(".log.1"))
        log.write_text("SuperNode ID: 1\n")
        return Mock(poll=lambda: None)

    monkeypatch.setattr(node_module, "start_in_background", start)
    monkeypatch.setattr(node_module, "START", -1.0)
    assert node.start(stock=False) is None


def test_an_earlier_connection_is_not_taken_for_a_new_one(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.configure(flags(node))
    log = make_logs_folder(node.state) / "supernode.log"
    log.write_text("SuperNode ID: 1\n")
    started = Mock(poll=lambda: None)
    monkeypatch.setattr(node_module, "start_in_background", lambda *_: started)
    monkeypatch.setattr(node_module, "START", -1.0)
    assert "no answer yet" in str(node.start(stock=False))


@pytest.mark.parametrize(
    ("log", "told"),
    [
        ("Connection attempt failed, retrying\n", "fl.example.org:8443 does not answer"),
        ("Connection attempt failed, retrying\nConnection successful after 1 s\n", "no answer yet"),
    ],
)
def test_an_answer_after_a_failure_is_an_answer(
    node: Node, monkeypatch: pytest.MonkeyPatch, log: str, told: str
) -> None:
    node.configure(flags(node))

    def start(*_: object) -> Mock:
        (make_logs_folder(node.state) / "supernode.log").write_text(log)
        return Mock(poll=lambda: None)

    monkeypatch.setattr(node_module, "start_in_background", start)
    monkeypatch.setattr(node_module, "NO_ANSWER", -1.0)
    monkeypatch.setattr(node_module, "START", -1.0)
    assert told in str(node.start(stock=False))
