"""Records as lines of JSON, and the history of a run."""

from __future__ import annotations

import json
import math

import pytest
import torch

from udjfl.training.records import History, Record, diagnostic_records, finite_or_none

RECORDS = [
    Record(1, "a", "loss", 0.5),
    Record(1, "b", "loss", 0.25),
    Record(1, None, "loss", 0.375),
    Record(2, "a", "loss", None),
    Record(2, "a", "excluded", "its losses are missing"),
]


def test_a_record_is_one_line_of_json() -> None:
    line = Record(3, "Zoë", "excluded", "one\ntwo").to_line()
    assert line == (
        '{"round": 3, "client": "Zoë", "metric": "excluded", "value": "one\\ntwo"}\n'.encode()
    )
    assert Record(**json.loads(line)) == Record(3, "Zoë", "excluded", "one\ntwo")


@pytest.mark.parametrize("value", [0.1 + 0.2, 5e-324, -0.0, 1e308, None, "text"])
def test_a_value_survives_the_line_exactly(value: float | str | None) -> None:
    restored = Record(**json.loads(Record(1, None, "x", value).to_line())).value
    assert repr(restored) == repr(value)


def test_nan_is_not_json() -> None:
    with pytest.raises(ValueError, match="JSON"):
        Record(1, None, "x", math.nan).to_line()


def test_a_history_by_round_and_by_client() -> None:
    history = History(RECORDS)
    assert history.series("loss", "a") == {1: 0.5, 2: None}
    assert history.series("loss") == {1: 0.375}
    assert history.by_client("loss", 1) == {"a": 0.5, "b": 0.25}
    assert history.by_client("excluded", 2) == {"a": "its losses are missing"}
    assert (history.series("no such metric"), history.by_client("loss", 3)) == ({}, {})


@pytest.mark.parametrize(
    ("value", "expected"),
    [(1.5, 1.5), (0.0, 0.0), (None, None), (math.nan, None), (math.inf, None), (-math.inf, None)],
)
def test_only_finite_values_remain(value: float | None, expected: float | None) -> None:
    assert finite_or_none(value) == expected


def test_diagnostics_have_one_value_per_client_or_one_for_the_round() -> None:
    diagnostics = {
        "weight": torch.tensor([0.25, math.inf]),
        "step_norm": torch.tensor(2.0),
        "count": torch.tensor([3, 4]),
        "unknown": torch.tensor(math.nan),
    }
    assert diagnostic_records(5, ["a", "b"], diagnostics) == [
        Record(5, "a", "weight", 0.25),
        Record(5, "b", "weight", None),
        Record(5, None, "step_norm", 2.0),
        Record(5, "a", "count", 3),
        Record(5, "b", "count", 4),
        Record(5, None, "unknown", None),
    ]


def test_diagnostics_of_another_number_of_clients_are_an_error() -> None:
    with pytest.raises(ValueError, match="zip"):
        diagnostic_records(1, ["a", "b"], {"weight": torch.ones(3)})
