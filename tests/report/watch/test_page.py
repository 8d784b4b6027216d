"""The live page: words, the choice of runs, and texts from outside."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hostile_runs import IDS

from udjfl.report.html.curves import Curves
from udjfl.report.html.figure import Figure
from udjfl.report.watch.page import (
    MOST_DRAWN,
    LivePage,
    choose_drawn,
    describe_progress,
    describe_state,
    format_duration,
    label_of,
)
from udjfl.report.watch.progress import Snapshot, Watcher
from udjfl.training.follow import FollowedRun
from udjfl.training.records import Record
from udjfl.training.run_folder import RunFolder


def start(path: Path, method: str = "fedavg", rounds: int = 5, **settings: Any) -> RunFolder:
    known = {"method": method, "params": {}, "seed": 0, "training": {"rounds": rounds}}
    return RunFolder.create(path, {**known, **settings}, {})


def add_rounds(folder: RunFolder, last: int, clients: tuple[str, ...] = ("a", "b")) -> None:
    folder.append(
        [
            Record(round, client, "test_accuracy", 50.0 + round)
            for round in range(1, last + 1)
            for client in clients
        ]
    )


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.2, "0 s"),
        (59.4, "59 s"),
        (61, "1 min"),
        (3599, "1 h 0 min"),
        (3700, "1 h 2 min"),
        (400_000, "4 days"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def test_states_in_words(tmp_path: Path) -> None:
    watcher = Watcher(tmp_path / "run")
    assert describe_state(watcher.look()) == "No run here yet"
    folder = start(tmp_path / "run")
    assert describe_state(watcher.look()) == "Preparing"
    add_rounds(folder, 3)
    snapshot = watcher.look()
    assert describe_state(snapshot) == "Training"
    assert describe_progress(snapshot).startswith("3 of 5 rounds in 1 run.")
    folder.unlock()
    stopped = watcher.look()
    assert describe_state(stopped) == "Stopped"
    assert "`udjfl resume` continues" in describe_progress(stopped)
    folder.write_json("result.json", {})
    assert describe_state(watcher.look()) == "Finished"


def test_a_page_loads_itself_again_until_the_end(tmp_path: Path) -> None:
    folder = start(tmp_path)
    add_rounds(folder, 4)
    snapshot = Watcher(tmp_path).look()
    page = LivePage()
    assert 'data-every="5"' in page.render(snapshot, 5)
    last = page.render(snapshot, 0)
    assert 'data-every="0"' in last
    assert "not updated any more" in last
    assert "<svg" in last
    folder.unlock()


def test_figures_are_drawn_again_only_if_the_run_went_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Curves] = []

    def draw(curves: Curves, _: int, most: int) -> list[Figure]:
        assert most > 0
        drawn.append(curves)
        return []

    monkeypatch.setattr("udjfl.report.watch.page.round_figures", draw)
    folder, watcher, page = start(tmp_path), Watcher(tmp_path), LivePage()
    add_rounds(folder, 3)
    for _ in range(3):
        page.render(watcher.look(), 5)
    assert len(drawn) == 1
    folder.append([Record(4, "a", "test_accuracy", 1.0)])
    page.render(watcher.look(), 5)
    assert [curves.reached for curves in drawn] == [3, 4]
    folder.unlock()


def test_one_run_of_each_method_is_drawn_and_not_too_many(tmp_path: Path) -> None:
    methods = ["fedavg", "afl", "qffl", "term", "fedfv", "fedfa", "propfair", "fedmgda"]
    runs = []
    for method in methods:
        for seed in (0, 1):
            folder = start(tmp_path / f"{method}-{seed}", method)
            add_rounds(folder, 2 + seed)
            folder.unlock()
            runs.append(FollowedRun(folder.path))
            runs[-1].update()
    drawn = choose_drawn(sorted(runs, key=lambda run: -run.reached))
    assert len(drawn) == MOST_DRAWN
    assert len({label_of(run) for run in drawn}) == MOST_DRAWN
    assert {run.reached for run in drawn} == {3}  # the seed that is further


def test_texts_from_outside_are_escaped(tmp_path: Path) -> None:
    folder = start(tmp_path / "<b>run", method="<script>", seed="\x1b[31m")
    add_rounds(folder, 3, IDS)
    folder.append([Record(3, IDS[0], "absent", "<img src=x onerror=alert(1)>\x1b[2J")])
    text = LivePage().render(Watcher(tmp_path).look(), 5)
    folder.unlock()
    for tag in ("<script>alert", "<img", "<b>run", "<script>,", "\x1b", "\u202e"):
        assert tag not in text
    assert "&lt;img src=x onerror=alert(1)&gt;\\x1b[2J" in text


def test_the_same_state_gives_the_same_bytes(tmp_path: Path) -> None:
    folder = start(tmp_path)
    add_rounds(folder, 5)
    folder.unlock()
    pages = {LivePage().render(Watcher(tmp_path).look(), 5) for _ in range(2)}
    assert len(pages) == 1


def test_an_empty_folder_has_a_page(tmp_path: Path) -> None:
    text = LivePage().render(Snapshot(tmp_path, (), 0, 0, None, False), 5)
    assert "No run here yet" in text
    assert "<table" not in text
