"""Folders whose files are whole, but have values of other types than a run writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from udjfl.errors import StorageError
from udjfl.report.stored_types import check_metrics, check_types

SETTINGS: dict[str, Any] = {
    "method": "fedavg",
    "params": {},
    "seed": 3,
    "training": {"rounds": 2},
    "federation": {"name": "tiny", "clients": [{"id": "a", "test": 9, "class_counts": [4, 5]}]},
}
RESULT: dict[str, Any] = {
    "method": "fedavg",
    "theory": ["utilitarian"],
    "client_scores": {"a": 90},
    "uncertainty": {"a": None},
    "notes": ["a note"],
    "client_interval": {"a": [80.0, 95.5]},
    "added later": object(),
}


def test_values_of_a_run_pass() -> None:
    check_types(Path("run"), SETTINGS, RESULT)
    check_types(Path("run"), {}, {})
    for sizes in (None, {"a": 3}, {"a": 0, "not evaluated": 4}):
        check_types(Path("run"), SETTINGS, {**RESULT, "test_sizes": sizes})
    assert check_metrics(Path("run"), {"std": 1, "psi": None, "r": 0.5}) == {
        "std": 1,
        "psi": None,
        "r": 0.5,
    }


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"seed": [1]}, "settings.json: seed: "),
        ({"seed": True}, "settings.json: seed: "),
        ({"federation": {"name": 1}}, "settings.json: federation.name: "),
        ({"federation": {"clients": [{"id": 1}]}}, r"settings.json: federation.clients.0.id: "),
        ({"federation": {"n_classes": -1}}, "settings.json: federation.n_classes: "),
    ],
)
def test_settings_of_other_types_are_named(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(StorageError, match=f"{words}.*the file is damaged"):
        check_types(Path("run"), {**SETTINGS, **changes}, RESULT)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"client_scores": {"a": "90"}}, "client_scores.a: "),
        ({"client_scores": {"a": 1e101}}, "client_scores.a: "),
        ({"client_scores": {"a": -1e101}}, "client_scores.a: "),
        ({"test_sizes": {}}, "test_sizes: value error, has no number for a"),
        (
            {"client_scores": {"c-10": 9, "c-9": 8}, "test_sizes": {"a": 3}},
            "test_sizes: value error, has no number for c-9",
        ),
        ({"client_scores": {"a": 10**400}}, "client_scores.a: "),
        ({"client_scores": None}, "client_scores: "),
        ({"uncertainty": {"a": [0.1]}}, "uncertainty.a: "),
        ({"notes": [3]}, "notes.0: "),
        ({"test_sizes": {"a": 2.5}}, "test_sizes.a: "),
        ({"client_interval": {"a": [80.0]}}, "client_interval.a.1: "),
        ({"undefined": {"psi": {}}}, "undefined.psi: "),
    ],
)
def test_results_of_other_types_are_named(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(StorageError, match=f"result.json: {words}.*the file is damaged"):
        check_types(Path("run"), SETTINGS, {**RESULT, **changes})


@pytest.mark.parametrize("value", ["1", [1.0], True, 10**400])
def test_metrics_are_numbers(value: Any) -> None:
    with pytest.raises(StorageError, match=r"result\.json: std: "):
        check_metrics(Path("run"), {"std": value})


def test_a_result_that_is_no_table_is_refused() -> None:
    with pytest.raises(StorageError, match=r"result\.json: "):
        check_types(Path("run"), SETTINGS, [1])
