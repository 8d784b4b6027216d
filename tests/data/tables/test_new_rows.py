"""New rows: prepared by the numbers of the training, and errors that name the column."""

from __future__ import annotations

import logging

import numpy as np
import pandas as pd
import pytest

from udjfl.data.tables.columns import Column, Schema
from udjfl.data.tables.new_rows import is_frame, prepare_rows
from udjfl.data.tables.preprocessing import Preprocessing
from udjfl.errors import DataError

SCHEMA = Schema((Column("age"), Column("town", (0.0, 1.0), ("Bath", "Ely"), may_miss=False)))
AGE = {"fill": 40.0, "mean": 50.0, "scale": 10.0}
NUMBERS = {
    "north": {"age": AGE, "town": {"fill": 1.0}},
    "south": {"age": None, "town": {"fill": 0.0}},  # it has no ages
    None: {"age": {**AGE, "mean": 30.0}, "town": {"fill": 0.0}},
}
DONE = Preprocessing(SCHEMA, "own", NUMBERS)


def test_numbers_are_those_of_the_client() -> None:
    frame = pd.DataFrame({"ill": [1, 0], " town": ["Bath", None], "age": [70, np.nan]})
    # Features: age, town=Bath, town=Ely, age missing.
    expected = {
        "north": [[2.0, 1, 0, 0], [-1.0, 0, 1, 1]],
        "south": [[0.0, 1, 0, 1], [0.0, 1, 0, 1]],
        None: [[4.0, 1, 0, 0], [1.0, 1, 0, 1]],
    }
    for client, features in expected.items():
        assert prepare_rows(frame, DONE, client).tolist() == features


def test_a_new_category_is_none_of_the_others(caplog: pytest.LogCaptureFixture) -> None:
    frame = pd.DataFrame({"age": [50, 50], "town": ["Hull", "Ely"]})
    with caplog.at_level(logging.WARNING, "udjfl"):
        assert prepare_rows(frame, DONE, "north").tolist() == [[0, 0, 0, 0], [0, 0, 1, 0]]
    assert "column 'town': 1 rows have categories" in caplog.text
    assert "'Hull'" in caplog.text


def test_a_column_may_be_absent_only_where_the_client_never_had_it() -> None:
    towns = pd.DataFrame({"town": ["Bath"]})
    assert prepare_rows(towns, DONE, "south").tolist() == [[0.0, 1, 0, 1]]
    with pytest.raises(DataError, match="there is no column 'age'"):
        prepare_rows(towns, DONE, "north")


def test_mistakes() -> None:
    frame = pd.DataFrame({"age": ["1", "x", "y"], "town": "Bath"})
    with pytest.raises(DataError, match="column 'age', row 2: 'x' is not a number, nor are 1 more"):
        prepare_rows(frame, DONE, "north")
    with pytest.raises(DataError, match=r"there is no 'nord'\. Did you mean 'north'"):
        prepare_rows(frame, DONE, "nord")


def test_frames_are_told_from_arrays() -> None:
    assert is_frame(pd.DataFrame({"a": [1]}))
    assert not is_frame(np.zeros((2, 2)))
    assert not is_frame([[1.0]])


def test_a_column_that_is_there_twice_is_named() -> None:
    frame = pd.DataFrame([[50, "Ely", 51]], columns=["age", "town", "age "])
    with pytest.raises(DataError, match="column 'age' is there more than once"):
        prepare_rows(frame, DONE, "north")


def test_no_rows_are_refused() -> None:
    with pytest.raises(DataError, match="there are no rows to predict"):
        prepare_rows(pd.DataFrame({"age": [], "town": []}), DONE, "north")
