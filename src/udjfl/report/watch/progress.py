"""All runs below a folder: how far they are, and how long they will take."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from udjfl._files import parse_json, read_file
from udjfl._ids import id_sort_key
from udjfl.errors import StorageError
from udjfl.training.follow import MOST_BYTES, FollowedRun, is_being_written

WINDOW = 60.0  # seconds over which the speed is measured


@dataclass(frozen=True)
class Snapshot:
    """The state of all runs at one moment.

    runs            in the order of their folders' names
    done, total     rounds of all runs, of those that have not started too
    seconds_left    None while the speed is not known
    is_finished     all runs have their results
    """

    folder: Path
    runs: tuple[FollowedRun, ...]
    done: int
    total: int
    seconds_left: float | None
    is_finished: bool


class Watcher:
    """Follows every run below a folder. Runs may appear, be replaced and disappear."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time.time) -> None:
        self.folder, self.clock = folder, clock
        self._runs: dict[Path, FollowedRun] = {}
        self._seen: deque[tuple[float, int]] = deque()

    def refuse_unreadable(self) -> None:
        """Raise a `StorageError` for settings that are damaged: what is to come is not known.

        Those of a folder that is being written are left alone. Nothing else would ever end the
        watch.
        """
        for path in self.folder.rglob("settings.json"):
            try:
                is_table = isinstance(parse_json(read_file(path, MOST_BYTES)), dict)
            except OSError:
                continue  # it is being replaced
            except ValueError:
                is_table = False
            if not is_table and not is_being_written(path.parent):
                raise StorageError(
                    f"{path} is damaged, and nothing writes there: what is to come is not known. "
                    f"`udjfl check {self.folder}` says what is whole"
                )

    def look(self) -> Snapshot:
        """Read what is new and return the state of all runs."""
        comparisons: dict[Path, Mapping[str, Any]] = {}
        runs: dict[Path, FollowedRun] = {}
        for path in sorted(self.folder.rglob("settings.json"), key=lambda p: id_sort_key(str(p))):
            comparison = _read_comparison(path)
            if comparison is not None:
                comparisons[path.parent] = comparison
            else:
                runs[path.parent] = self._runs.get(path.parent) or FollowedRun(path.parent)
        self._runs = runs
        for run in runs.values():
            run.update()
        done = sum(min(run.reached, run.rounds or run.reached) for run in runs.values())
        total = _count_rounds(runs, comparisons)
        is_finished = bool(runs) and _are_finished(runs, comparisons)
        left = 0.0 if is_finished else self._estimate(done, total)
        return Snapshot(self.folder, tuple(runs.values()), done, total, left, is_finished)

    def _estimate(self, done: int, total: int) -> float | None:
        """Return the seconds that the rest will take at the speed of the last minute."""
        now = self.clock()
        if self._seen and done < self._seen[-1][1]:
            self._seen.clear()  # a run began anew
        self._seen.append((now, done))
        while len(self._seen) > 2 and self._seen[1][0] <= now - WINDOW:
            self._seen.popleft()
        since, before = self._seen[0]
        if done == before or now <= since:
            return None
        return (total - done) * (now - since) / (done - before)


def _read_comparison(path: Path) -> Mapping[str, Any] | None:
    """Return the settings of a comparison, None if the folder is that of a single run."""
    try:
        settings = parse_json(read_file(path, MOST_BYTES))
    except (OSError, ValueError):
        return None
    is_comparison = isinstance(settings, dict) and isinstance(settings.get("comparison"), dict)
    return settings if is_comparison else None


def _count_rounds(
    runs: Mapping[Path, FollowedRun], comparisons: Mapping[Path, Mapping[str, Any]]
) -> int:
    """Add up the rounds of all runs, with those that a comparison has not started yet."""
    total = sum(max(run.rounds, run.reached) for run in runs.values())
    for folder, settings in comparisons.items():
        chosen = settings["comparison"]
        methods, seeds, rounds = settings.get("methods"), chosen.get("seeds"), chosen.get("rounds")
        if isinstance(methods, list) and isinstance(seeds, list) and isinstance(rounds, int):
            started = sum(path.is_relative_to(folder) for path in runs)
            total += max(0, len(methods) * len(seeds) - started) * rounds
    return total


def _are_finished(
    runs: Mapping[Path, FollowedRun], comparisons: Mapping[Path, Mapping[str, Any]]
) -> bool:
    """Tell if everything has its results; a run that failed has none, its comparison has."""
    closed = [folder for folder in comparisons if (folder / "comparison.json").exists()]
    return len(closed) == len(comparisons) and all(
        run.status == "finished" or any(path.is_relative_to(folder) for folder in closed)
        for path, run in runs.items()
    )
