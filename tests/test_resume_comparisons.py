"""A stopped comparison resumes and produces identical bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest
from small_runs import Stopped, change_settings, compare, make_federation, read_files
from stopped_runs import COMPARE, TINY, ServerMomentum

import udjfl
from udjfl.errors import StorageError, UdjflError


@pytest.mark.parametrize("calls", [1, 6, 10, 13, 17])
def test_a_stopped_comparison_ends_in_the_same_bytes(
    tmp_path: Path, tiny_source: str, calls: int
) -> None:
    """Stop at one of 18 events: 2 seeds x 2 methods x 4 rounds, and one uncertainty per seed."""
    settings = change_settings(COMPARE, data=tiny_source, clients=2)
    whole = compare(settings, out=tmp_path / "whole")
    count = 0

    def stop(event: udjfl.Progress) -> None:
        nonlocal count
        count += 1
        if count == calls:
            raise Stopped

    with pytest.raises(Stopped):
        compare(settings, out=tmp_path / "run", on_progress=stop)
    again = compare(settings, out=tmp_path / "run", resume=True)
    assert again.as_dict() == whole.as_dict()
    assert read_files(tmp_path / "run") == read_files(tmp_path / "whole")


def test_finished_runs_of_a_comparison_are_not_run_again(tmp_path: Path, tiny_source: str) -> None:
    settings = change_settings(COMPARE, data=tiny_source, clients=2)
    compare(settings, out=tmp_path)
    before = read_files(tmp_path)
    trained: list[int] = []

    def on_progress(event: udjfl.Progress) -> None:
        if event.done < event.total:  # the event of a finished run is allowed
            trained.append(event.done)

    compare(settings, out=tmp_path, resume=True, on_progress=on_progress)
    assert trained == []
    assert read_files(tmp_path) == before


def test_a_comparison_with_a_method_that_diverges_resumes_with_the_same_failure(
    tmp_path: Path, tiny_source: str
) -> None:
    settings = change_settings(COMPARE, data=tiny_source, clients=2)

    @udjfl.parameters
    class Diverging(ServerMomentum):
        name: ClassVar[str] = "diverging"

        def aggregate(self, state: Any, reports: udjfl.Reports) -> Any:
            state, step, diagnostics = super().aggregate(state, reports)
            return state, step / 0 if reports.round == 3 else step, diagnostics

    first = compare(settings, methods=[Diverging()], out=tmp_path)
    assert "round 3" in first.rows[1].failed[0]
    before = read_files(tmp_path)
    again = compare(settings, methods=[Diverging()], out=tmp_path, resume=True)
    assert again.as_dict() == first.as_dict()
    assert read_files(tmp_path) == before


def test_a_comparison_with_other_settings_is_refused(tmp_path: Path, tiny_source: str) -> None:
    settings = change_settings(COMPARE, data=tiny_source, clients=2)
    compare(settings, out=tmp_path)
    before = read_files(tmp_path)
    with pytest.raises(
        StorageError, match=r"already holds a comparison; continue it with `udjfl resume"
    ):
        compare(settings, out=tmp_path)
    with pytest.raises(StorageError, match="other settings; resume it with the same"):
        compare(change_settings(settings, rounds=5), out=tmp_path, resume=True)
    with pytest.raises(UdjflError):  # a comparison is not a run
        udjfl.simulate(make_federation(), "rawls", out=tmp_path, resume=True, **TINY)
    assert read_files(tmp_path) == before


def test_a_comparison_of_other_methods_is_refused(tmp_path: Path, tiny_source: str) -> None:
    """Method objects replace those in the settings, so the folder has to record them too."""
    settings = change_settings(COMPARE, data=tiny_source, clients=2)
    compare(settings, methods=[ServerMomentum()], out=tmp_path)
    before = read_files(tmp_path)
    with pytest.raises(StorageError, match="method"):
        compare(settings, out=tmp_path, resume=True)
    assert read_files(tmp_path) == before


def test_reasons_for_undefined_metrics_have_one_order(
    tmp_path: Path, federation: udjfl.Federation
) -> None:
    """The order of a set would differ between processes, and with it comparison.json."""
    comparison = compare(COMPARE, federation=make_federation(n_clients=1))
    reasons = comparison.as_dict()["methods"][1]["undefined"]
    assert list(reasons) == ["gain_others", "gap", "pearson_r", "psi", "slope"]
