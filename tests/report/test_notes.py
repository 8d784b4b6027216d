"""Notes of several seeds are one line where they differ in their details only."""

from __future__ import annotations

import io
from dataclasses import replace

from paired_comparison import compare_gains
from rich.console import Console

import udjfl
from udjfl.methods.budget_notes import note_caution
from udjfl.report.comparison_table import comparison_view
from udjfl.report.html.material import Material
from udjfl.report.html.page import render_page
from udjfl.report.notes import join_notes, note_equal_rows
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


def test_budgets_that_caution_makes_alike_are_one_line() -> None:
    row = compare_gains({udjfl.method("rawls"): [0.0] * 5}).rows[0]
    one = [note_caution(1.0, 384, 0.0584), "Held: f."]
    others = [note_caution(5.0, 384, 0.0611), note_caution(2.0, 380, 0.0584)]
    assert join_notes([replace(row, notes=one), replace(row, notes=others)]) == [
        "budget=1, 2, 5: the scores of 380 to 384 examples cannot tell 5 points from chance (about "
        "5.8 to 6.1 would be needed), so the goal is FedAvg's own mean; every budget below 5.8 "
        "does the same. caution=0 takes the risk.",
        "Held: f.",
    ]
    assert join_notes([replace(row, notes=one)]) == one


def test_rows_that_are_equal_to_the_last_digit_are_named() -> None:
    """The gains have a wiggle by seed, so that FedAvg is like none of them."""
    gains = {"fedprox:mu=0": 1.0, "qffl:q=0": 1.0, "afl": 1.0 + 1e-12, "term": 2.0}
    comparison = compare_gains({udjfl.method(name): [gain] * 5 for name, gain in gains.items()})
    note = "FedProx (mu=0) and q-FFL (q=0) gave every client the same accuracy on every seed."
    assert note_equal_rows(comparison.rows) == [note]
    assert note_equal_rows(comparison.rows[:2]) == []
    shown = io.StringIO()
    Console(file=shown, width=200).print(comparison_view(comparison))
    assert note in shown.getvalue()
    material = Material("by hand", comparison.seeds, comparison.rows, comparison, "")
    assert note in render_page(material)
