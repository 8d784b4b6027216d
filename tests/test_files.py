"""Files are written whole or not at all."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest
from fault_injection import make_failing
from small_runs import read_files

from udjfl._files import as_argument, write_atomic
from udjfl.errors import StorageError


@pytest.mark.parametrize("function", ["fsync", "replace"])
def test_a_failing_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    path = tmp_path / "file"
    write_atomic(path, b"old")
    if function == "fsync":
        monkeypatch.setattr(os, "fsync", make_failing(errno.ENOSPC))
    else:
        monkeypatch.setattr(Path, "replace", make_failing(errno.ENOSPC))
    with pytest.raises(StorageError):
        write_atomic(path, b"new")
    assert read_files(tmp_path) == {"file": b"old"}  # nothing is left beside it either


def test_content_is_synced_before_the_file_is_renamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Content, name, folder: the order decides what a power cut leaves."""
    path = tmp_path / "file"
    seen: list[str] = []
    real_fsync, real_replace = os.fsync, Path.replace

    def fsync(descriptor: int) -> None:
        is_folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        seen.append("sync folder" if is_folder else f"sync {os.fstat(descriptor).st_size} bytes")
        real_fsync(descriptor)

    def replace(self: Path, target: Path) -> Path:
        seen.append(f"rename with {len(self.read_bytes())} bytes")
        return real_replace(self, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "replace", replace)
    write_atomic(path, b"new")
    assert seen == [
        "sync 3 bytes",
        "rename with 3 bytes",
        *(["sync folder"] if os.name == "posix" else []),
    ]


@pytest.mark.parametrize(
    ("path", "argument"),
    [("study", "study"), ("my study", "'my study'"), ("/data/a b", "'/data/a b'")],
)
def test_paths_in_commands_are_quoted_and_short(
    path: str, argument: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert as_argument(tmp_path / path) == argument
