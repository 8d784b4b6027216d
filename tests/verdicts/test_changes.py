"""Changes of one number from FedAvg to a method, by hand."""

from __future__ import annotations

from udjfl.verdicts.changes import change_from_zero, compare_values


def test_seeds_where_a_number_is_missing_are_left_out() -> None:
    change = compare_values("score", [90.0, None, 94.0, 80.0], [89.0, 50.0, 91.0, None])
    assert (change.before, change.after) == (90.0, 92.0)
    assert change.differences == (1.0, 3.0)
    assert (change.difference, change.test.n) == (2.0, 2)


def test_without_any_number_there_is_no_change() -> None:
    change = change_from_zero("gain", [None, None])
    assert (change.before, change.after, change.differences) == (None, None, ())
    assert change.difference == 0.0
    assert change.as_dict()["difference"] is None
