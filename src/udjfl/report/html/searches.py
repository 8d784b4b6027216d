"""The searches among the folders of a report: a frontier, and a tuning with its test."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from udjfl.errors import StorageError, UdjflError
from udjfl.search.frontier import DESCRIPTION, Frontier
from udjfl.search.tune import CHOICE, TEST, HeldOutChoice
from udjfl.training.run_folder import RunFolder

Search = TypeVar("Search", Frontier, HeldOutChoice)


@dataclass(frozen=True)
class Problem:
    """A folder that could not be used in full, and why."""

    folder: str
    text: str


@dataclass(frozen=True)
class Searches:
    """The frontier and the tuning among some folders.

    folders   of searches
    others    folders with runs
    """

    frontier: Frontier | None
    tuning: HeldOutChoice | None
    folders: list[Path]
    others: list[Path]
    problems: list[Problem]


def read_searches(paths: Sequence[Path]) -> Searches:
    """Read the first frontier and the first tuning among these folders, and list the others."""
    frontiers = [path for path in paths if (path / DESCRIPTION).exists()]
    tunings = [path for path in paths if is_tuning(path)]
    problems: list[Problem] = []
    frontier = _read_first(frontiers, Frontier.load, "frontier", problems)
    tuning = _read_first(tunings, HeldOutChoice.load, "tuning", problems)
    # What a tuning chose was tested; those runs are in a folder of their own below it.
    others = [p for p in paths if p not in frontiers and p not in tunings]
    tested = [path / TEST for path in tunings if (path / TEST).exists()]
    return Searches(frontier, tuning, [*frontiers, *tunings], [*others, *tested], problems)


def is_tuning(path: Path) -> bool:
    """Tell if this is a folder of `udjfl tune`, finished or not."""
    if (path / CHOICE).exists():
        return True
    try:
        settings = RunFolder.open(path).read_json("settings.json")
    except StorageError:
        return False
    return isinstance(settings, dict) and "tune" in settings


def _read_first(
    paths: Sequence[Path],
    load: Callable[[Path], Search],
    kind: str,
    problems: list[Problem],
) -> Search | None:
    found: Search | None = None
    for path in paths:
        try:
            if found is not None:
                raise StorageError(f"a second {kind}; make a report of its own for it")
            found = load(path)
        except UdjflError as error:
            problems.append(Problem(path.name, str(error).replace(f"{path}/", "")))
    return found
