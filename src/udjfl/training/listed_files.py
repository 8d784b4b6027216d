"""The files of a folder and the manifest that lists their contents: none is used unseen."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from udjfl._files import parse_json, read_file, to_json, write_atomic
from udjfl.errors import CheckpointError, StorageError
from udjfl.training.file_names import find_advice
from udjfl.training.manifest import MANIFEST, Entry, Manifest
from udjfl.training.record_file import CHECKPOINT
from udjfl.training.tensor_file import unpack_content


class ListedFiles:
    """Files that are read and replaced as their manifest says; None: of an older version."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.manifest: Manifest | None = None

    def write_json(self, name: str, value: Any) -> None:
        self.write_files({name: to_json(value)})

    def write_files(self, contents: Mapping[str, bytes]) -> None:
        """Replace files: the manifest lists their new contents first."""
        self._expect({name: Entry.of(content) for name, content in contents.items()})
        for name, content in contents.items():
            write_atomic(self.path / name, content)
        if self.manifest is not None and self.manifest.before:
            self._write_manifest(self.manifest.settle({}))

    def _expect(self, entries: Mapping[str, Entry]) -> None:
        """List contents that are about to be written, unless they are listed already."""
        if self.manifest is None:
            return
        if any(self.manifest.files.get(name) != entry for name, entry in entries.items()):
            self._write_manifest(self.manifest.expect(entries))

    def _write_manifest(self, manifest: Manifest) -> None:
        write_atomic(self.path / MANIFEST, manifest.encode())
        self.manifest = manifest

    def expects(self, name: str, content: bytes) -> bool:
        """Tell whether the manifest allows this content: it lists no other."""
        return self.manifest is None or self.manifest.files.get(name) in (None, Entry.of(content))

    def is_whole(self, name: str) -> bool:
        """Tell whether a file is there and belongs to this run."""
        try:
            content = self.read(name)
            if content is None or self.manifest is not None:
                return content is not None
            if name.endswith(".json"):
                self.read_json(name)
            elif name.endswith(".safetensors"):
                unpack_content(content, self.path / name)
        except StorageError:
            return False
        return True

    def read(self, name: str) -> bytes | None:
        """Read a file that belongs to this run; None if it is not there."""
        content = self._read_content(name)
        if content is not None and self.manifest is not None:
            if name not in self.manifest.files:
                raise StorageError(
                    f"{self.path / name} does not belong to this run: {MANIFEST} does not list it; "
                    "remove it"
                )
            if not self.manifest.accepts(name, content):
                raise self._damaged(name, "its SHA-256 is not that in manifest.json")
        return content

    def _read_content(self, name: str) -> bytes | None:
        try:
            return read_file(self.path / name)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._damaged(name, error.strerror or str(error), "cannot be read") from None

    def _damaged(self, name: str, why: object, what: str = "is damaged") -> StorageError:
        cls = CheckpointError if name == CHECKPOINT else StorageError
        return cls(f"{self.path / name} {what} ({why}); {find_advice(name)}")

    def read_json(self, name: str) -> Any:
        """Read a JSON file that belongs to this run; None if it is not there."""
        content = self.read(name)
        if content is None:
            return None
        try:
            return parse_json(content)
        except ValueError as error:
            raise self._damaged(name, error, "cannot be read") from None
