"""Targets: columns and comparisons, and labels as class numbers."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from udjfl.data.tables.labels import OPERATORS, Target, read_labels
from udjfl.errors import DataError


def read(target: str, **columns: list[object]) -> tuple[dict[str, list[int]], tuple[str, ...]]:
    """Return the class numbers of clients that have one column `y` each."""
    frames = {client: pd.DataFrame({"y": values}) for client, values in columns.items()}
    labels = read_labels(frames, Target.parse(target, ["y"]))
    return {client: own.tolist() for client, own in labels.numbers.items()}, labels.class_names


@pytest.mark.parametrize(
    ("one", "two", "numbers", "names"),
    [
        (["b", " a"], ["c", None], ([1, 0], [2, -1]), ("a", "b", "c")),
        ([10, 2], [2.0, np.nan], ([1, 0], [0, -1]), ("2", "10")),  # sorted as numbers
        ([1000001, 1000002], [1000002.0, np.nan], ([0, 1], [1, -1]), ("1000001", "1000002")),
        ([True, False], [True, None], ([1, 0], [1, -1]), ("False", "True")),
    ],
)
def test_classes_are_numbered_over_all_clients(
    one: list[object], two: list[object], numbers: tuple[list[int], ...], names: tuple[str, ...]
) -> None:
    assert read("y", one=one, two=two) == (dict(zip(("one", "two"), numbers, strict=True)), names)


def test_a_comparison_makes_two_classes() -> None:
    numbers, names = read("y>15", one=[15, 15.5, np.nan])
    assert numbers == {"one": [0, 1, -1]}
    assert names == ("y<=15", "y>15")
    assert read("y == b", one=["a", " b", None])[0] == {"one": [0, 1, -1]}


@given(st.sampled_from(sorted(OPERATORS)), st.floats(-1e3, 1e3), st.floats(-1e3, 1e3))
def test_comparisons_are_those_of_python(sign: str, value: float, bound: float) -> None:
    compared = Target.parse(f"y{sign}{bound!r}", ["y"]).compare(pd.Series([value]))
    assert compared.tolist() == [int(OPERATORS[sign](value, bound))]


def test_a_column_whose_name_looks_like_a_comparison_is_a_column() -> None:
    assert Target.parse("a>b", ["a>b", "a"]) == Target("a>b")


@pytest.mark.parametrize(
    "text", ["y.mean()", "__import__('os')", "@y", "y + 1 > 2", "y > 1 and z < 2 or y"]
)
def test_nothing_else_is_an_expression(text: str) -> None:
    """No code is run: what is not `column operator value` names no column, or no number."""
    with pytest.raises(DataError, match="target"):
        read(text, one=[1, 2])


@pytest.mark.parametrize(
    ("target", "values", "words"),
    [
        ("y", ["a", "a"], "only 'a' in the whole federation"),
        ("y", [None, None], "no labels in the whole federation"),
        ("y", [0.5, 1.5, 2.5], "3 different numbers, from 0.5 to 2.5.*compare, as in 'y>1.5'"),
        ("y", list(range(200)), "200 different numbers"),
        ("y>a", [1, 2], "'a' is none: compare it with a number"),
        ("y>a", ["b", "c"], "has texts: compare them with == or != only"),
    ],
)
def test_targets_that_make_no_classes(target: str, values: list[object], words: str) -> None:
    with pytest.raises(DataError, match=words):
        read(target, one=values)


def test_labels_of_another_type_name_the_client() -> None:
    with pytest.raises(DataError) as raised:
        read("y", one=[0, 1], two=["yes", "no"], three=[1, 1])
    assert str(raised.value) == (
        "client 'two', column 'y': labels are texts ('yes', 'no'), elsewhere numbers ('0', '1'): "
        "write them in one way"
    )


def test_classes_that_differ_in_case_name_clients_and_spellings() -> None:
    with pytest.raises(DataError) as raised:
        read("y", one=["ill", "healthy"], two=["Ill", "healthy"], three=["Ill", "ill"])
    assert str(raised.value) == (
        "column 'y': client 'one' has 'ill', client 'two' has 'Ill', which differ in case only: "
        "write them in one way"
    )


@pytest.mark.parametrize(
    ("target", "values", "words"),
    [
        ("y==sick", ["ill", "healthy"], "no row has 'y==sick'; there are 'healthy', 'ill'"),
        ("y!=sick", ["ill", "healthy"], "every row has 'y!=sick'; there are 'healthy', 'ill'"),
        ("y>9", [1, 2, None], "no row has 'y>9'; there are numbers from 1 to 2"),
    ],
)
def test_comparisons_that_hold_for_all_or_none(
    target: str, values: list[object], words: str
) -> None:
    with pytest.raises(DataError, match=words):
        read(target, one=values)
    # A client alone, with classes agreed on: the others may have the rest.
    frames = {"one": pd.DataFrame({"y": values})}
    made = Target.parse(target, ["y"])
    assert read_labels(frames, made, made.class_names or ()).class_names == made.class_names


def test_ages_are_no_classes_and_labels_are() -> None:
    with pytest.raises(DataError, match=r"60 different numbers, from 20 to 79.*--task"):
        read("y", one=[20 + i % 60 for i in range(480)])
    digits, letters = [i % 10 for i in range(30)], [i % 26 for i in range(26 * 20)]
    assert len(read("y", one=digits)[1]) == 10
    assert len(read("y", one=letters)[1]) == 26
