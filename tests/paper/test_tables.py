"""Cells, marks and invalid tables, by hand."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from udjfl.errors import DataError
from udjfl.paper.published import published_results
from udjfl.paper.tables import (
    DistributionsTable,
    ResultsTable,
    Row,
    SoloTable,
)
from udjfl.statistics import summarise

COMMON: dict[str, Any] = {"data": "mine", "profile": "paper", "rounds": 500, "same_data": False}


def row(
    theory: Any, label: str, failed: Mapping[int, str] | None = None, **values: list[float | None]
) -> Row:
    summaries = {key: summarise(of) for key, of in values.items()}
    return Row(
        theory=theory,
        name=label,
        details={"method": label.lower()},
        values=summaries,
        failed=failed or {},
    )


def results(
    *rows: Row, seeds: tuple[int, ...] = (0, 1), published_for: str | None = "dirty-mnist"
) -> ResultsTable:
    return ResultsTable(rows=rows, seeds=seeds, published_for=published_for, **COMMON)


def marks(table: ResultsTable, metric: str) -> dict[str, str | None]:
    return {one.name: table.cell(one, metric).mark for one in table.rows}


def test_difference_is_ours_less_published() -> None:
    fedavg = row("none", "FedAvg", global_accuracy=[93.0, 94.0])
    cell = results(fedavg).cell(fedavg, "global_accuracy")
    assert cell.ours.mean == 93.5
    assert cell.published is not None
    assert cell.published.mean == 93.83
    assert cell.difference == pytest.approx(-0.33)


def test_a_value_missing_on_either_side_gives_no_difference() -> None:
    fedavg = row("none", "FedAvg", psi=[0.0, 0.0])
    table = results(fedavg)
    assert table.cell(fedavg, "psi").published is None  # the paper prints a dash
    assert table.cell(fedavg, "psi").difference is None
    unmeasured = table.cell(fedavg, "std")
    assert (unmeasured.ours.mean, unmeasured.ours.values, unmeasured.difference) == (
        None,
        (None, None),
        None,
    )
    alone = results(fedavg, published_for=None)
    assert alone.cell(fedavg, "global_accuracy").published is None


def test_marks_follow_the_direction_of_the_measure_within_a_section() -> None:
    table = results(
        row("none", "FedAvg", std=[0.1, 0.1], global_accuracy=[99.0, 99.0]),
        row("egalitarian", "a", std=[3.0, 3.0], global_accuracy=[90.0, 90.0]),
        row("egalitarian", "b", std=[1.0, 2.0], global_accuracy=[95.0, 95.0]),
        row("egalitarian", "c", std=[2.0, 2.0], global_accuracy=[92.0, 92.0]),
        row("utilitarian", "d", std=[0.5, 0.5], global_accuracy=[90.0, 91.0]),
        row("utilitarian", "e", std=[0.6, 0.6], global_accuracy=[91.0, 92.0]),
    )
    assert marks(table, "std") == {
        "FedAvg": None,
        "a": None,
        "b": "best",
        "c": "second",
        "d": None,
        "e": None,
    }
    assert marks(table, "global_accuracy") == dict.fromkeys("abc") | {
        "FedAvg": None,
        "d": "second",
        "e": "best",
    }


def test_ties_as_printed_share_a_mark() -> None:
    table = results(
        row("rawls", "a", psi=[5.001, 5.001]),
        row("rawls", "b", psi=[5.0, 5.0]),
        row("rawls", "c", psi=[4.0, 4.0]),
    )
    assert marks(table, "psi") == {"a": "best", "b": "best", "c": None}
    table = results(
        row("rawls", "a", psi=[6.0, 6.0]),
        row("rawls", "b", psi=[5.0, 5.0]),
        row("rawls", "c", psi=[5.0, 5.0]),
    )
    assert marks(table, "psi") == {"a": "best", "b": "second", "c": "second"}


def test_a_row_that_failed_on_a_seed_is_not_marked() -> None:
    table = results(
        row("desert", "a", failed={1: "diverged"}, pearson_r=[-0.99, None]),
        row("desert", "b", pearson_r=[-0.8, -0.8]),
        row("desert", "c", pearson_r=[-0.7, -0.7]),
    )
    assert marks(table, "pearson_r") == {"a": None, "b": "best", "c": "second"}


def test_the_only_row_of_a_section_is_not_marked() -> None:
    assert marks(results(row("desert", "a", pearson_r=[-0.9, -0.9])), "pearson_r") == {"a": None}


def test_relevant_columns_of_each_theory() -> None:
    table = results(row("none", "FedAvg"), row("rawls", "AFL"), row("utilitarian", "d"))
    relevant = {
        one.name: [c.key for c in table.columns if table.cell(one, c.key).relevant]
        for one in table.rows
    }
    accuracies = ["global_accuracy", "accuracy_most_uncertain", "accuracy_least_uncertain"]
    assert relevant == {
        "FedAvg": [*accuracies, "std", "psi", "pearson_r"],
        "AFL": [*accuracies, "psi"],
        "d": accuracies,
    }


# Bold and underlined in the paper's table.
PRINTED = {
    "dirty-mnist": {
        "UDJ-FL: beta=0.1, gamma=-1": "best",
        # 93.44; the paper underlines q-FedAvg: q=0.1 with 93.31 instead.
        "UDJ-FL: beta=0.1, gamma=0": "second",
        "UDJ-FL: beta=1, gamma=1": "best",
        "UDJ-FL: beta=1, gamma=0": "second",
        "AFL": "best",
        "UDJ-FL: beta=5, gamma=1": "second",
        "UDJ-FL: beta=per-client, gamma=0": "best",
        "UDJ-FL: beta=per-client, gamma=-1": "second",
    },
    "cure-tsr": {
        "UDJ-FL: beta=0, gamma=-1": "best",
        "q-FedAvg: q=0": "second",
        "UDJ-FL: beta=1, gamma=1": "best",
        "UDJ-FL: beta=1, gamma=0": "second",
        "UDJ-FL: beta=5, gamma=1": "best",
        "UDJ-FL: beta=5, gamma=0": "second",
        "UDJ-FL: beta=per-client, gamma=0": "best",
        "UDJ-FL: beta=per-client, gamma=-1": "second",
    },
}


@pytest.mark.parametrize("data", ["dirty-mnist", "cure-tsr"])
def test_the_papers_numbers_get_the_papers_marks(data: str) -> None:
    rows = [
        row(theory, label, **{key: [number.mean] for key, number in numbers.items()})
        for (theory, label), numbers in published_results(data).items()
    ]
    table = results(*rows, seeds=(0,), published_for=data)
    found = {
        one.name: mark
        for one in table.rows
        for column in table.columns
        if (mark := table.cell(one, column.key).mark)
    }
    assert found == PRINTED[data]
    assert {table.cell(one, "std").difference for one in table.rows} == {0.0}


def test_solo_and_distributions_have_their_published_numbers() -> None:
    client = Row(name="client 5", values={"uncertainty": summarise([0.25])})
    solo = SoloTable(rows=(client,), seeds=(0,), published_for="cure-tsr", **COMMON)
    assert solo.cell(client, "uncertainty").difference == pytest.approx(0.25 - 0.91)
    even = Row(name="even", values={"client_2": summarise([92.0])})
    spread = DistributionsTable(rows=(even,), seeds=(0,), published_for="dirty-mnist", **COMMON)
    assert spread.cell(even, "client_2").difference == pytest.approx(0.5)
    assert spread.cell(even, "std").published is not None


def test_the_json_document_has_every_seed() -> None:
    table = results(
        row("rawls", "AFL", failed={1: "diverged"}, psi=[7.5, None]), row("none", "FedAvg")
    )
    plain = json.loads(json.dumps(table.as_dict()))
    assert plain["seeds"] == [0, 1]
    assert plain["published_for"] == "dirty-mnist"
    assert plain["same_data"] is False
    first = plain["rows"][0]
    assert (first["theory"], first["label"], first["method"], first["failed"]) == (
        "rawls",
        "AFL",
        "afl",
        {"1": "diverged"},
    )
    psi = first["metrics"]["psi"]
    assert psi["values"] == [7.5, None]
    assert psi["published"] == {"mean": 7.07, "std": 1.03}
    assert psi["difference"] == pytest.approx(0.43)
    assert psi["n"] == 1


def test_a_solo_table_has_epochs() -> None:
    client = Row(name="client 1", values={}, details={"clean_shards": 19})
    plain = SoloTable(rows=(client,), seeds=(0,), published_for=None, **COMMON).as_dict()
    assert plain["epochs"] == 500
    assert plain["rows"][0]["clean_shards"] == 19


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows": (row("rawls", "AFL", psi=[1.0]),)}, "psi has 1 values"),
        ({"rows": (row("rawls", "AFL", gini=[1.0, 2.0]),)}, "values has 'gini'"),
        ({"rows": (row("rawls", "AFL"), row("rawls", "AFL"))}, "same name"),
        ({"published_for": "signs"}, "published_for is 'signs'"),
        ({"published_for": None, "same_data": True}, "same_data is true"),
    ],
)
def test_invalid_tables_are_refused(change: dict[str, Any], message: str) -> None:
    good: dict[str, Any] = COMMON | {"rows": (), "seeds": (0, 1), "published_for": "dirty-mnist"}
    ResultsTable(**good)
    with pytest.raises(DataError, match=message):
        ResultsTable(**(good | change))
