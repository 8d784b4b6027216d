"""Run folders that were checked, as a table and as plain values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from udjfl.training.folder_check import FolderStatus

STYLES = {"whole": "green", "damaged": "bold red", "missing": "yellow"}


def describe_folders(
    folders: Sequence[FolderStatus], unfinished: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the state of every file as plain values, and what is not finished."""
    return {
        "unfinished": list(unfinished),
        "whole": all(folder.is_whole for folder in folders),
        "folders": [
            {
                "folder": str(folder.path),
                "whole": folder.is_whole,
                "error": folder.error,
                "files": [
                    {"name": file.name, "state": file.state, "note": file.note}
                    for file in folder.files
                ],
            }
            for folder in folders
        ],
    }


def folders_view(folders: Sequence[FolderStatus], unfinished: Sequence[str] = ()) -> RenderableType:
    """Show one folder file by file; of several, the files that are not whole.

    `unfinished` are lines that say what is not finished, and how to go on.
    """
    parts: list[RenderableType] = []
    for folder in folders:
        files = [f for f in folder.files if len(folders) == 1 or f.state != "whole"]
        if not files and folder.error is None:
            continue
        parts.append(Text(str(folder.path)))
        if folder.error is not None:
            parts.append(Text(f"  {folder.error}", style=STYLES["damaged"]))
        table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
        for number in range(3):
            table.add_column(overflow="fold", no_wrap=number < 2)
        for file in files:
            state = Text(file.state, style=STYLES.get(file.state, ""))
            table.add_row(Text(f"  {file.name}"), state, Text(file.note))
        parts.append(table)
    return Group(*parts, _summarise(folders), *map(Text, unfinished))


def _summarise(folders: Sequence[FolderStatus]) -> Text:
    states = Counter(file.state for folder in folders for file in folder.files)
    states["damaged"] += sum(folder.error is not None for folder in folders)
    counts = ", ".join(f"{count} {state}" for state, count in states.items() if count)
    files, n = sum(states.values()), len(folders)
    noun = "file" if files == 1 else "files"
    place = "1 folder" if n == 1 else f"{n} folders"
    if files and files == states["whole"]:
        counts = "whole" if files == 1 else "all whole"
    return Text(f"{files} {noun} in {place}: {counts}.")
