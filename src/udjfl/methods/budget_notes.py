"""Sentences on budgets that are too small to be told from chance, for readers of results."""

from __future__ import annotations

import re
from collections.abc import Sequence

CAUTION_NOTE = (
    "budget={budgets}: the scores of {examples} examples cannot tell {points} from chance (about "
    "{needed} would be needed), so the goal is FedAvg's own mean; every budget below {least} does "
    "the same. caution=0 takes the risk."
)
_GIVEN = {
    "budgets": r"(?P<budgets>[\d.e+-]+)",
    "examples": r"(?P<examples>\d+)",
    "points": r"[\d.e+-]+ points?",
    "needed": r"(?P<needed>\d+\.\d)",
    "least": r"\d+\.\d",
}
_PATTERN = re.compile(
    re.sub(r"\\\{(\w+)\\\}", lambda name: _GIVEN[name[1]], re.escape(CAUTION_NOTE))
)


def note_caution(budget: float, examples: int, margin: float) -> str:
    """Say that the goal was FedAvg's own mean, since caution asks for more than the budget.

    `margin` is what caution asks for, as a fraction; the budget is in points.
    """
    return _sentence([f"{budget:g}"], [str(examples)], [f"{100 * margin:.1f}"])


def join_cautions(notes: Sequence[str]) -> list[str]:
    """Make one sentence of those of `note_caution`, which differ by budget and seed; it is first.

    The other notes stay as they are.
    """
    found = [match for note in notes if (match := _PATTERN.fullmatch(note))]
    others = [note for note in notes if not _PATTERN.fullmatch(note)]
    if len(found) < 2:
        return list(notes)
    budgets = sorted({match["budgets"] for match in found}, key=float)
    examples = sorted({match["examples"] for match in found}, key=int)
    needed = sorted({match["needed"] for match in found}, key=float)
    return [_sentence(budgets, examples, needed), *others]


def _sentence(budgets: Sequence[str], examples: Sequence[str], needed: Sequence[str]) -> str:
    largest = budgets[-1]
    return CAUTION_NOTE.format(
        budgets=", ".join(budgets),
        examples=_range(examples),
        points="1 point" if largest == "1" else f"{largest} points",
        needed=_range(needed),
        least=needed[0],
    )


def _range(values: Sequence[str]) -> str:
    return values[0] if len(values) == 1 else f"{values[0]} to {values[-1]}"
