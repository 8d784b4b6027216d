"""Runs followed from outside while they are written: rounds, curves and absences so far.

Only files are read, so that a run of the simulator, of a comparison or of Flower is followed alike,
by any process, and without disturbing it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from udjfl._files import open_file, parse_json, read_file
from udjfl.training.folder_lock import FolderLock
from udjfl.training.records import Record, parse_record

BLOCK = 1 << 20  # bytes
MOST_BYTES = 1 << 26  # of settings
MOST_ROUNDS = 120  # of one metric; more are thinned out
FOLLOWED = ("test_accuracy", "score", "test_loss", "train_loss", "weight", "step_share")
MISSED = ("absent", "excluded")
_NAMES = tuple(f'"{name}"'.encode() for name in (*FOLLOWED, *MISSED))
Points = dict[int, float]  # by round


class RecordFollower:
    """Reads records.jsonl as it grows. A line that is half written is left for the next time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._identity: tuple[int, int] | None = None
        self._offset = 0
        self._rest = b""

    def has_restarted(self) -> bool:
        """Tell if the file is another one, or shorter than what was read of it; then forget it."""
        try:
            status = self.path.stat()
        except OSError:
            gone = self._identity is not None
        else:
            same = self._identity in (None, (status.st_dev, status.st_ino))
            gone = not same or status.st_size < self._offset
        if gone:
            self._identity, self._offset, self._rest = None, 0, b""
        return gone

    def read_lines(self) -> Iterator[bytes]:
        """Yield the lines that were completed since the last call."""
        with suppress(OSError), open_file(self.path, os.O_RDONLY) as descriptor:
            status = os.fstat(descriptor)
            self._identity = (status.st_dev, status.st_ino)
            while block := os.pread(descriptor, BLOCK, self._offset):
                self._offset += len(block)
                *lines, self._rest = (self._rest + block).split(b"\n")
                yield from lines
                if len(self._rest) > BLOCK:  # no record is that long
                    yield self._rest
                    self._rest = b""


def read_record(line: bytes) -> Record | None:
    """Return the record of a line, None if it is damaged."""
    try:
        return parse_record(line)
    except ValueError:
        return None


@dataclass
class Missed:
    """The rounds that a client missed: how many, the last one, and the reason given then."""

    rounds: int
    last: int
    reason: str


@dataclass
class FollowedRun:
    """One run folder, and what its records say so far.

    settings   of settings.json; empty while it cannot be read
    reached    the last round with records
    points     metric -> client -> value by round; client None: of the whole round
    missed     by client
    damaged    lines that could not be read
    """

    path: Path
    settings: dict[str, Any] = field(default_factory=dict)
    reached: int = 0
    points: dict[str, dict[str | None, Points]] = field(default_factory=dict)
    missed: dict[str, Missed] = field(default_factory=dict)
    damaged: int = 0

    def __post_init__(self) -> None:
        self._records = RecordFollower(self.path / "records.jsonl")
        self._settings_version: tuple[int, int] | None = None
        self._rounds: dict[str, list[int]] = {}  # of each metric that are in `points`

    @property
    def rounds(self) -> int:
        """The number of rounds that the settings ask for; 0 if they cannot be read."""
        training = self.settings.get("training")
        rounds = training.get("rounds") if isinstance(training, dict) else None
        return rounds if isinstance(rounds, int) else 0

    @property
    def status(self) -> str:
        """Return "finished", "training", "preparing" (no round yet) or "stopped"."""
        if (self.path / "result.json").exists():
            return "finished"
        if not is_being_written(self.path):
            return "stopped"
        return "training" if self.reached else "preparing"

    def update(self) -> None:
        """Read what was written since the last call; begin anew if the run was replaced."""
        is_other = self._read_settings()
        if self._records.has_restarted() or is_other:
            self.reached, self.damaged = 0, 0
            self.points, self.missed, self._rounds = {}, {}, {}
            self._records = RecordFollower(self._records.path)
        last = b""
        for line in self._records.read_lines():
            last = line
            # Most lines of a large run are of metrics that are not followed: not worth parsing.
            if any(name in line for name in _NAMES):
                self._add(line)
        record = read_record(last) if last else None
        if record is not None:
            self.reached = max(self.reached, record.round)

    def _read_settings(self) -> bool:
        """Read settings.json if it changed; tell if this is another run than before."""
        path = self.path / "settings.json"
        try:
            status = path.stat()
            version = (status.st_ino, status.st_mtime_ns)
            if version == self._settings_version:
                return False
            settings = parse_json(read_file(path, MOST_BYTES))
        except (OSError, ValueError):
            return False  # being replaced, or damaged: what was known stays
        was_known, self._settings_version = self._settings_version is not None, version
        self.settings = settings if isinstance(settings, dict) else {}
        return was_known

    def _add(self, line: bytes) -> None:
        record = read_record(line)
        if record is None:
            self.damaged += 1
            return
        round, client, metric, value = record
        self.reached = max(self.reached, round)
        if metric in MISSED and client is not None:
            before = self.missed.get(client)
            count = 1 if before is None else before.rounds + 1
            self.missed[client] = Missed(count, round, str(value))
        elif metric in FOLLOWED and isinstance(value, int | float):
            self.points.setdefault(metric, {}).setdefault(client, {})[round] = float(value)
            self._thin_out(metric, round)

    def _thin_out(self, metric: str, round: int) -> None:
        """Forget every second round of a metric that has too many, but not the newest."""
        rounds = self._rounds.setdefault(metric, [])
        if rounds and rounds[-1] == round:
            return
        rounds.append(round)
        if len(rounds) <= MOST_ROUNDS:
            return
        forgotten, self._rounds[metric] = rounds[-2::-2], rounds[::-2][::-1]
        for points in self.points[metric].values():
            for r in forgotten:
                points.pop(r, None)


def is_being_written(folder: Path) -> bool:
    """Tell if a process holds the folder; one that was killed on this machine does not."""
    return FolderLock(folder).is_owned()
