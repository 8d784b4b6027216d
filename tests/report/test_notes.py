"""Notes of several seeds are one line where they differ in their details only."""

from __future__ import annotations

from dataclasses import replace

from paired_comparison import compare_gains

import udjfl
from udjfl.report.notes import join_notes
from udjfl.uncertainty import INDISTINCT as APART


def test_notes_that_differ_by_seed_are_joined() -> None:
    row = compare_gains({udjfl.method("rawls"): [0.0] * 5}).rows[0]
    notes = [f"{APART}: b and a; c and d.", f"{APART}: a and b.", "One class at e.", "Held: f."]
    assert join_notes([replace(row, notes=notes), replace(row, notes=notes[:1])]) == [
        "One class at e.",
        "Held: f.",
        f"{APART}, on some seeds: a and b; c and d.",
    ]
    many = [f"{APART}: a and {other}." for other in "bcdefg"]
    assert join_notes([replace(row, notes=many)]) == [
        f"{APART}, on some seeds: a and b; a and c; a and d; a and e; and 2 more."
    ]
    assert join_notes([replace(row, notes=many[:1]), row]) == many[:1]
    assert join_notes([replace(row, notes=[])]) == []
