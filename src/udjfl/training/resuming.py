"""The command that continues what is kept in a folder, with the flag that it needs."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from udjfl._files import parse_json, read_file
from udjfl.training.file_names import SETTINGS
from udjfl.training.trust import find_code

LEVELS_TO_COMPARISON = 2  # a run lies in COMPARISON/seed-0/METHOD
SEARCHES = ("frontier", "tune")


def advise_to_resume(folder: Path) -> str:
    """Return what continues the work in a folder: "`udjfl resume FOLDER --trust-model`".

    Of a run in a comparison, and of the test of a search, that is the command for the whole.
    """
    folder, stored = _find_whole(folder)
    if stored.get("from_python"):
        kind = next((kind for kind in SEARCHES if kind in stored), "compare")
        return f"`udjfl.{kind}(..., out={str(folder)!r}, resume=True)` with the same arguments"
    if "training" in stored and "origin" in stored and stored["origin"] is None:
        return f"`udjfl.simulate(..., out={str(folder)!r}, resume=True)` with the same arguments"
    trust = " --trust-model" if find_code(named_in(stored)) else ""
    return f"`udjfl resume {shlex.quote(str(folder))}{trust}`"


def named_in(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a folder that may name code, whatever it holds."""
    for kind in (*SEARCHES, "comparison"):
        if isinstance(stored.get(kind), dict):
            return dict(stored[kind])
    parts = [stored.get("training"), stored.get("origin"), {"method": stored.get("method")}]
    return {key: value for part in parts if isinstance(part, dict) for key, value in part.items()}


def _find_whole(folder: Path) -> tuple[Path, Mapping[str, Any]]:
    """Return the folder that the command was given, with its settings; none if unreadable."""
    stored = _read_settings(folder)
    if "comparison" in stored:
        above = _read_settings(folder.parent)  # the test of a search
        return (folder.parent, above) if "tune" in above else (folder, stored)
    if len(folder.parents) >= LEVELS_TO_COMPARISON:
        comparison = folder.parents[LEVELS_TO_COMPARISON - 1]
        if "comparison" in _read_settings(comparison):
            return _find_whole(comparison)
    return folder, stored


def _read_settings(folder: Path) -> Mapping[str, Any]:
    """Read settings without a check of the folder, which may be damaged elsewhere."""
    try:
        stored = parse_json(read_file(folder / SETTINGS))
    except (OSError, ValueError):
        return {}
    return stored if isinstance(stored, dict) else {}
