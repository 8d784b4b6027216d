"""The coordinator's folder without its processes: keys, and who is admitted."""

from __future__ import annotations

import contextlib
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from udjfl.cli.flower_tables import describe_certificate
from udjfl.deployment import coordinator as coordinator_module
from udjfl.deployment import keys
from udjfl.deployment.control import UNREGISTERED, NodeInfo, connect
from udjfl.deployment.coordinator import Coordinator, check_name
from udjfl.deployment.network import is_healthy
from udjfl.deployment.status import read_status
from udjfl.errors import DeploymentError


@pytest.fixture
def coordinator(tmp_path: Path) -> Coordinator:
    return Coordinator(tmp_path / "study")


def public_key(folder: Path, name: str) -> Path:
    keys.make_node_key(folder, name)
    return folder / f"{name}.pub"


def test_a_second_certificate_is_signed_by_the_same_authority(coordinator: Coordinator) -> None:
    coordinator.make_keys(["fl.example.org"])
    before = coordinator.ca.read_bytes()
    with pytest.raises(FileExistsError):
        coordinator.make_keys(["fl.example.org"])
    for name in ("server.crt", "server.key"):
        (coordinator.keys / name).unlink()
    coordinator.make_keys(["192.0.2.1"])
    assert coordinator.ca.read_bytes() == before
    assert stat.S_IMODE((coordinator.keys / "server.key").stat().st_mode) == 0o600


def test_a_host_that_is_none_is_an_error_before_anything_is_written(
    coordinator: Coordinator,
) -> None:
    with pytest.raises(DeploymentError, match="host: 'https://fl' is no name or address"):
        coordinator.make_keys(["fl.example.org", "https://fl"])
    assert not coordinator.folder.exists()


def test_an_expired_certificate_is_an_error_that_names_the_command(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys, "SERVER_DAYS", -1 / (24 * 60))  # it ended a minute ago
    coordinator.make_keys(["fl.example.org"])
    with pytest.raises(DeploymentError, match=r"was valid until .*udjfl flower keys .* --renew"):
        coordinator.start("127.0.0.1:1")
    with pytest.raises(DeploymentError, match="was valid until"):
        coordinator.wait_until_open()  # it is running, and cannot be connected to
    assert not coordinator.state.exists()
    monkeypatch.undo()
    coordinator.make_keys([], renew=True)
    coordinator.check_files()


def damage_authority(coordinator: Coordinator, damage: str) -> str:
    """Put something else in the place of ca.crt; return what an error has to say."""
    coordinator.make_keys(["fl.example.org"])
    if damage == "junk":
        coordinator.ca.write_text("junk")
        return r"ca\.crt cannot be used: it holds no certificate; restore it"
    other = keys.make_ca(coordinator.folder.parent / "other")
    coordinator.ca.write_bytes(other.read_bytes())
    return r"ca\.crt cannot be used: another authority signed server\.crt .*; restore it"


@pytest.mark.parametrize("damage", ["junk", "other"])
def test_an_authority_that_cannot_be_used_is_named_by_every_command(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    problem = damage_authority(coordinator, damage)
    running = {"superlink": "127.0.0.1:1", "listen": "127.0.0.1:1"}
    with pytest.raises(DeploymentError, match=problem):
        coordinator.check_files()
    monkeypatch.setattr(coordinator, "running", lambda: running)
    with pytest.raises(DeploymentError, match=problem), coordinator.control():
        pass
    status = read_status(coordinator)
    assert re.search(problem, str(status.problem))
    assert re.search(problem, str(describe_certificate(status)))
    assert status.certificate_until is not None


def test_a_damaged_authority_is_named_before_a_connection(coordinator: Coordinator) -> None:
    """The file may be damaged while the services run, between two looks."""
    problem = damage_authority(coordinator, "junk")
    with pytest.raises(DeploymentError, match=problem):
        is_healthy("127.0.0.1:1", coordinator.ca)
    with pytest.raises(DeploymentError, match=problem), connect("127.0.0.1:1", coordinator.ca):
        pass


def test_admitted_keys_are_kept_by_name(coordinator: Coordinator, tmp_path: Path) -> None:
    assert coordinator.admitted() == {}
    paths = [public_key(tmp_path, name) for name in ("south", "north")]
    assert coordinator.admit(paths) == ["south", "north"]
    first = coordinator.admitted()
    assert list(first) == ["north", "south"]
    assert coordinator.admit([public_key(tmp_path / "new", "north")]) == ["north"]
    assert coordinator.admitted()["north"] != first["north"]  # a new key replaces the old one
    assert coordinator.admitted()["south"] == first["south"]


def test_one_key_has_one_name(coordinator: Coordinator, tmp_path: Path) -> None:
    north = public_key(tmp_path, "north")
    south = tmp_path / "south.pub"
    south.write_bytes(north.read_bytes())
    with pytest.raises(DeploymentError, match=r"south\.pub is the key of north"):
        coordinator.admit([north, south])
    assert coordinator.admitted() == {}
    coordinator.admit([north])
    with pytest.raises(DeploymentError, match="each node makes a key of its own"):
        coordinator.admit([south])


def test_one_name_has_one_key(coordinator: Coordinator, tmp_path: Path) -> None:
    paths = [public_key(tmp_path / folder, "north") for folder in "ab"]
    with pytest.raises(DeploymentError, match="two files for north; give one"):
        coordinator.admit(paths)
    assert coordinator.admitted() == {}


def test_a_private_key_is_never_admitted(coordinator: Coordinator, tmp_path: Path) -> None:
    private = keys.make_node_key(tmp_path, "north")
    with pytest.raises(DeploymentError, match="is a private key: it stays with its node"):
        coordinator.admit([private])
    other = tmp_path / "text.pub"
    other.write_text("ssh-ed25519 AAAA")
    with pytest.raises(DeploymentError, match="not the public key of a node"):
        coordinator.admit([other])


class FakeControl:
    """A SuperLink that admits nodes; what concerns a name in `refused` fails."""

    def __init__(self, refused: tuple[str, ...] = ()) -> None:
        self.known: dict[str, NodeInfo] = {}
        self.refused = refused

    def nodes(self) -> list[NodeInfo]:
        return list(self.known.values())

    all_nodes = nodes

    def register(self, name: str, key: bytes) -> None:
        if name in self.refused:
            raise DeploymentError("refused")
        self.known[name] = NodeInfo(len(self.known), name, key, "registered", "")

    def unregister(self, node: NodeInfo) -> None:
        if node.name in self.refused:
            raise DeploymentError("refused")
        del self.known[node.name]


def sync(
    coordinator: Coordinator, control: FakeControl, monkeypatch: pytest.MonkeyPatch
) -> list[str]:
    """Let the supervisor look at nodes/ once; return who is admitted."""

    @contextmanager
    def connect(*_: object) -> Iterator[FakeControl]:
        yield control

    monkeypatch.setattr(coordinator_module, "connect", connect)
    monkeypatch.setattr(coordinator_module, "is_healthy", lambda *_: True)
    coordinator._next_sync = 0.0
    coordinator._sync("here")
    return sorted(control.known)


@pytest.mark.parametrize(
    "content", [b"", b"\xff", b"-----BEGIN PRIVATE KEY-----", b"ssh-x AAAA", b"ssh-dss AAAA x"]
)
def test_a_file_that_cannot_be_read_changes_nothing_for_any_node(
    coordinator: Coordinator,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    content: bytes,
) -> None:
    control = FakeControl()
    coordinator.admit([public_key(tmp_path, name) for name in ("east", "north", "south")])
    assert sync(coordinator, control, monkeypatch) == ["east", "north", "south"]
    east = coordinator.nodes / "east.pub"
    whole, known = east.read_bytes(), control.known["east"]
    (coordinator.nodes / "south.pub").unlink()
    east.write_bytes(content or whole[:40])
    (coordinator.nodes / "folder.pub").mkdir()
    sync(coordinator, control, monkeypatch)
    assert sync(coordinator, control, monkeypatch) == ["east", "north"]  # south is gone, twice
    assert len(coordinator.unreadable()) == 2
    assert sync(coordinator, control, monkeypatch) == ["east", "north"]
    assert capsys.readouterr().out.count("east.pub is") == 1  # said once, not at each look
    again = Coordinator(coordinator.folder)  # the coordinator is started again
    for _ in range(3):
        assert sync(again, control, monkeypatch) == ["east", "north"]
    east.write_bytes(whole)
    assert sync(again, control, monkeypatch) == ["east", "north"]
    assert control.known["east"] is known  # never unregistered: Flower would not admit it again
    assert again.refused() == {}


def test_a_node_is_unregistered_when_its_file_is_gone_on_two_looks(
    coordinator: Coordinator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    control = FakeControl()
    coordinator.admit([public_key(tmp_path, name) for name in ("north", "south")])
    sync(coordinator, control, monkeypatch)
    north, south = (coordinator.nodes / f"{name}.pub" for name in ("north", "south"))
    content = north.read_bytes()
    for path in (north, south):
        path.unlink()
    assert sync(coordinator, control, monkeypatch) == ["north", "south"]
    north.write_bytes(content)  # it was only being replaced
    assert sync(coordinator, control, monkeypatch) == ["north"]
    north.unlink()
    again = Coordinator(coordinator.folder)
    assert sync(again, control, monkeypatch) == ["north"]
    assert sync(again, control, monkeypatch) == []


def test_a_folder_that_is_away_unregisters_no_node(
    coordinator: Coordinator,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    control = FakeControl()
    coordinator.admit([public_key(tmp_path, "north")])
    sync(coordinator, control, monkeypatch)
    away = coordinator.nodes.rename(tmp_path / "away")
    for _ in range(3):
        assert sync(coordinator, control, monkeypatch) == ["north"]
    assert capsys.readouterr().out.count("there is no folder") == 1
    coordinator.admit([])  # `udjfl flower up` makes no empty folder in its place
    assert sync(coordinator, control, monkeypatch) == ["north"]
    away.rename(coordinator.nodes)
    (coordinator.nodes / "north.pub").unlink()
    assert sync(coordinator, control, monkeypatch) == ["north"]  # one look
    assert sync(coordinator, control, monkeypatch) == []


def test_a_refusal_stops_neither_revocation_nor_admission(
    coordinator: Coordinator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    control = FakeControl()
    coordinator.admit([public_key(tmp_path, name) for name in ("a", "b")])
    sync(coordinator, control, monkeypatch)
    for path in coordinator.nodes.iterdir():
        path.unlink()
    coordinator.admit([public_key(tmp_path, name) for name in ("c", "d")])
    control.refused = ("a", "c")
    sync(coordinator, control, monkeypatch)
    assert sync(coordinator, control, monkeypatch) == ["a", "d"]
    assert coordinator.refused() == {"c": "c.pub is refused: refused"}
    control.refused = ()
    assert sync(coordinator, control, monkeypatch) == ["c", "d"]  # tried again
    assert coordinator.refused() == {}


def test_a_refused_key_is_waited_for_no_longer_and_a_new_one_is(
    coordinator: Coordinator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    control = FakeControl(refused=("north",))
    coordinator.admit([public_key(tmp_path, name) for name in ("north", "south")])
    sync(coordinator, control, monkeypatch)
    monkeypatch.setattr(
        coordinator, "running", lambda: {"superlink": "here", "listen": "127.0.0.1:1"}
    )
    monkeypatch.setattr(coordinator, "control", lambda: contextlib.nullcontext(control))
    monkeypatch.setattr(coordinator_module, "is_listening", lambda *_: True)
    assert coordinator.is_open()
    assert list(coordinator.refused()) == ["north"]
    coordinator.admit([public_key(tmp_path / "new", "north")])
    assert coordinator.refused() == {}  # nothing is known of this key yet
    assert not coordinator.is_open()


def test_a_key_that_was_taken_back_is_refused_in_words(
    coordinator: Coordinator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    control = FakeControl()
    coordinator.admit([public_key(tmp_path, "north")])
    key = coordinator.admitted()["north"]
    gone = NodeInfo(9, "north", key, UNREGISTERED, "")
    monkeypatch.setattr(control, "all_nodes", lambda: [gone])
    assert sync(coordinator, control, monkeypatch) == []
    assert "Flower admits no key twice" in coordinator.refused()["north"]


@pytest.mark.parametrize(
    "name", ["", ".hidden", "a/b", "..", "-x", "a b", "x" * 64, "a\n", "x.pub", "x.PUB"]
)
def test_a_name_is_the_name_of_a_file(name: str) -> None:
    with pytest.raises(DeploymentError, match="is no name"):
        check_name(name)


def test_a_wrong_address_is_found_before_anything_is_started(coordinator: Coordinator) -> None:
    for start in (coordinator.start, coordinator.run_services):
        with pytest.raises(DeploymentError, match=r"listen: '0\.0\.0\.0:84x3' is not of the form"):
            start("0.0.0.0:84x3")
    assert not coordinator.state.exists()


def test_an_address_of_ipv6_is_probed_in_ipv6(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, int]] = []
    running = {"superlink": "here", "listen": "[::]:8443"}
    monkeypatch.setattr(coordinator, "running", lambda: running)
    monkeypatch.setattr(coordinator_module, "is_healthy", lambda *_: True)

    def is_listening(host: str, port: int) -> bool:
        asked.append((host, port))
        return False

    monkeypatch.setattr(coordinator_module, "is_listening", is_listening)
    assert not coordinator.is_open()
    assert asked == [("::1", 8443)]


def test_errors_name_the_command_that_is_missing(coordinator: Coordinator) -> None:
    with pytest.raises(DeploymentError, match=r"ca\.crt is missing; .*udjfl flower keys"):
        coordinator.start("127.0.0.1:1")
    with pytest.raises(DeploymentError, match="is not running; start it with `udjfl flower up"):
        coordinator.control()
    with pytest.raises(DeploymentError, match="is not running"):
        coordinator.submit("run", {})
    assert coordinator.submitted() == []
