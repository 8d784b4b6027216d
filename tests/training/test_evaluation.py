"""An evaluation: percent once, and its records in one order."""

from __future__ import annotations

import math

import pytest

from udjfl.training.evaluation import Evaluation
from udjfl.training.records import Record


def test_fractions_become_percent_once() -> None:
    evaluation = Evaluation.from_fractions(["a", "b"], [0.5, 2.0], [0.25, 1.0], (0.75, 0.5))
    assert evaluation.losses == {"a": 0.5, "b": 2.0}
    assert evaluation.accuracies == {"a": 25.0, "b": 100.0}
    assert (evaluation.global_loss, evaluation.global_accuracy) == (0.75, 50.0)
    assert (evaluation.not_evaluated, evaluation.no_global_reason) == ({}, None)
    values = {(r.client, r.metric): r.value for r in evaluation.records(1)}
    assert values["a", "test_accuracy"] == 25.0
    assert values[None, "test_accuracy"] == 50.0


def test_records_are_reasons_then_accuracies_then_losses() -> None:
    evaluation = Evaluation.from_fractions(
        ["b", "a"], [0.5, 2.0], [0.25, 1.0], (0.75, 0.5), {"c": "did not reply in time"}
    )
    assert evaluation.records(7) == [
        Record(7, "c", "not_evaluated", "did not reply in time"),
        Record(7, "b", "test_accuracy", 25.0),
        Record(7, "a", "test_accuracy", 100.0),
        Record(7, None, "test_accuracy", 50.0),
        Record(7, "b", "test_loss", 0.5),
        Record(7, "a", "test_loss", 2.0),
        Record(7, None, "test_loss", 0.75),
    ]


def test_without_a_shared_test_set_the_global_values_are_none() -> None:
    evaluation = Evaluation.from_fractions(
        ["a"], [0.5], [0.25], None, no_global_reason="the server has no test data"
    )
    assert (evaluation.global_loss, evaluation.global_accuracy) == (None, None)
    assert evaluation.no_global_reason == "the server has no test data"
    assert evaluation.records(1)[1] == Record(1, None, "test_accuracy", None)


def test_without_any_evaluated_client_the_global_values_remain() -> None:
    evaluation = Evaluation.from_fractions([], [], [], (0.75, 0.5), {"a": "is not connected"})
    assert evaluation.records(1) == [
        Record(1, "a", "not_evaluated", "is not connected"),
        Record(1, None, "test_accuracy", 50.0),
        Record(1, None, "test_loss", 0.75),
    ]


def test_expected_accuracies_become_percent_and_come_last() -> None:
    evaluation = Evaluation.from_fractions(["a", "b"], [0.5, 2.0], [0.25, 1.0], (0.75, 0.5))
    assert evaluation.expected_accuracies is None
    assert evaluation.with_expected({}) == evaluation
    known = evaluation.with_expected({"b": 0.875})
    assert known.expected_accuracies == {"b": 87.5}
    assert known.records(4) == [
        *evaluation.records(4),
        Record(4, "b", "expected_accuracy", 87.5),
    ]


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_not_finite_is_recorded_as_none(loss: float) -> None:
    evaluation = Evaluation.from_fractions(["a"], [loss], [0.0], (loss, 0.0))
    assert [r.value for r in evaluation.records(1)] == [0.0, 0.0, None, None]


@pytest.mark.parametrize(("losses", "accuracies"), [([0.5], [0.5, 0.5]), ([0.5, 0.5], [0.5])])
def test_every_client_needs_both_values(losses: list[float], accuracies: list[float]) -> None:
    with pytest.raises(ValueError, match="zip"):
        Evaluation.from_fractions(["a", "b"], losses, accuracies, None)
