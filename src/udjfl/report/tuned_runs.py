"""A tuning read back from its folder: the choice, and its test if that is finished."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from udjfl.report.saved_comparison import WRITTEN_LAST, read_comparison
from udjfl.search.tune import CHOICE, TEST, HeldOutChoice, Tuned
from udjfl.simulation.comparison import Comparison
from udjfl.training.folder_check import refuse_damage
from udjfl.training.run_folder import RunFolder


def read_tuned(folder: Path) -> tuple[HeldOutChoice, Tuned | None]:
    """Read a choice, and the same with its test; None while the test is not finished."""
    choice = HeldOutChoice.load(folder)
    if not (folder / TEST / WRITTEN_LAST).exists():
        return choice, None
    return choice, Tuned(choice, hold_to_limits(read_comparison(folder / TEST), choice))


def refuse_damaged_tunings(paths: Sequence[Path]) -> None:
    """Raise an error if a file of a finished tuning in these folders or below them is damaged."""
    for path in paths:
        for choice in sorted(path.rglob(CHOICE)):
            # A file of that name elsewhere is somebody's own.
            if RunFolder(choice.parent).holds_a_run:
                refuse_damage(RunFolder.open(choice.parent))


def hold_to_limits(test: Comparison, choice: HeldOutChoice) -> Comparison:
    """Judge all methods by the budget that was asked for, whatever budget the chosen rule has."""
    return replace(test, margin=choice.limits.budget, margin_for_all=True)
