"""Comparisons read back from their folders, finished or not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from udjfl.errors import StorageError
from udjfl.report.saved_runs import MethodKey, SavedRun, compare_runs, find_runs, method_key
from udjfl.simulation.comparison import Comparison
from udjfl.training.file_names import RESULT, SETTINGS
from udjfl.training.folder_check import open_whole
from udjfl.training.follow import is_being_written
from udjfl.training.record_file import RECORDS
from udjfl.training.resuming import advise_to_resume
from udjfl.training.run_folder import RunFolder

WRITTEN_LAST = "comparison.json"


@dataclass(frozen=True)
class Unfinished:
    """A comparison some of whose runs are not finished.

    seeds   those that every method has
    """

    folder: Path
    finished: int
    planned: int
    seeds: tuple[int, ...]

    @property
    def count(self) -> str:
        """The number of finished runs, of all."""
        return f"{self.finished} of {self.planned} runs"

    @property
    def advice(self) -> str:
        """The command that trains the rest; while a process does so, the one that shows it."""
        if is_being_written(self.folder):
            return f"`udjfl watch {self.folder}` shows the rest, which is being trained"
        return f"{advise_to_resume(self.folder)} trains the rest"

    def __str__(self) -> str:
        if not self.seeds:
            shown = "no seed has a run of every method yet"
        elif len(self.seeds) == 1:
            shown = "below is the only seed that every method has"
        else:
            shown = f"below are the {len(self.seeds)} seeds that every method has"
        return f"Not finished: {self.count}. {self.advice}; {shown}."


def read_comparison(folder: Path) -> Comparison:
    """Read the comparison in a folder; of one that is not finished, the seeds of all methods."""
    return compare_found(find_runs([folder]), [folder], find_unfinished([folder]))


def compare_found(
    runs: Sequence[SavedRun], paths: Sequence[Path], unfinished: Sequence[Unfinished]
) -> Comparison:
    """Compare the runs that were found below these paths, on seeds that all methods have."""
    for damage in find_damage(paths):
        raise damage
    for each in unfinished:
        if not each.seeds:
            raise StorageError(
                f"{each.folder} is not finished, and no seed has a run of every method yet: there "
                f"are {each.count}; {each.advice}"
            )
    comparison = compare_runs(drop_partial_seeds(runs, unfinished), find_order(paths))
    return replace(comparison, unfinished=" ".join(map(str, unfinished)) or None)


def drop_partial_seeds(
    runs: Sequence[SavedRun], unfinished: Sequence[Unfinished]
) -> list[SavedRun]:
    """Leave out the runs of unfinished comparisons on seeds that some method does not have."""
    return [
        run
        for run in runs
        if not any(
            each.folder in run.folder.parents and run.seed not in each.seeds for each in unfinished
        )
    ]


def find_unfinished(paths: Sequence[Path]) -> list[Unfinished]:
    """Find the comparisons at and below these paths that are not finished."""
    roots = [root for path in paths for root in find_comparisons(path)]
    missing = [root for root in dict.fromkeys(roots) if not (root / WRITTEN_LAST).exists()]
    return [_count_runs(root) for root in missing]


def find_damage(paths: Sequence[Path]) -> Iterator[StorageError]:
    """Yield an error for each comparison in these paths that has a damaged file of its own."""
    for root in dict.fromkeys(root for path in paths for root in find_comparisons(path)):
        try:
            open_whole(root)
        except StorageError as error:
            yield error


def find_comparisons(path: Path) -> list[Path]:
    """Return the folders of comparisons at and below a path."""
    return [f.parent for f in sorted(path.rglob(SETTINGS)) if is_comparison(f.parent)]


def is_comparison(folder: Path) -> bool:
    """Tell if this is the folder of a comparison, and not of one of its runs."""
    if (folder / RECORDS).exists() or (folder / RESULT).exists():
        return False
    if (folder / WRITTEN_LAST).exists():
        return True
    try:
        settings = RunFolder.open(folder).read_json(SETTINGS)
    except StorageError:
        return False
    return isinstance(settings, dict) and "comparison" in settings


def find_order(paths: Sequence[Path]) -> list[MethodKey]:
    """Return the methods in the order in which the comparisons below these paths name them."""
    roots = [root for path in paths for root in find_comparisons(path)]
    return list(dict.fromkeys(key for root in roots for key in _planned_methods(root)))


def _planned_methods(root: Path) -> list[MethodKey]:
    try:
        methods = _read_plan(root)["methods"]
        return [method_key(method["method"], method["params"]) for method in methods]
    except (StorageError, KeyError, TypeError):
        return []  # its runs are shown all the same, in the order of the catalogue


def _read_plan(root: Path) -> Mapping[str, Any]:
    return RunFolder.open(root).read_settings("comparison", "methods")


def _count_runs(root: Path) -> Unfinished:
    plan = _read_plan(root)
    try:
        seeds = [int(seed) for seed in plan["comparison"]["seeds"]]
        n_methods = len(plan["methods"])
    except (KeyError, TypeError, ValueError):
        raise StorageError(
            f"{root / SETTINGS} is damaged; restore it, or start the comparison again elsewhere"
        ) from None
    finished = {seed: len(list((root / f"seed-{seed}").glob(f"*/{RESULT}"))) for seed in seeds}
    whole = tuple(seed for seed in seeds if finished[seed] >= n_methods)
    return Unfinished(root, sum(finished.values()), len(seeds) * n_methods, whole)


def count_unfinished(path: Path) -> list[str]:
    """Say of each comparison and run below a path how much is not finished, and how to go on."""
    lines = []
    comparisons = find_comparisons(path)
    for each in find_unfinished([path]):
        missing = each.planned - each.finished
        lines.append(f"{missing} of {each.planned} runs are not finished: {each.advice}.")
    for settings in sorted(path.rglob(SETTINGS)):
        folder = settings.parent
        in_comparison = any(root in (folder, *folder.parents) for root in comparisons)
        if in_comparison or (folder / RESULT).exists() or not _is_run(folder):
            continue
        lines.append(f"{folder} is not finished: {advise_to_resume(folder)} goes on.")
    return lines


def _is_run(folder: Path) -> bool:
    try:
        return "training" in RunFolder.open(folder).read_settings()
    except StorageError:
        return False  # the check of its files says so
