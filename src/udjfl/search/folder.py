"""The folder of a search: what was chosen, locked while a process writes there."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from udjfl.errors import StorageError
from udjfl.training.lifecycle import versions
from udjfl.training.run_folder import RunFolder

# They change no number.
IGNORED = ("jobs", "workers", "data_root", "fingerprint")


def open_folder(
    out: str | os.PathLike[str],
    kind: str,
    settings: Mapping[str, Any],
    fingerprint: str,
    from_python: bool = False,
) -> RunFolder:
    """Create the folder of a search, or open the one that is there with the same settings.

    It is locked. `kind` is the command, `fingerprint` that of the first seed's data. With
    `from_python` no command repeats it: data or model are not those of the settings.
    """
    chosen = json.loads(json.dumps({**settings, "fingerprint": fingerprint}))
    folder = RunFolder(Path(out))
    if not folder.holds_a_run:
        mark = {"from_python": True} if from_python else {}
        return RunFolder.create(out, {kind: chosen, **mark}, versions())
    folder.lock()
    try:
        before = folder.read_settings().get(kind)
        if not isinstance(before, dict):
            raise StorageError(f"{folder.path} holds no {kind}; choose another folder")
        keys = [key for key in {**before, **chosen} if key not in IGNORED]
        changed = [key for key in keys if before.get(key) != chosen.get(key)]
        if changed:
            raise StorageError(
                f"{folder.path} was started with other settings ({', '.join(changed)}); use the "
                "same, or another folder"
            )
        if before.get("fingerprint") != fingerprint:
            raise StorageError(
                f"{folder.path} was started with other data; use the same, or another folder"
            )
    except BaseException:
        folder.unlock()
        raise
    return folder


def open_to_read(path: str | os.PathLike[str]) -> RunFolder:
    """Open a folder that a search wrote, or one with files that were saved without a search."""
    folder = RunFolder(Path(path))
    return RunFolder.open(path) if folder.holds_a_run else folder


def write_outputs(path: str | os.PathLike[str], contents: Mapping[str, bytes]) -> None:
    """Write files that are made from what a search has stored; its manifest lists them."""
    folder = RunFolder.open(path)
    folder.lock()
    try:
        folder.write_files(contents)
    finally:
        folder.unlock()
