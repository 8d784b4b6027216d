"""The manifest of a run folder: which contents of which files belong to this run.

    run      SHA-256 of settings.json and versions.json, which every checkpoint repeats
    files    SHA-256 and size of each file
    before   the same of contents that are being replaced: a crash may have left one of them
    sha256   of the manifest itself

It is written before the files that it lists, so a file that it does not list, or lists with another
content, was not written by this run. A listed file that is missing was about to be written. The
records and the checkpoint are listed when the run has finished; until then the checkpoint has a
checksum of its own, `run`, and the SHA-256 of the records up to it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from udjfl._files import parse_json, read_file
from udjfl.errors import StorageError

MANIFEST = "manifest.json"
FORMAT = 1
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=-]*")
HEX = re.compile(r"[0-9a-f]{64}")
MOST_BYTES = 1 << 24


@dataclass(frozen=True)
class Entry:
    """The content of a file: its SHA-256 and its size."""

    sha256: str
    size: int

    @staticmethod
    def of(content: bytes) -> Entry:
        """Describe a content."""
        return Entry(hashlib.sha256(content).hexdigest(), len(content))

    @staticmethod
    def read(value: Any) -> Entry:
        """Read an entry as `Manifest.encode` writes it."""
        sha256, size = value["sha256"], value["bytes"]
        if set(value) != {"sha256", "bytes"} or type(size) is not int or size < 0:
            raise ValueError("an entry has other fields")
        if not HEX.fullmatch(sha256):
            raise ValueError("an entry has no SHA-256")
        return Entry(sha256, size)


@dataclass(frozen=True)
class Manifest:
    """The contents that belong to a run."""

    run: str
    files: Mapping[str, Entry] = field(default_factory=dict)
    before: Mapping[str, Entry] = field(default_factory=dict)

    @staticmethod
    def of_run(settings: bytes, versions: bytes) -> Manifest:
        """Begin the manifest of a run with these settings and versions."""
        run = hashlib.sha256(settings + versions).hexdigest()
        files = {"settings.json": Entry.of(settings), "versions.json": Entry.of(versions)}
        return Manifest(run, files)

    def expect(self, entries: Mapping[str, Entry]) -> Manifest:
        """Return the manifest for the time in which these contents are written."""
        changed = {
            name: self.files[name]
            for name, entry in entries.items()
            if name in self.files and self.files[name] != entry
        }
        return replace(self, files={**self.files, **entries}, before={**self.before, **changed})

    def settle(self, contents: Mapping[str, bytes | None]) -> Manifest:
        """Return the manifest when these are the contents of the files that were replaced."""
        files = dict(self.files)
        for name, content in contents.items():
            if content is not None and Entry.of(content) == self.before.get(name):
                files[name] = self.before[name]
        return replace(self, files=files, before={})

    def without(self, *names: str) -> Manifest:
        """Return the manifest without some files."""
        return replace(self, files={k: v for k, v in self.files.items() if k not in names})

    def accepts(self, name: str, content: bytes) -> bool:
        """Tell whether this content of a file belongs to the run."""
        entry = Entry.of(content)
        return entry in (self.files.get(name), self.before.get(name))

    def encode(self) -> bytes:
        """Return the content of manifest.json."""
        plain = self._as_dict()
        digest = hashlib.sha256(_to_text(plain)).hexdigest()
        return _to_text({**plain, "sha256": digest})

    def _as_dict(self) -> dict[str, Any]:
        def rows(entries: Mapping[str, Entry]) -> dict[str, Any]:
            return {
                name: {"sha256": entry.sha256, "bytes": entry.size}
                for name, entry in sorted(entries.items())
            }

        before = {"before": rows(self.before)} if self.before else {}
        return {"format": FORMAT, "run": self.run, "files": rows(self.files), **before}

    @staticmethod
    def decode(content: bytes) -> Manifest:
        """Read a manifest; a ValueError if a byte of it was changed."""
        value = parse_json(content)
        try:
            if value["format"] != FORMAT:
                raise ValueError(f"it has format {value['format']!r}; this version reads {FORMAT}")
            groups = [value["files"], value.get("before", {})]
            files, before = ({k: Entry.read(v) for k, v in rows.items()} for rows in groups)
            manifest = Manifest(str(value["run"]), files, before)
        except (KeyError, TypeError, AttributeError):
            raise ValueError("it is not a manifest") from None
        if not all(NAME.fullmatch(name) for name in (*files, *before)):
            raise ValueError("it lists a name that is not that of a file here")
        if manifest.encode() != content:
            raise ValueError("its checksum does not match")
        return manifest


def _to_text(value: Any) -> bytes:
    return (json.dumps(value, indent=2) + "\n").encode()


def load_manifest(folder: Path) -> Manifest | None:
    """Read the manifest of a run folder; None if it has none."""
    path = folder / MANIFEST
    try:
        return Manifest.decode(read_file(path, MOST_BYTES))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise StorageError(
            f"{path} is damaged ({error}); restore it, or start the run again elsewhere"
        ) from None
