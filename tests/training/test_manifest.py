"""The manifest of a run folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from udjfl.errors import StorageError
from udjfl.training.manifest import MANIFEST, Entry, Manifest, load_manifest

RUN = Manifest.of_run(b"settings", b"versions")


def test_it_is_read_as_written() -> None:
    manifest = RUN.expect({"result.json": Entry.of(b"one")}).expect({"result.json": Entry.of(b"2")})
    assert manifest.before == {"result.json": Entry.of(b"one")}
    assert Manifest.decode(manifest.encode()) == manifest


def test_a_change_of_any_bit_of_it_is_found(tmp_path: Path) -> None:
    content = RUN.expect({"result.json": Entry.of(b"one")}).encode()
    for position in range(len(content)):
        for bit in (0, position % 8):
            changed = bytearray(content)
            changed[position] ^= 1 << bit
            (tmp_path / MANIFEST).write_bytes(changed)
            with pytest.raises(StorageError, match="is damaged"):
                load_manifest(tmp_path)


def test_while_a_file_is_replaced_both_contents_belong_to_the_run() -> None:
    old = RUN.expect({"result.json": Entry.of(b"old")})
    assert old.before == {}
    during = old.expect({"result.json": Entry.of(b"new")})
    assert during.accepts("result.json", b"old")
    assert during.accepts("result.json", b"new")
    assert not during.accepts("result.json", b"other")
    # Killed before the file was replaced, the run has the old one; else the new one.
    assert during.settle({"result.json": b"old"}) == old
    for content in (b"new", None):
        after = during.settle({"result.json": content})
        assert not after.accepts("result.json", b"old")
        assert after.accepts("result.json", b"new")


def test_the_run_is_known_by_its_settings_and_versions() -> None:
    assert RUN.run != Manifest.of_run(b"settings", b"others").run
    assert RUN.run != Manifest.of_run(b"other settings", b"versions").run


def rewrite(**changes: object) -> bytes:
    """Return a manifest with changes, and the right checksum where the fields allow one."""
    value = {**json.loads(RUN.encode()), **changes}
    return json.dumps(value, indent=2).encode() + b"\n"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"null",
        b"[" * 100_000,
        rewrite(format=2),
        rewrite(files=[]),
        rewrite(files={"../../outside": {"sha256": "0" * 64, "bytes": 1}}),
        rewrite(files={"result.json": {"sha256": "0" * 64, "bytes": -1}}),
        rewrite(files={"result.json": {"sha256": "0" * 64, "bytes": True}}),
        rewrite(files={"result.json": {"sha256": 3, "bytes": 1}}),
    ],
)
def test_what_is_not_a_manifest_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / MANIFEST).write_bytes(content)
    with pytest.raises(StorageError, match=r"manifest\.json is damaged .* restore it"):
        load_manifest(tmp_path)
