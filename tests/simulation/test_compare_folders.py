"""Comparisons in a folder: the same numbers, resumed only with the same uncertainties."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from short_comparisons import make_settings, to_plain
from small_runs import (
    change_settings,
    compare,
    make_client_arrays,
    make_federation,
    make_federation_of,
    rising_uncertainties,
    train_briefly,
)

import udjfl
from udjfl.errors import ReportError, SettingsError, StorageError


def test_a_comparison_in_a_folder_has_the_same_numbers(
    federation: udjfl.Federation, tmp_path: Path
) -> None:
    how = make_settings(uncertainty="ensemble", uncertainty_models=2)
    stored = compare(how, federation=federation, out=tmp_path / "compared")
    assert to_plain(stored) == to_plain(compare(how, federation=federation))
    assert json.loads((tmp_path / "compared" / "comparison.json").read_text()) == to_plain(stored)
    runs = sorted(path.parent for path in (tmp_path / "compared").rglob("result.json"))
    assert len(runs) == 4
    # Every run of a seed holds the same uncertainties, epistemic part included.
    for seed in (0, 3):
        texts = {
            (run / "uncertainty.json").read_text()
            for run in runs
            if run.parent.name == f"seed-{seed}"
        }
        assert len(texts) == 1
    again = compare(how, federation=federation, out=tmp_path / "compared", resume=True)
    assert to_plain(again) == to_plain(stored)


def test_a_comparison_resumes_after_the_data_folder_moved(tmp_path: Path, tiny_source: str) -> None:
    how = make_settings(data=tiny_source, clients=2, seeds=[0], methods=["fedavg"])
    for name in ("before", "after"):
        (tmp_path / name).mkdir()
    moved = [change_settings(how, data_root=str(tmp_path / name)) for name in ("before", "after")]
    once = compare(moved[0], out=tmp_path / "compared")
    again = compare(moved[1], out=tmp_path / "compared", resume=True)
    assert to_plain(again)["methods"] == to_plain(once)["methods"]


def test_a_comparison_with_an_unmeasurable_client_can_be_resumed(tmp_path: Path) -> None:
    """An uncertainty that could not be measured is null, in both parts of an ensemble's."""
    bad = make_federation_of(
        a=make_client_arrays(8), b=make_client_arrays(9, scale=1e30), c=make_client_arrays(10)
    )
    how = make_settings(
        uncertainty="ensemble", uncertainty_models=2, on_bad_report="exclude", batch_size=4
    )
    once = compare(how, federation=bad, out=tmp_path / "compared")
    assert to_plain(
        compare(how, federation=bad, out=tmp_path / "compared", resume=True)
    ) == to_plain(once)


def test_given_uncertainties_are_used_on_every_seed_and_nothing_is_measured(
    federation: udjfl.Federation,
) -> None:
    given = rising_uncertainties(federation)
    stages: list[str] = []
    compared = compare(
        make_settings(),
        federation=federation,
        uncertainty=given,
        on_progress=lambda event: stages.append(event.stage),
    )
    assert set(stages) == {"training"}
    for row in compared.rows:
        assert {name: summary.values for name, summary in row.uncertainty.items()} == {
            i: (u, u) for i, u in given.items()
        }
    for index, seed in enumerate((0, 3)):
        alone = train_briefly(federation, "rawls", seed=seed, uncertainty=given)
        for key in ("worst_accuracy", "pearson_r", "accuracy_most_uncertain"):
            assert compared.rows[1].metrics[key].values[index] == alone.metrics[key]
    # In reverse order another client is the most uncertain: the numbers are used.
    reversed_values = dict(zip(given, reversed(given.values()), strict=True))
    other = compare(make_settings(), federation=federation, uncertainty=reversed_values)
    assert (
        other.rows[1].metrics["accuracy_most_uncertain"] == other.rows[1].client_scores["client-1"]
    )
    assert (
        compared.rows[1].metrics["accuracy_most_uncertain"]
        == compared.rows[1].client_scores["client-3"]
    )


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_comparison_is_resumed_only_with_the_same_given_uncertainties(
    tmp_path: Path, jobs: int
) -> None:
    federation = make_federation()
    given = rising_uncertainties(federation)
    how = make_settings(methods=["rawls"], jobs=jobs)
    once = compare(how, federation=federation, uncertainty=given, out=tmp_path / "compared")
    again = compare(
        how, federation=federation, uncertainty=given, out=tmp_path / "compared", resume=True
    )
    assert to_plain(again) == to_plain(once)
    with pytest.raises(
        StorageError, match="was started with other uncertainties; resume it with the same"
    ):
        compare(
            how,
            federation=federation,
            uncertainty={**given, "client-2": 9.0},
            out=tmp_path / "compared",
            resume=True,
        )
    assert json.loads((tmp_path / "compared" / "comparison.json").read_text()) == to_plain(once)


def test_resuming_without_the_given_uncertainties_is_refused(
    tmp_path: Path, tiny_source: str
) -> None:
    how = make_settings(data=tiny_source, clients=2, seeds=[0], methods=["fedavg"])
    compare(how, uncertainty={"client-1": 0.1, "client-2": 0.2}, out=tmp_path / "compared")
    with pytest.raises(StorageError, match="was started with other data or methods"):
        compare(how, out=tmp_path / "compared", resume=True)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"client-1": 0.1, "client-3": 0.3}, "no value for client 'client-2'"),
        ({"client-1": 0.1, "client-2": 0.0, "client-3": 0.3}, "'client-2'.* it must be above zero"),
        ({"client-1": 0.1, "client-2": "much", "client-3": 0.3}, "give a number above zero"),
    ],
)
def test_wrong_uncertainties_are_refused_before_anything_is_written(
    tmp_path: Path, federation: udjfl.Federation, given: dict[str, Any], words: str
) -> None:
    with pytest.raises((SettingsError, ReportError), match=words):
        compare(
            make_settings(), federation=federation, uncertainty=given, out=tmp_path / "compared"
        )
    assert not (tmp_path / "compared").exists()
