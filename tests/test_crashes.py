"""A crash, a full disk or a torn write at every effect on the disk; the same bytes afterwards.

`make soak` runs all of them for all commands; here a single run is crashed at each effect, and the
other faults and commands are sampled.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from fault_injection import FINISHED, REFUSED, Fault, fork, preload, run_forked, run_here
from small_runs import make_federation, read_files

import udjfl
from udjfl.paper.run import reproduce_distributions, reproduce_solo
from udjfl.paper.settings import ReproduceSettings
from udjfl.search.frontier import trace_frontier
from udjfl.search.settings import FrontierSettings, TuneSettings
from udjfl.search.tune import tune as search_point
from udjfl.training import folder_lock, run_folder

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
FAST: dict[str, Any] = {"model": "logistic", "uncertainty_epochs": 1, "workers": 1}
REFUSED_AS_SECOND = 4
# While the first writes, or when it has finished before the second could begin.
SECOND = ("is being written by process", "already holds a ")
Scenario = Callable[[Path], object]


def run(out: Path) -> object:
    how = {**FAST, "rounds": 7, "checkpoint_every": 2, "service": "prior-all"}
    return udjfl.simulate(make_federation(), "rawls", out=out, resume=True, **how)


def compare(out: Path) -> object:
    """Two seeds in two processes."""
    how = {**FAST, "rounds": 7, "checkpoint_every": 2, "uncertainty_folds": 2}
    return udjfl.compare(
        make_federation(), "rawls", seeds=2, jobs=2, out=out, resume=out.exists(), **how
    )


def reproduce(out: Path) -> object:
    """Clients alone on two seeds, then three comparisons on one."""
    settings = ReproduceSettings(
        data="dirty-digits", seeds=[0, 1], epochs=1, rounds=7, model="logistic", workers=1, jobs=1
    )
    alone = reproduce_solo(settings, out / "solo")
    settings = settings.model_copy(update={"seeds": [0]})
    return alone, reproduce_distributions(settings, out / "distributions")


def tune(out: Path) -> object:
    """Choose on one seed, then test what was chosen."""
    given: dict[str, Any] = {"rounds": 7, "seeds": [0], "jobs": 1, "budget": 90.0, "cost": 14.0}
    settings = TuneSettings(theory="egalitarian", **FAST, **given)
    return search_point(settings, data=make_federation(), out=out)


def frontier(out: Path) -> object:
    """Two seeds in two processes."""
    few: dict[str, Any] = {"exponents": [1.0], "gammas": [0.0], "budgets": [], "methods": []}
    few |= {"rounds": 2, "seeds": [0, 1], "jobs": 2}
    settings = FrontierSettings(**FAST, **few)
    return trace_frontier(settings, data=lambda seed: make_federation(seed=seed), out=out)


def serve(out: Path) -> object:
    """Run Flower's server, with clients in the same process."""
    grid = pytest.importorskip("in_process_grid", reason="needs Flower")
    changes = {"rounds": 7, "checkpoint_every": 2, "uncertainty_epochs": 1}
    has_begun = run_folder.RunFolder(out).holds_a_run
    return grid.run_strategy(make_federation(), "rawls", out=out, resume=has_begun, **changes)


SCENARIOS: dict[str, Scenario] = {
    "run": run,
    "compare": compare,
    "reproduce": reproduce,
    "tune": tune,
    "frontier": frontier,
    "serve": serve,
}
KINDS = ("kill", "full", "torn", "short", "parent")


class Crashes:
    """Faults of one scenario, with a count of what came of them."""

    def __init__(self, scenario: Scenario, folder: Path) -> None:
        self.scenario, self.folder = scenario, folder
        preload(lambda: scenario(folder / "first"))
        fault = Fault()
        assert run_forked(lambda: scenario(folder / "whole"), fault) == (FINISHED, "")
        self.whole = read_files(folder / "whole")
        self.effects = int(fault.count.value)
        self.outcomes: Counter[str] = Counter()

    def try_all(self, kinds: Iterable[str], step: int = 1) -> None:
        """Let each kind of fault happen at every effect, or at every few."""
        for kind in kinds:
            for number in range(1, self.effects + 1, step):
                self.try_one(kind, number)
        print(f"{self.effects} effects, {sum(self.outcomes.values())} faults: {self.outcomes}")

    def try_one(self, kind: str, number: int) -> None:
        out = self.folder / f"{kind}-{number}"
        code, text = run_forked(lambda: self.scenario(out), Fault(kind, number))
        where = f"{kind} at effect {number}: {code} {text}"
        assert code in (FINISHED, REFUSED, -9), where
        assert code != REFUSED or "full" in text or "was killed" in text, where
        again, text = run_forked(lambda: self.scenario(out))
        assert again == FINISHED, f"{where}; then {again} {text}"
        assert read_files(out) == self.whole, where
        names = {FINISHED: "went on", REFUSED: "said so", -9: "was killed"}
        self.outcomes[names[code]] += 1
        shutil.rmtree(out)


@pytest.fixture
def crashes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Crashes]:
    monkeypatch.setattr(folder_lock, "TIMEOUT", 20.0)  # for workers to be gone
    return lambda name: Crashes(SCENARIOS[name], tmp_path)


def test_a_run_killed_at_any_effect_ends_in_the_same_bytes(
    crashes: Callable[[str], Crashes],
) -> None:
    tried = crashes("run")
    assert tried.effects > 40
    tried.try_all(["kill"])
    assert tried.outcomes["was killed"] == tried.effects


@pytest.mark.parametrize("kind", ["full", "torn", "short"])
def test_other_faults_of_a_run_at_some_effects(
    crashes: Callable[[str], Crashes], kind: str
) -> None:
    crashes("run").try_all([kind], step=11)


@pytest.mark.parametrize("name", [name for name in SCENARIOS if name != "run"])
def test_other_commands_with_each_fault_at_some_effects(
    crashes: Callable[[str], Crashes], name: str
) -> None:
    tried = crashes(name)
    assert tried.effects > 20
    # Each fault somewhere else, so that together they are spread over all effects.
    for place, kind in enumerate(KINDS, start=1):
        tried.try_one(kind, place * tried.effects // (len(KINDS) + 1))


@pytest.mark.soak
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", SCENARIOS)
def test_every_fault_at_every_effect(
    crashes: Callable[[str], Crashes], name: str, kind: str
) -> None:
    crashes(name).try_all([kind])


# --- kills at random moments, and several processes at once


def start_forked(scenario: Callable[[], object]) -> int:
    """Start a scenario in a process of its own; return its id. Its exit code says how it ended."""
    pid = fork()
    if pid == 0:
        code, text = run_here(scenario)
        os._exit(REFUSED_AS_SECOND if any(words in text for words in SECOND) else code)
    return pid


def kill_at_random(
    scenario: Scenario, out: Path, kills: int, longest: float, chance: random.Random
) -> int:
    """Start a scenario and kill it at random moments, until it was killed so often before its end.

    Return how often it was. The longest time until a kill is that of the whole scenario, in
    seconds: then about half of the processes reach what earlier ones left to do.
    """
    hits, tries = 0, 0
    while hits < kills and tries < 20 * kills:
        tries += 1
        pid = start_forked(lambda: scenario(out))
        time.sleep(chance.uniform(0, longest))
        os.kill(pid, signal.SIGKILL)
        was_hit = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
        hits += was_hit
        if not was_hit:
            shutil.rmtree(out)  # it had finished: the next begins anew
    return hits


def race(scenario: Scenario, out: Path, count: int) -> Counter[int]:
    """Run a scenario in several processes at once; return how many ended with each code."""
    pids = [start_forked(lambda: scenario(out)) for _ in range(count)]
    return Counter(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids)


def check_kills_and_races(
    scenario: Scenario, folder: Path, kills: int, races: int, chance: random.Random
) -> None:
    preload(lambda: scenario(folder / "first"))
    start = time.monotonic()
    assert run_forked(lambda: scenario(folder / "whole")) == (FINISHED, "")
    longest = time.monotonic() - start
    whole = read_files(folder / "whole")
    hits = kill_at_random(scenario, folder / "killed", kills, longest, chance)
    assert run_forked(lambda: scenario(folder / "killed")) == (FINISHED, "")
    assert read_files(folder / "killed") == whole
    codes: Counter[int] = Counter()
    for number in range(races):
        out = folder / f"race-{number}"
        ended = race(scenario, out, 2 + number % 2)
        assert set(ended) <= {FINISHED, REFUSED_AS_SECOND}, ended
        assert ended[FINISHED] >= 1
        assert read_files(out) == whole
        codes += ended
        shutil.rmtree(out)
    assert hits == kills
    print(f"{kills} kills before the end; {races} races: {dict(codes)}; 0 bad")


def test_kills_and_races_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_lock, "TIMEOUT", 0.5)
    check_kills_and_races(run, tmp_path, 5, 2, random.Random(1))


@pytest.mark.soak
@pytest.mark.parametrize(
    ("name", "kills", "races"),
    [
        ("run", 60, 15),
        ("compare", 50, 15),
        ("reproduce", 20, 5),
        ("tune", 30, 5),
        ("frontier", 20, 5),
        ("serve", 20, 5),
    ],
)
def test_many_kills_and_races(tmp_path: Path, name: str, kills: int, races: int) -> None:
    check_kills_and_races(SCENARIOS[name], tmp_path, kills, races, random.Random(2))
