"""The benchmarks' machinery: what can be tested without a clock."""

from __future__ import annotations

import copy
import io
import json
import re
import sys
import time
from pathlib import Path

import pytest
import torch

import udjfl

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks import figures, flower_overhead, tables, targets  # noqa: E402
from benchmarks.child import Child, ContenderError  # noqa: E402
from benchmarks.contender import serve  # noqa: E402
from benchmarks.contenders.loops import DataLoaderLoop, PlainLoop  # noqa: E402
from benchmarks.contenders.udjfl_grid import OneByOne, Together  # noqa: E402
from benchmarks.contenders.udjfl_runs import Simulated  # noqa: E402
from benchmarks.counting import Contender, counted  # noqa: E402
from benchmarks.work import MODELS, Work, flops, make_data  # noqa: E402

TINY = Work(clients=3, train=300, test=60)
README = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
KEPT = json.loads((ROOT / "benchmarks" / "results.json").read_text(encoding="utf-8"))


def small_results():
    """A run by hand: ours takes 20 ms, fluke 60, the plain loop 40; the GEMM rate makes the limit 10 ms."""
    work = Work()
    fine = {"loss": 1.5, "accuracy": 0.5, **work.expected(1)}
    contenders = {
        "GEMM limit": {"rates": [flops(work) / 0.010], "seconds": [1.0], "check": {"rate": 1.0}},
        "udjfl stacked": {
            "seconds": [0.02, 0.02, 9.0],
            "check": fine,
            "memory": 300_000_000,
            "startup": 2.0,
            "setup": "a",
        },
        "plain loop": {
            "seconds": [0.04],
            "check": fine,
            "memory": 200_000_000,
            "startup": 2.0,
            "setup": "b",
        },
        "fluke": {
            "seconds": [0.06],
            "check": {**fine, "steps": 7},
            "memory": 1,
            "startup": 2.0,
            "setup": "a",
        },
        "flgo": {"failed": "not installed: no such version"},
    }
    machine = dict.fromkeys(
        ("taken", "cpu", "cores", "memory_gb", "system", "python", "torch", "udjfl", "load_before"),
        "m",
    )
    suite = {
        "title": "T",
        "work": vars(work),
        "rounds": 1,
        "checked_rounds": 1,
        "ours": "udjfl stacked",
        "contenders": contenders,
        "others": 0.0,
    }
    return {
        "kind": "full",
        "machine": {**machine, "peers": {"p": "p 1"}},
        "repetitions": 3,
        "suites": {"round": suite},
    }


def test_the_arithmetic_of_the_round_is_counted_by_hand():
    # Per example: training 2 (2 * 784 * 64 + 3 * 64 * 10), testing 2 (784 * 64 + 64 * 10); 24,000 and 6,000 examples.
    assert flops(Work()) == 24_000 * 204_544 + 6_000 * 101_632
    assert flops(Work(clients=15, settings=8)) == 24 * flops(Work())


def test_what_a_round_should_be():
    # 300 examples are 3 batches of 128.
    assert TINY.expected(2) == {"steps": 18, "examples": 1800, "tested": 360}
    assert Work.from_json(TINY.to_json()) == TINY


def test_data_and_models_are_the_same_every_time_and_sorted_by_class():
    for first, again in zip(make_data(TINY), make_data(TINY), strict=True):
        assert torch.equal(first.x, again.x)
        assert torch.equal(first.y, again.y)
        assert (first.y.diff() >= 0).all()
    for make in MODELS.values():
        assert all(
            torch.equal(a, b) for a, b in zip(make().parameters(), make().parameters(), strict=True)
        )


@pytest.mark.parametrize("kind", [PlainLoop, DataLoaderLoop])
def test_loops_do_the_expected_work(kind):
    contender = kind(TINY)
    check, reference = contender.check(2), PlainLoop(TINY).check(2)
    assert figures.out_of_line(check, TINY.expected(2), reference) == []


@pytest.mark.parametrize("engine", ["serial", "stacked"])
def test_udjfl_does_the_expected_work(engine):
    # The global test set of ten examples is a larger share of so little work than of the real one.
    check = Simulated(TINY, engine).check(2)
    wrong = figures.out_of_line(
        {**check, "tested": check["tested"] - 20}, TINY.expected(2), PlainLoop(TINY).check(2)
    )
    assert wrong == []


def test_together_does_the_work_of_one_by_one():
    work = Work(clients=3, train=150, test=30, settings=8)
    alone, together = OneByOne(work, "auto").check(1), Together(work, "auto").check(1)
    assert {name: alone[name] for name in ("steps", "examples")} == {"steps": 48, "examples": 3600}
    assert together == pytest.approx(alone, rel=1e-5)


def test_without_momentum_no_step_counts():
    with counted(momentum=0.9) as counts:
        PlainLoop(Work(clients=1, train=130, test=10, momentum=0.0)).run(1)
    assert counts.as_dict() == {"steps": 0, "examples": 130, "tested": 10}


def test_without_shuffling_the_loss_is_out_of_line(monkeypatch):
    work = Work(clients=2, train=2400, test=300)
    reference = PlainLoop(work).check(1)
    monkeypatch.setattr(torch, "randperm", torch.arange)
    wrong = figures.out_of_line(PlainLoop(work).check(1), work.expected(1), reference)
    assert any(sentence.startswith("loss") for sentence in wrong)


def test_every_deviation_is_named():
    expected, fine = TINY.expected(1), {"loss": 1.0, "accuracy": 0.5, **TINY.expected(1)}
    assert figures.out_of_line(fine, expected, fine) == []
    for name, off in {
        "steps": 10,
        "examples": 901,
        "tested": 190,
        "loss": 1.2,
        "accuracy": 0.6,
    }.items():
        (sentence,) = figures.out_of_line({**fine, name: off}, expected, fine)
        assert name in sentence
        if name == "tested":
            assert figures.out_of_line({**fine, name: 179}, expected, fine)


class Scripted(Contender):
    def __init__(self):
        self.calls = []

    def prepare(self):
        self.calls.append("prepare")

    def run(self, rounds):
        self.calls.append(f"run {rounds}")
        if rounds == 13:
            raise ValueError("thirteen\nsecond line")
        return {"loss": 1.0}

    def check(self, rounds):
        return {"steps": rounds}

    def stop(self):
        self.calls.append("stop")


def test_the_pipe_answers_line_by_line_and_stops_when_told():
    asked = [
        {"do": "check", "rounds": 4},
        {"do": "run", "rounds": 2},
        {"do": "stop"},
        {"do": "run", "rounds": 5},
    ]
    contender, out = Scripted(), io.StringIO()
    serve(contender, [json.dumps(message) for message in asked], out)
    check, run = map(json.loads, out.getvalue().splitlines())
    assert check == {"steps": 4}
    assert run.keys() == {"seconds", "loss"}
    assert contender.calls == ["prepare", "run 2", "stop"]


def test_an_error_is_told_in_one_line_before_it_ends_the_contender():
    out = io.StringIO()
    with pytest.raises(ValueError, match="thirteen"):
        serve(Scripted(), [json.dumps({"do": "run", "rounds": 13})], out)
    assert json.loads(out.getvalue()) == {"error": "ValueError: thirteen"}


def test_a_contender_that_cannot_start_says_why():
    with pytest.raises(ContenderError, match="ModuleNotFoundError"):
        Child(sys.executable, "no_such_contender", "x", TINY)


def test_a_child_does_what_it_is_asked_and_its_memory_is_seen():
    child = Child(sys.executable, "loops", "plain", TINY)
    try:
        assert child.ask("check", 2)["steps"] == TINY.expected(2)["steps"]
        assert child.ask("run", 1).keys() == {"seconds", "loss", "accuracy"}
    finally:
        child.close()
    assert child.memory.peak > 0
    assert child.process.poll() is not None


def test_figures_of_a_run_by_hand():
    results = small_results()
    assert figures.times_faster(results, "round", "fluke", "udjfl stacked") == pytest.approx(
        3
    )  # the median ignores the 9 s
    assert figures.fraction_of_limit(results, "round", "udjfl stacked") == pytest.approx(0.5)
    assert figures.times_faster(results, "round", "flgo", "udjfl stacked") is None
    assert figures.fraction_of_limit(results, "grid", "udjfl together") is None


def test_targets_are_judged_by_the_measurements():
    results = small_results()
    judged = {target.title: target.reached(results) for target in targets.TARGETS}
    assert judged["the round, against fluke"] is True
    assert judged["the round, against pfl-research"] is None
    results["suites"]["round"]["contenders"]["fluke"]["seconds"] = [0.03]
    assert targets.TARGETS[0].reached(results) is False


def test_tables_show_failures_and_unequal_work():
    text = tables.report(small_results())
    assert "**failed**: not installed: no such version" in text
    assert "**not in line**: 7 steps, not 190" in text
    assert "| the round, against fluke | at least 2.50x | 3.00x | yes |" in text
    assert "- udjfl stacked, fluke: a" in text


def test_a_short_or_broken_run_says_so():
    text = tables.report(small_results())
    assert "**Fewer than 7 repetitions: not to be quoted.**" in text
    assert "missing: flower; grid; many;" in text
    assert "D = 5,000,000" in text
    assert "**" not in tables._shortcomings({"kind": "quick", "repetitions": 7, "suites": {}})


def test_where_the_time_goes_is_shown_or_why_not():
    found = {"clock": {"the round": 81.52}, "one core": {"matrix products": 44.4}}
    text = tables.report({**small_results(), "profile": found})
    assert "| the round | 81.5 |" in text
    assert "| matrix products | 44.4 |" in text
    assert "Not measured: no profiler" in tables.report(
        {**small_results(), "profile": {"failed": "no profiler"}}
    )


def test_every_number_of_the_tables_comes_from_the_results():
    """With other measurements the tables change wherever a measurement is shown; nothing is fixed text."""
    results = small_results()
    other = copy.deepcopy(results)
    for record in other["suites"]["round"]["contenders"].values():
        for key in ("seconds", "rates"):
            record[key] = [7.3 * value for value in record.get(key, [])] or record.get(key)
        record["memory"] = record.get("memory", 0) * 3
    changed = zip(
        tables.report(results).splitlines(), tables.report(other).splitlines(), strict=True
    )
    same = [
        a
        for a, b in changed
        if a == b and "not measured" not in a and re.search(r"\d (GFLOP|MB)|\| [\d.,]+ \|", a)
    ]
    assert same == []
    source = (ROOT / "benchmarks" / "tables.py").read_text(encoding="utf-8")
    assert not re.search(r"\d+(\.\d+)?(x|%| ms| MB)", source)


def test_the_readme_has_the_tables_of_the_results_that_are_kept():
    assert tables.with_results(README, KEPT) == README


def test_the_results_that_are_kept_name_no_host_and_no_path():
    assert not re.search(r"/(home|work|root|tmp|usr|opt)/|https?:", json.dumps(KEPT) + README)


def test_a_round_on_flower_is_told_as_a_multiple_of_the_simulators():
    """Medians by hand: 10 ms, 250 ms and 5 s; the last way ends elsewhere, so its work was not the same."""
    described = "taken cpu cores memory_gb system python torch udjfl flwr load_before"
    ways = {
        flower_overhead.SIMULATOR: {
            "seconds": [0.01, 0.01, 0.9],
            "accuracies": {"a": 50.0, "b": 80.0},
        },
        flower_overhead.WARM: {"seconds": [0.2, 0.25, 0.3], "accuracies": {"a": 50.0, "b": 80.1}},
        flower_overhead.SUPERNODES: {
            "seconds": [4.0, 5.0, 6.0],
            "accuracies": {"a": 50.0, "b": 70.0},
        },
    }
    text = flower_overhead.report(
        {"machine": dict.fromkeys(described.split(), "m"), "clients": 2, "ways": ways}
    )
    assert "| simulator | 10.0 | 10.0 to 900 | 1.00x | 3 | yes |" in text
    assert "| Flower, warm clients | 250 | 200 to 300 | 25.00x | 3 | yes |" in text
    assert "| Flower, SuperNodes | 5,000 | 4,000 to 6,000 | 500x | 3 | **no** |" in text


def test_the_round_that_warms_up_does_not_count_and_a_missed_one_is_noticed():
    assert flower_overhead.seconds_of_rounds([10.0, 11.0, 13.0, 16.0]) == [1.0, 2.0, 3.0]
    with pytest.raises(RuntimeError, match="2 rounds were seen to end, not 4"):
        flower_overhead.seconds_of_rounds([10.0, 11.0])


def test_the_end_of_a_round_is_seen_in_its_records(tmp_path):
    records = tmp_path / "records.jsonl"
    with flower_overhead.RoundEnds(records) as ends:
        for expected in (1, 2, 3):
            with records.open("a") as file:
                file.write("{}\n")
            while len(ends.seen) < expected:
                time.sleep(flower_overhead.LOOK)
    assert len(ends.seen) == 3
    assert ends.seen == sorted(ends.seen)


def test_the_simulators_rounds_are_timed_one_by_one(tmp_path):
    federation = udjfl.load("dirty-digits", seed=0, clients=2)
    assert (
        len(
            flower_overhead.seconds_of_rounds(
                flower_overhead._simulated(federation, tmp_path / "run")
            )
        )
        == 3
    )
    assert (tmp_path / "run" / "result.json").exists()


def test_without_flower_its_overhead_is_not_measured(monkeypatch):
    monkeypatch.setattr(flower_overhead.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match=r"pip install 'udjfl\[flower\]'"):
        flower_overhead.measure(7)
