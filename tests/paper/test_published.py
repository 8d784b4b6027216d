"""The paper's numbers: spot checks against the printed tables, and their shape."""

from __future__ import annotations

import pytest

from udjfl.metrics import table_metrics
from udjfl.paper.published import (
    Published,
    published_counterpart,
    published_distributions,
    published_results,
    published_solo,
)

SECTIONS = {"none": 1, "utilitarian": 7, "egalitarian": 4, "rawls": 5, "desert": 3}


@pytest.mark.parametrize(
    ("data", "row", "metric", "printed"),
    [
        ("dirty-mnist", ("none", "FedAvg"), "global_accuracy", Published(93.83, 1.27)),
        ("dirty-mnist", ("rawls", "AFL"), "psi", Published(7.07, 1.03)),
        (
            "cure-tsr",
            ("utilitarian", "UDJ-FL: beta=0, gamma=-1"),
            "global_accuracy",
            Published(98.61, 0.54),
        ),
        ("cure-tsr", ("egalitarian", "TERM"), "accuracy_least_uncertain", Published(97.23, 2.11)),
        (
            "cure-tsr",
            ("desert", "UDJ-FL: beta=per-client, gamma=0"),
            "accuracy_most_uncertain",
            Published(46.27, 6.65),
        ),
        ("dirty-mnist", ("desert", "CFFL"), "pearson_r", Published(-0.83, 0.58)),
    ],
)
def test_results_are_as_printed(
    data: str, row: tuple[str, str], metric: str, printed: Published
) -> None:
    assert published_results(data)[row][metric] == printed


@pytest.mark.parametrize("data", ["dirty-mnist", "cure-tsr"])
def test_every_row_is_complete(data: str) -> None:
    table = published_results(data)
    assert {theory: sum(of == theory for of, _ in table) for theory in SECTIONS} == SECTIONS
    keys = {metric.key for metric in table_metrics()} - {"worst_accuracy", "mean_accuracy"}
    for (theory, label), row in table.items():
        assert set(row) == keys - ({"psi"} if theory == "none" else set()), label


def test_labels_name_one_row_each() -> None:
    labels = [label for _, label in published_results("cure-tsr")]
    assert len(set(labels)) == len(labels) == 20


def test_solo_is_as_printed() -> None:
    assert published_solo("dirty-mnist")[4] == {
        "local_accuracy": Published(91.25, 1.46),
        "clean_accuracy": Published(68.23, 2.92),
        "uncertainty": Published(0.19, 0.04),
    }
    assert list(published_solo("cure-tsr")) == [1, 2, 3, 4, 5]


def test_distributions_are_as_printed() -> None:
    table = published_distributions("dirty-mnist")
    assert list(table) == ["even", "clean", "dirty"]
    assert table["dirty"]["global_accuracy"] == Published(83.55, None)
    assert table["even"]["client_4"].mean == 95.2
    assert table["clean"]["std"].mean == 5.92


@pytest.mark.parametrize("data", ["signs", "dirty-digits", "heart"])
def test_nothing_is_published_for_other_data(data: str) -> None:
    assert published_results(data) == {}
    assert published_solo(data) == {}
    assert published_distributions(data) == {}


def test_distributions_are_of_one_data_set_only() -> None:
    assert published_distributions("cure-tsr") == {}


@pytest.mark.parametrize(
    ("data", "beside"),
    [
        ("dirty-mnist", "dirty-mnist"),
        ("cure-tsr", "cure-tsr"),
        ("signs", "cure-tsr"),
        ("dirty-digits", "dirty-mnist"),
        ("heart", None),
    ],
)
def test_counterparts_of_data_sets(data: str, beside: str | None) -> None:
    assert published_counterpart(data) == beside


def test_a_caller_may_change_what_is_returned() -> None:
    published_results("dirty-mnist").clear()
    published_results("dirty-mnist")[("none", "FedAvg")].clear()
    assert published_results("dirty-mnist")[("none", "FedAvg")]
