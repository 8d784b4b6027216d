"""The list of submitted runs: a line of JSON for each, the latest last."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Submitted:
    """A run that was submitted: its name, its folder and Flower's id of it.

    `time` is when, in seconds since 1970; `first_round` the rounds that it had before.
    """

    name: str
    out: Path
    run_id: int
    time: float
    first_round: int = 0


def append_submitted(path: Path, submitted: Submitted) -> None:
    """Add a run to the list."""
    line = json.dumps({**asdict(submitted), "out": str(submitted.out)})
    with path.open("a+b") as file:
        size = file.seek(0, os.SEEK_END)
        if size:
            file.seek(size - 1)
            # After a power cut the last line may be torn; a new one must not become part of it.
            line = line if file.read(1) == b"\n" else f"\n{line}"
        file.write(f"{line}\n".encode())


def read_submitted(path: Path) -> list[Submitted]:
    """Return the runs in the list, without lines that are damaged."""
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        return []
    read = []
    for line in lines:
        try:
            entry = json.loads(line)
            entry = {**entry, "out": Path(entry["out"]), "run_id": int(entry["run_id"])}
            read.append(Submitted(**entry))
        except (ValueError, TypeError, KeyError):
            continue
    return read
