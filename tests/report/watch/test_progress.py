"""Several runs below one folder: rounds, time left, and when all is finished."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from small_runs import make_federation

import udjfl
from udjfl.errors import StorageError
from udjfl.report.watch.progress import Watcher
from udjfl.training.records import Record
from udjfl.training.run_folder import RunFolder


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def start(path: Path, rounds: int) -> RunFolder:
    settings = {"method": "fedavg", "params": {}, "seed": 0, "training": {"rounds": rounds}}
    return RunFolder.create(path, settings, {})


def add_rounds(folder: RunFolder, first: int, last: int) -> None:
    folder.append([Record(r, "a", "test_accuracy", 50.0) for r in range(first, last + 1)])


def test_an_empty_or_missing_folder_has_nothing_yet(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "later"):
        snapshot = Watcher(folder).look()
        assert (snapshot.runs, snapshot.total, snapshot.is_finished) == ((), 0, False)
        assert snapshot.seconds_left is None


def test_the_time_left_is_that_of_the_observed_speed(tmp_path: Path) -> None:
    clock = Clock()
    watcher = Watcher(tmp_path, clock)
    one, two = start(tmp_path / "run-2", 10), start(tmp_path / "run-10", 30)
    add_rounds(one, 1, 2)
    first = watcher.look()
    assert [run.path.name for run in first.runs] == ["run-2", "run-10"]
    assert (first.done, first.total, first.seconds_left) == (2, 40, None)
    clock.now += 5.0
    add_rounds(one, 3, 4)
    add_rounds(two, 1, 3)
    # 5 rounds in 5 seconds; 33 are left.
    assert watcher.look().seconds_left == pytest.approx(33.0)
    clock.now += 100.0
    add_rounds(two, 4, 13)
    # Only the last minute counts, from the look before it: 10 rounds in 100 s, 23 are left.
    assert watcher.look().seconds_left == pytest.approx(230.0)
    for folder, rounds in ((one, 10), (two, 30)):
        add_rounds(folder, rounds, rounds)
        folder.write_json("result.json", {})
        folder.unlock()
    last = watcher.look()
    assert (last.is_finished, last.seconds_left, last.done, last.total) == (True, 0.0, 40, 40)


def test_a_run_that_is_replaced_starts_the_clock_again(tmp_path: Path) -> None:
    clock = Clock()
    watcher = Watcher(tmp_path, clock)
    folder = start(tmp_path / "run", 10)
    add_rounds(folder, 1, 8)
    watcher.look()
    folder.unlock()
    shutil.rmtree(tmp_path / "run")
    clock.now += 1.0
    folder = start(tmp_path / "run", 20)
    add_rounds(folder, 1, 1)
    snapshot = watcher.look()
    assert (snapshot.done, snapshot.total, snapshot.seconds_left) == (1, 20, None)
    clock.now += 2.0
    add_rounds(folder, 2, 2)
    assert watcher.look().seconds_left == pytest.approx(36.0)
    folder.unlock()


def test_a_comparison_counts_runs_that_have_not_started(tmp_path: Path) -> None:
    root = RunFolder.create(
        tmp_path,
        {"comparison": {"seeds": [0, 1], "rounds": 10}, "methods": [{}, {}, {}]},
        {},
    )
    folder = start(tmp_path / "seed-0" / "fedavg", 10)
    add_rounds(folder, 1, 4)
    watcher = Watcher(tmp_path)
    snapshot = watcher.look()
    assert (len(snapshot.runs), snapshot.done, snapshot.total) == (1, 4, 60)
    folder.unlock()
    assert not watcher.look().is_finished
    # One method failed: there is no result of its run, but one of the comparison.
    root.write_json("comparison.json", {})
    root.unlock()
    assert watcher.look().is_finished


def test_a_real_comparison_is_finished(tmp_path: Path) -> None:
    udjfl.compare(
        make_federation(),
        ["fedavg", "rawls:budget=2"],
        seeds=2,
        rounds=2,
        hidden=4,
        uncertainty_epochs=1,
        out=tmp_path,
    )
    snapshot = Watcher(tmp_path).look()
    assert (len(snapshot.runs), snapshot.done, snapshot.total) == (4, 8, 8)
    assert snapshot.is_finished


def test_damaged_settings_count_as_a_run_of_unknown_length(tmp_path: Path) -> None:
    folder = start(tmp_path / "run", 10)
    add_rounds(folder, 1, 3)
    folder.unlock()
    (tmp_path / "run" / "settings.json").write_text(json.dumps([1]))
    snapshot = Watcher(tmp_path).look()
    assert (snapshot.done, snapshot.total) == (3, 3)
    assert snapshot.runs[0].status == "stopped"


@pytest.mark.parametrize("text", ["", "[1]", "{"])
def test_damaged_settings_where_nothing_writes_are_refused(tmp_path: Path, text: str) -> None:
    start(tmp_path / "comparison" / "run", 3)
    path = tmp_path / "comparison" / "settings.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(StorageError, match=r"settings\.json is damaged, and nothing writes there"):
        Watcher(tmp_path).refuse_unreadable()
    path.write_text("{}", encoding="utf-8")
    Watcher(tmp_path).refuse_unreadable()


def test_damaged_settings_of_a_run_that_goes_on_are_waited_for(tmp_path: Path) -> None:
    folder = start(tmp_path / "run", 3)
    (tmp_path / "run" / "settings.json").write_text("", encoding="utf-8")
    Watcher(tmp_path).refuse_unreadable()
    folder.unlock()
    with pytest.raises(StorageError, match="udjfl check"):
        Watcher(tmp_path).refuse_unreadable()
