"""The progress of a search: what a bar is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from small_runs import make_federation

import udjfl
from udjfl.methods import FedAvg, method
from udjfl.search.progress import SearchProgress
from udjfl.search.settings import TuneSettings
from udjfl.search.tune import tune
from udjfl.search.tuned_methods import tune_methods
from udjfl.settings import CompareSettings
from udjfl.training.progress_bar import RoundCounter
from udjfl.training.records import Progress

SHORT: dict[str, Any] = {
    **{"rounds": 9, "hidden": 8, "batch_size": 8, "uncertainty_epochs": 2},
    **{"seeds": [0, 1], "workers": 1},
}


def by_seed(seed: int) -> udjfl.Federation:
    return make_federation(seed=seed)


class Bar:
    """Remembers what a bar would have shown."""

    def __init__(self) -> None:
        self.counter, self.shown, self.titles = RoundCounter(1, 1), [(0, 1)], list[str]()

    def __call__(self, event: Progress) -> None:
        self.counter.count(event)
        done, total = self.counter.done, self.counter.total
        assert done >= self.shown[-1][0]
        self.shown.append((done, total))
        assert event.part is not None
        if event.part.title not in self.titles:
            self.titles.append(event.part.title)


def test_parts_by_hand() -> None:
    events: list[Progress] = []
    progress = SearchProgress(events.append)
    progress.expect({"rung 1": 10, "rung 2": 6, "test": 4})
    for title, runs, rounds, more in (
        ("rung 1", {0: 3, 1: 2}, 1, True),  # 5 of 10: 5 more are expected
        ("rung 1", {0: 2}, 1, False),  # 7 in all
        ("rung 2", {0: 4}, 2, False),  # 8 instead of 6
        ("test", {}, 4, False),  # done before
    ):
        tell = progress.begin(title, runs, rounds, more)
        assert tell is not None
        tell(Progress("a", 0, "training", 1, 2))
    parts = [event.part for event in events if event.part is not None]
    assert [(part.before, part.total) for part in parts] == [(0, 20), (5, 17), (7, 19), (15, 15)]
    assert SearchProgress(None).begin("test", {}, 4) is None


def test_a_search_ends_at_its_total(tmp_path: Path) -> None:
    bar = Bar()
    settings = TuneSettings(**SHORT, theory="egalitarian", budget=60.0, cost=15.0)
    tune(settings, data=by_seed, on_progress=bar, out=tmp_path)
    assert bar.shown[-1][0] == bar.shown[-1][1]
    assert bar.titles == [
        "rung 1 of 3, 1 round",
        "rung 2 of 3, 3 rounds",
        "rung 3 of 3, 9 rounds",
        "neighbours, 9 rounds",
        "test, 9 rounds",
    ]


def test_several_searches_are_one_bar(tiny_source: str) -> None:
    bar = Bar()
    settings = CompareSettings(**{**SHORT, "rounds": 3, "data": tiny_source})
    tune_methods(settings, [FedAvg(), method("qffl"), method("term")], on_progress=bar)
    assert bar.shown[-1][0] == bar.shown[-1][1]
    names = list(dict.fromkeys(title.partition(": ")[0] for title in bar.titles))
    assert names == [method("qffl").label, method("term").label]
