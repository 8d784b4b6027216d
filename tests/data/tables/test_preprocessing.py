"""Filling, scaling and encoding: two clients, numbers worked out by hand."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from udjfl.data.tables.columns import Column, Schema
from udjfl.data.tables.preprocessing import Preprocessing, Scaling, fit_numbers

NAN = math.nan
SCHEMA = Schema((Column("town", (0.0, 1.0), ("Bath", "Ely")), Column("age", may_miss=False)))
TRAIN = {
    "a": np.array([[0, 1.0], [1, 3], [0, 5], [NAN, NAN]]),  # age: median 3, mean 3, variance 8/3
    "b": np.array([[1.0, 10], [1, 20]]),  # mean 15, variance 25
}


def fit(scaling: Scaling) -> Preprocessing:
    return Preprocessing(SCHEMA, scaling, fit_numbers(SCHEMA, TRAIN, scaling))


def test_features_have_the_order_of_the_columns() -> None:
    assert SCHEMA.features == ("town=Bath", "town=Ely", "age", "town missing")
    x = fit("own").transform(TRAIN["a"], "a")
    std = math.sqrt(8 / 3)
    assert x.tolist() == [
        [1, 0, pytest.approx(-2 / std), 0],
        [0, 1, 0, 0],
        [1, 0, pytest.approx(2 / std), 0],
        [1, 0, 0, 1],
    ]


def test_shared_scaling_adds_up_over_clients() -> None:
    # Known ages 1, 3, 5, 10, 20: mean 39 / 5 = 7.8, variance 535 / 5 - 7.8^2 = 46.16.
    numbers = fit("shared").numbers
    for client in ("a", "b"):
        assert numbers[client]["age"]["mean"] == pytest.approx(7.8)
        assert numbers[client]["age"]["scale"] == pytest.approx(math.sqrt(46.16))
    assert [numbers[c]["age"]["fill"] for c in ("a", "b")] == [3, 15]  # their own medians
    # A row of no client is filled by the mean, and by the category most have: 2 Bath, 3 Ely.
    assert fit("own").transform(np.array([[NAN, NAN]]), None).tolist() == [[0, 1, 0, 1]]


def test_no_scaling_only_fills() -> None:
    assert fit("none").transform(TRAIN["a"], "a")[:, 2].tolist() == [1, 3, 5, 3]


def test_new_categories_are_zero() -> None:
    assert fit("own").transform(np.array([[7.0, 3]]), "a").tolist() == [[0, 0, 0, 0]]


def test_a_column_without_train_values_is_zero_for_this_client_only() -> None:
    train = {"a": np.array([[NAN, 1.0], [NAN, 2]]), "b": TRAIN["b"]}
    own = Preprocessing(SCHEMA, "own", fit_numbers(SCHEMA, train, "own"))
    assert own.transform(np.array([[1.0, 1.5]]), "a").tolist() == [[0, 0, 0, 1]]
    assert own.transform(np.array([[1.0, 15]]), "b").tolist() == [[0, 1, 0, 0]]


@pytest.mark.parametrize("scaling", ["own", "shared", "none"])
def test_what_a_run_folder_keeps_prepares_new_rows(scaling: Scaling) -> None:
    before = fit(scaling)
    after = Preprocessing.from_dict(json.loads(json.dumps(before.as_dict())))
    rows = np.array([[1, 2.0], [NAN, NAN], [7, 100]])
    for client in ("a", "b", None):
        assert after.transform(rows, client).tolist() == before.transform(rows, client).tolist()
    assert after.as_dict() == before.as_dict()


@pytest.mark.parametrize(
    ("column", "numbers"),
    [
        *(("age", {"fill": 1.0, "mean": 0.0, "scale": scale}) for scale in (0.0, -1.0, "1.5")),
        ("age", {"fill": 1.0}),
        ("age", {"fill": 1.0, "mean": 0.0, "scale": 1.0, "more": 1.0}),
        ("town", {"fill": 1.0, "mean": 0.0, "scale": 1.0}),
        ("town", {}),
    ],
)
def test_stored_numbers_that_prepare_nothing_are_refused(
    column: str, numbers: dict[str, Any]
) -> None:
    kept = json.loads(json.dumps(fit("own").as_dict()))
    client = next(iter(kept["numbers"]))
    assert set(kept["numbers"][client]) == {"age", "town"}
    kept["numbers"][client][column] = numbers
    with pytest.raises(ValueError, match=r"numbers|number lacks"):
        Preprocessing.from_dict(kept)
