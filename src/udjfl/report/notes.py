"""Notes of methods on a federation, over all seeds."""

from __future__ import annotations

from collections.abc import Sequence

from udjfl.methods.budget_notes import join_cautions
from udjfl.report.cells import served
from udjfl.simulation.method_summary import MethodSummary
from udjfl.uncertainty import INDISTINCT

MOST_PAIRS = 4


def note_equal_rows(rows: Sequence[MethodSummary]) -> list[str]:
    """Name the methods that gave every client the same score on every seed, to the last digit."""
    alike: dict[tuple[object, ...], list[str]] = {}
    for row in rows:
        scores = tuple(tuple(summary.values) for summary in row.client_scores.values())
        if any(value is not None for values in scores for value in values):
            name = ", ".join(part for part in (row.label, served(row)) if part)
            alike.setdefault(scores, []).append(name)
    return [
        f"{', '.join(names[:-1])} and {names[-1]} gave every client the same "
        f"{rows[0].score.title} on every seed."
        for names in alike.values()
        if len(names) > 1
    ]


def join_notes(rows: Sequence[MethodSummary]) -> list[str]:
    """Return the notes of all rows, each once.

    Which uncertainties cannot be told apart differs by seed, and so does which budget is too small
    to be told from chance: each becomes one line.
    """
    notes = join_cautions(list(dict.fromkeys(note for row in rows for note in row.notes)))
    apart = [note for note in notes if note.startswith(f"{INDISTINCT}: ")]
    if len(apart) < 2:
        return notes
    others = [note for note in notes if note not in apart]
    return [*others, _join_pairs(apart)]


def _join_pairs(notes: Sequence[str]) -> str:
    pairs = {
        " and ".join(sorted(pair.split(" and ")))
        for note in notes
        for pair in note.removeprefix(f"{INDISTINCT}: ").removesuffix(".").split("; ")
    }
    left = len(pairs) - MOST_PAIRS
    rest = f"; and {left} more" if left > 0 else ""
    return f"{INDISTINCT}, on some seeds: {'; '.join(sorted(pairs)[:MOST_PAIRS])}{rest}."
