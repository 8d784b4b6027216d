"""The order of clients."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from udjfl._ids import id_sort_key, sort_ids


def test_numbers_in_ids_are_sorted_by_value() -> None:
    ids = [
        "client-10",
        "client-2",
        "client-1",
        "b",
        "10",
        "9",
        "client-1-10",
        "client-1-9",
        "a10b2",
        "a10b1",
    ]
    assert sort_ids(ids) == [
        "9",
        "10",
        "a10b1",
        "a10b2",
        "b",
        "client-1",
        "client-1-9",
        "client-1-10",
        "client-2",
        "client-10",
    ]


def test_equal_numbers_written_differently_have_one_order() -> None:
    for ids in itertools.permutations(["a01", "a1", "a001"]):
        assert sort_ids(ids) == ["a001", "a01", "a1"]


def test_an_id_with_more_digits_than_python_reads_has_a_place() -> None:
    long = "1" * 5000
    assert sort_ids([long + "2", long, "2"]) == ["2", long, long + "2"]


def test_texts_and_numbers_at_the_same_position_can_be_compared() -> None:
    assert sort_ids(["x", "1", "", "1x", "x1", "-1"]) == ["", "1", "1x", "-1", "x", "x1"]


@settings(max_examples=50, deadline=None, derandomize=True)
@given(
    st.lists(st.text(alphabet="ab-019٣²é ", max_size=6), unique=True),
    st.randoms(use_true_random=False),
)
def test_any_ids_in_any_order_give_one_order(ids: list[str], random: object) -> None:
    """Digits of other scripts, which int() reads, count as letters."""
    shuffled = ids.copy()
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert sort_ids(shuffled) == sort_ids(ids)
    assert sorted(sort_ids(ids)) == sorted(ids)
    assert len({repr(id_sort_key(name)) for name in ids}) == len(ids)
