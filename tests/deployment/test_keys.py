"""The files with keys and certificates."""

from __future__ import annotations

import os
import ssl
import stat
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")  # it brings `cryptography`

from udjfl.deployment import keys
from udjfl.errors import DeploymentError


def test_private_keys_are_readable_by_their_owner_only_from_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even with an umask of 0, and before the first byte is written."""
    at_opening = {}
    fdopen = os.fdopen

    def inspect(descriptor: int, mode: str) -> Any:
        status = os.fstat(descriptor)
        at_opening[status.st_ino] = (stat.S_IMODE(status.st_mode), status.st_size)
        return fdopen(descriptor, mode)

    monkeypatch.setattr(os, "fdopen", inspect)
    umask = os.umask(0)
    try:
        keys.make_ca(tmp_path / "keys")
        keys.make_server_certificate(tmp_path / "keys", ["127.0.0.1"])
        keys.make_node_key(tmp_path / "keys", "north")
    finally:
        os.umask(umask)
    private = [tmp_path / "keys" / name for name in ("ca.key", "server.key", "north")]
    assert [stat.S_IMODE(path.stat().st_mode) for path in private] == [0o600] * 3
    assert [at_opening[path.stat().st_ino] for path in private] == [(0o600, 0)] * 3
    assert stat.S_IMODE((tmp_path / "keys").stat().st_mode) == 0o700


def test_a_key_is_never_replaced(tmp_path: Path) -> None:
    path = keys.make_node_key(tmp_path, "north")
    content = path.read_bytes()
    with pytest.raises(FileExistsError):
        keys.make_node_key(tmp_path, "north")
    assert path.read_bytes() == content


def test_a_server_certificate_needs_an_authority(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"ca\.crt"):
        keys.make_server_certificate(tmp_path, ["example.org"])


def test_a_new_server_certificate_is_for_the_same_names(tmp_path: Path) -> None:
    hosts = ["a" * 60 + ".example.org", "192.0.2.1", "2001:db8::1"]  # a subject has 64 characters
    keys.make_ca(tmp_path)
    path = keys.make_server_certificate(tmp_path, hosts)
    before = {name: (tmp_path / name).read_bytes() for name in ("server.key", "server.crt")}
    authority = (tmp_path / "ca.crt").read_bytes()
    assert keys.renew_server_certificate(tmp_path) == path
    assert keys.read_hosts(path) == hosts
    assert all((tmp_path / name).read_bytes() != content for name, content in before.items())
    assert stat.S_IMODE((tmp_path / "server.key").stat().st_mode) == 0o600
    keys.renew_server_certificate(tmp_path, ["other.example.org"])
    assert keys.read_hosts(path) == ["other.example.org"]
    context = ssl.create_default_context(cafile=tmp_path / "ca.crt")
    context.load_cert_chain(path, tmp_path / "server.key")  # an error if they are not a pair
    assert (tmp_path / "ca.crt").read_bytes() == authority
    names = sorted(made.name for made in tmp_path.iterdir())
    assert names == ["ca.crt", "ca.key", "server.crt", "server.key"]


def test_without_the_authoritys_key_the_server_keeps_its_certificate(tmp_path: Path) -> None:
    """It may be kept elsewhere."""
    keys.make_ca(tmp_path)
    path = keys.make_server_certificate(tmp_path, ["fl.example.org"])
    before = path.read_bytes()
    (tmp_path / "ca.key").unlink()
    with pytest.raises(FileNotFoundError, match=r"ca\.key"):
        keys.renew_server_certificate(tmp_path)
    assert path.read_bytes() == before
    assert sorted(left.name for left in tmp_path.iterdir()) == [
        "ca.crt",
        "server.crt",
        "server.key",
    ]


@pytest.mark.parametrize(
    ("name", "reason", "remedy"),
    [
        ("ca.crt", "it holds no certificate", "every node has a copy"),
        ("ca.key", "it holds no key", "restore it from a copy"),
        ("server.crt", "it holds no certificate", "--renew --host NAME` makes another"),
        ("server.key", "it holds no key", "--renew` makes another"),
    ],
)
def test_a_damaged_file_is_an_error_that_says_what_to_do(
    tmp_path: Path, name: str, reason: str, remedy: str
) -> None:
    folder = tmp_path / "study" / "keys"
    keys.make_ca(folder)
    keys.make_server_certificate(folder, ["fl.example.org"])
    (folder / name).write_text("junk")
    check = keys.check_server_pair if "server" in name else keys.renew_server_certificate
    with pytest.raises(DeploymentError) as raised:
        check(folder)
    assert f"{name} cannot be used: {reason}" in str(raised.value)
    assert remedy in str(raised.value)
    left = {path.name for path in folder.iterdir()}
    assert left == {"ca.crt", "ca.key", "server.crt", "server.key"}


def test_a_key_of_another_certificate_is_refused(tmp_path: Path) -> None:
    """As after a renewal that was killed between its two files."""
    for folder in (tmp_path / "a", tmp_path / "b"):
        keys.make_ca(folder)
        keys.make_server_certificate(folder, ["fl.example.org"])
    (tmp_path / "a" / "server.key").replace(tmp_path / "b" / "server.key")
    with pytest.raises(DeploymentError, match=r"server\.key .* not the key of server\.crt"):
        keys.check_server_pair(tmp_path / "b")
    keys.renew_server_certificate(tmp_path / "b")
    keys.check_server_pair(tmp_path / "b")
    (tmp_path / "a" / "ca.key").replace(tmp_path / "b" / "ca.key")
    with pytest.raises(DeploymentError, match=r"ca\.key .* not the key of ca\.crt"):
        keys.renew_server_certificate(tmp_path / "b")
    (tmp_path / "b" / "ca.crt").write_bytes((tmp_path / "a" / "ca.crt").read_bytes())
    with pytest.raises(DeploymentError, match=r"ca\.crt .* another authority signed server\.crt"):
        keys.check_server_pair(tmp_path / "b")


def test_a_certificate_without_names_is_refused(tmp_path: Path) -> None:
    authority = keys.make_ca(tmp_path)
    with pytest.raises(DeploymentError, match="it is for no host"):
        keys.read_hosts(authority)
