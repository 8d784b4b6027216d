"""Sentences on budgets that are too small to be told from chance."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from udjfl.methods.budget_notes import join_cautions, note_caution


def test_the_sentence() -> None:
    assert note_caution(1.0, 384, 0.0584) == (
        "budget=1: the scores of 384 examples cannot tell 1 point from chance (about 5.8 would be "
        "needed), so the goal is FedAvg's own mean; every budget below 5.8 does the same. "
        "caution=0 takes the risk."
    )


@given(
    st.lists(st.floats(1e-6, 100, allow_nan=False), min_size=2, max_size=4, unique=True),
    st.integers(1, 10**9),
    st.floats(0.001, 50),
)
def test_whatever_the_numbers_they_are_joined(
    budgets: list[float], examples: int, margin: float
) -> None:
    notes = [note_caution(budget, examples, margin) for budget in budgets]
    assert len(join_cautions([*notes, "Another."])) == 2


def test_other_notes_stay() -> None:
    assert join_cautions(["One.", "Two."]) == ["One.", "Two."]
    assert join_cautions([]) == []


def test_numbers_are_joined_in_the_order_of_their_values() -> None:
    given = [(10.0, 900, 0.104), (9.0, 1000, 0.098), (2.0, 900, 0.104)]
    assert join_cautions([note_caution(*numbers) for numbers in given]) == [
        "budget=2, 9, 10: the scores of 900 to 1000 examples cannot tell 10 points from chance "
        "(about 9.8 to 10.4 would be needed), so the goal is FedAvg's own mean; every budget below "
        "9.8 does the same. caution=0 takes the risk."
    ]
