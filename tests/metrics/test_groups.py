"""Gaps between groups of a sensitive attribute, within clients and over all."""

from __future__ import annotations

import doctest
import math
from pathlib import Path

import pytest
import torch
from grouped_clients import make_grouped
from small_runs import train_briefly

import udjfl
from udjfl.metrics import METRICS, GroupAccuracy, Outcome, groups
from udjfl.report.saved_runs import read_run


def test_docstring_examples() -> None:
    result = doctest.testmod(groups)
    assert (result.failed, result.attempted) == (0, 3)


def test_gaps_within_clients_and_overall_can_differ() -> None:
    """Each client serves its groups alike, but one of the clients has most of a group."""
    counts = {"a": {"0": (9, 10), "1": (81, 90)}, "b": {"0": (45, 90), "1": (5, 10)}}
    accuracy = GroupAccuracy.of(counts)
    assert accuracy.gaps(["a", "b", "absent"])[:2] == [0.0, 0.0]
    assert math.isnan(accuracy.gaps(["absent"])[0])
    # Group 0: 54 of 100, group 1: 86 of 100.
    assert accuracy.gap == pytest.approx(32.0)
    assert GroupAccuracy.from_dict(accuracy.as_dict()) == accuracy


def test_a_run_reports_what_its_models_predict_by_group(tmp_path: Path) -> None:
    federation = make_grouped()
    result = train_briefly(federation, "rawls", rounds=5, out=tmp_path)
    assert result.group_accuracy is not None
    for client in federation.clients:
        predicted = result.model_for(client.id)(client.test.x).argmax(dim=1)
        for number in (0, 1):
            own = client.test.group == number
            right = (predicted[own] == client.test.y[own]).double().mean()
            assert result.group_accuracy.clients[client.id][str(number)] == pytest.approx(
                100 * float(right)
            )
    assert result.metrics["group_gap"] == result.group_accuracy.gap
    assert result.metrics["largest_group_gap"] == max(result.group_accuracy.gaps(["a", "b"]))
    assert read_run(tmp_path).group_accuracy == result.group_accuracy


def test_without_groups_there_are_no_gaps() -> None:
    assert METRICS["group_gap"].evaluate(Outcome([90.0], [0.1])) == (
        None,
        "The test examples have no sensitive attribute.",
    )
    one_group = Outcome([90.0], [0.1], group_gaps=[math.nan])
    assert METRICS["mean_group_gap"].evaluate(one_group) == (None, groups.TWO_GROUPS)


def test_wrong_groups_of_test_examples_are_named() -> None:
    plain = make_grouped()
    arrays = {c.id: (c.train.x, c.train.y, c.test.x, c.test.y) for c in plain.clients}
    test = (plain.test.x, plain.test.y)
    with pytest.raises(udjfl.DataError, match=r"one per test example \(40\)"):
        udjfl.Federation.from_arrays(arrays, test, sensitive_test={"a": [0], "b": [0] * 40})
    with pytest.raises(udjfl.DataError, match="sensitive_test: there is no client 'c'"):
        udjfl.Federation.from_arrays(arrays, test, sensitive_test={"c": torch.zeros(40)})
