"""The machinery of the benchmarks, without the clock."""

from __future__ import annotations

import copy
import io
import json
import os
import re
import sys
import time
from pathlib import Path

import pytest
import torch

import udjfl

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks import (  # noqa: E402
    comparison,
    figures,
    flower_overhead,
    flower_rounds,
    points,
    suites,
    tables,
    targets,
    tricks,
)
from benchmarks.child import Child, ContenderError  # noqa: E402
from benchmarks.contender import serve  # noqa: E402
from benchmarks.contenders.loops import DataLoaderLoop, PlainLoop  # noqa: E402
from benchmarks.contenders.udjfl_grid import OneByOne, Together  # noqa: E402
from benchmarks.contenders.udjfl_runs import Simulation  # noqa: E402
from benchmarks.counting import Contender, count_work  # noqa: E402
from benchmarks.environments import child_environment  # noqa: E402
from benchmarks.measure import run_suite  # noqa: E402
from benchmarks.work import MODELS, Work, flops, make_data  # noqa: E402

TINY = Work(clients=3, train=300, test=60)
README = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
STORED = json.loads((ROOT / "benchmarks" / "results.json").read_text(encoding="utf-8"))


def small_results():
    """A made-up run: ours takes 20 ms, fluke 60, the plain loop 40; the limit is 10 ms."""
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


def test_the_arithmetic_of_a_round_by_hand():
    # Per example: training 2 (2 * 784 * 64 + 3 * 64 * 10), testing 2 (784 * 64 + 64 * 10);
    # 24,000 and 6,000 examples.
    assert flops(Work()) == 24_000 * 204_544 + 6_000 * 101_632
    assert flops(Work(clients=15, settings=8)) == 24 * flops(Work())


def test_the_expected_work_of_a_round():
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


@pytest.mark.parametrize("cls", [PlainLoop, DataLoaderLoop])
def test_loops_do_the_expected_work(cls):
    contender = cls(TINY)
    check, reference = contender.check(2), PlainLoop(TINY).check(2)
    assert figures.work_differences(check, TINY.expected(2), reference) == []


@pytest.mark.parametrize("engine", ["serial", "stacked"])
def test_udjfl_does_the_expected_work(engine):
    # The global test set of ten examples is a large share of so little work.
    check = Simulation(TINY, engine).check(2)
    wrong = figures.work_differences(
        {**check, "tested": check["tested"] - 20}, TINY.expected(2), PlainLoop(TINY).check(2)
    )
    assert wrong == []


def test_the_grid_together_does_the_work_of_one_by_one():
    work = Work(clients=3, train=150, test=30, settings=8)
    alone, together = OneByOne(work, "auto").check(1), Together(work, "auto").check(1)
    assert {name: alone[name] for name in ("steps", "examples")} == {"steps": 48, "examples": 3600}
    assert together == pytest.approx(alone, rel=1e-5)


def test_without_momentum_no_step_counts():
    with count_work(momentum=0.9) as counts:
        PlainLoop(Work(clients=1, train=130, test=10, momentum=0.0)).run(1)
    assert counts.as_dict() == {"steps": 0, "examples": 130, "tested": 10}


def test_without_shuffling_the_loss_differs(monkeypatch):
    work = Work(clients=2, train=2400, test=300)
    reference = PlainLoop(work).check(1)
    monkeypatch.setattr(torch, "randperm", torch.arange)
    wrong = figures.work_differences(PlainLoop(work).check(1), work.expected(1), reference)
    assert any(difference.startswith("loss") for difference in wrong)


def test_every_difference_is_named():
    expected, fine = TINY.expected(1), {"loss": 1.0, "accuracy": 0.5, **TINY.expected(1)}
    assert figures.work_differences(fine, expected, fine) == []
    for name, off in {
        "steps": 10,
        "examples": 901,
        "tested": 190,
        "loss": 1.2,
        "accuracy": 0.6,
    }.items():
        (difference,) = figures.work_differences({**fine, name: off}, expected, fine)
        assert name in difference
        if name == "tested":
            assert figures.work_differences({**fine, name: 179}, expected, fine)


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


def test_the_pipe_answers_line_by_line_until_stop():
    messages = [
        {"command": "check", "rounds": 4},
        {"command": "run", "rounds": 2},
        {"command": "stop"},
        {"command": "run", "rounds": 5},
    ]
    contender, out = Scripted(), io.StringIO()
    serve(contender, [json.dumps(message) for message in messages], out)
    check, run = map(json.loads, out.getvalue().splitlines())
    assert check == {"steps": 4}
    assert run.keys() == {"seconds", "loss"}
    assert contender.calls == ["prepare", "run 2", "stop"]


def test_an_error_is_sent_in_one_line_before_it_ends_the_contender():
    out = io.StringIO()
    with pytest.raises(ValueError, match="thirteen"):
        serve(Scripted(), [json.dumps({"command": "run", "rounds": 13})], out)
    assert json.loads(out.getvalue()) == {"error": "ValueError: thirteen"}


def test_a_contender_that_cannot_start_gives_the_reason():
    with pytest.raises(ContenderError, match="ModuleNotFoundError"):
        Child(sys.executable, "no_such_contender", "x", TINY)


def test_a_child_answers_and_its_memory_is_measured():
    child = Child(sys.executable, "loops", "plain", TINY)
    try:
        assert child.ask("check", 2)["steps"] == TINY.expected(2)["steps"]
        assert child.ask("run", 1).keys() == {"seconds", "loss", "accuracy"}
    finally:
        child.close()
    assert child.memory.peak > 0
    assert child.process.poll() is not None


def test_figures_of_a_made_up_run():
    results = small_results()
    # The median ignores the 9 s.
    assert figures.times_faster(results, "round", "fluke", "udjfl stacked") == pytest.approx(3)
    assert figures.fraction_of_limit(results, "round", "udjfl stacked") == pytest.approx(0.5)
    assert figures.times_faster(results, "round", "flgo", "udjfl stacked") is None
    assert figures.fraction_of_limit(results, "grid", "udjfl together") is None


def test_targets_follow_the_measurements():
    results = small_results()
    reached = {target.title: target.reached(results) for target in targets.TARGETS}
    assert reached["the round, against fluke"] is True
    assert reached["the round, against pfl-research"] is None
    results["suites"]["round"]["contenders"]["fluke"]["seconds"] = [0.03]
    assert targets.TARGETS[0].reached(results) is False


def test_tables_show_failures_and_different_work():
    text = tables.report(small_results())
    assert "**failed**: not installed: no such version" in text
    assert "**differs**: 7 steps, not 190" in text
    assert "| the round, against fluke | at least 2.50x | 3.00x | yes |" in text
    assert "- udjfl stacked, fluke: a" in text


def test_a_short_or_broken_run_is_marked():
    text = tables.report(small_results())
    assert "**Fewer than 7 repetitions: not to be quoted.**" in text
    assert "missing: flower; grid; many;" in text
    assert "D = 5,000,000" in text
    assert "**" not in tables._shortcomings({"kind": "quick", "repetitions": 7, "suites": {}})


def test_the_profile_is_shown_or_why_there_is_none():
    profile = {"clock": {"the round": 81.52}, "one core": {"matrix products": 44.4}}
    text = tables.report({**small_results(), "profile": profile})
    assert "| the round | 81.5 |" in text
    assert "| matrix products | 44.4 |" in text
    assert "Not measured: no profiler" in tables.report(
        {**small_results(), "profile": {"failed": "no profiler"}}
    )


def test_every_number_of_the_tables_comes_from_the_results():
    """With other measurements, every line with a measurement changes."""
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
    for name in ("tables.py", "tricks.py", "markdown.py"):
        source = (ROOT / "benchmarks" / name).read_text(encoding="utf-8")
        assert not re.search(r"\d+(\.\d+)?(x|%| ms| MB)", source.replace("x 48 ex", ""))


def test_the_readme_has_the_tables_of_the_stored_results():
    assert tables.insert_results(README, STORED) == README


def test_the_stored_results_name_no_host_and_no_path():
    assert not re.search(r"/(home|work|root|tmp|usr|opt)/|https?:", json.dumps(STORED) + README)


def test_a_round_on_flower_is_shown_as_a_multiple_of_the_simulators():
    """Medians 10 ms, 250 ms and 5 s; the last way has other accuracies, so its work differs."""
    described = "taken cpu cores memory_gb system python torch udjfl flwr load_before"
    ways = {
        flower_overhead.SIMULATOR: {
            "seconds": [0.01, 0.01, 0.9],
            "accuracies": {"a": 50.0, "b": 80.0},
        },
        flower_overhead.ONE_PROCESS: {
            "seconds": [0.2, 0.25, 0.3],
            "accuracies": {"a": 50.0, "b": 80.1},
        },
        flower_overhead.SUPERNODES: {
            "seconds": [4.0, 5.0, 6.0],
            "accuracies": {"a": 50.0, "b": 70.0},
        },
    }
    text = flower_overhead.report(
        {"machine": dict.fromkeys(described.split(), "m"), "clients": 2, "ways": ways}
    )
    assert "| simulator | 10.0 | 10.0 to 900 | 1.00x | 3 | yes |" in text
    assert "| Flower, one process | 250 | 200 to 300 | 25.00x | 3 | yes |" in text
    assert "| Flower, SuperNodes | 5,000 | 4,000 to 6,000 | 500x | 3 | **no** |" in text


def test_the_first_round_does_not_count_and_a_missing_one_is_noticed():
    assert flower_overhead.seconds_of_rounds([10.0, 11.0, 13.0, 16.0]) == [1.0, 2.0, 3.0]
    with pytest.raises(RuntimeError, match="2 rounds were seen to end, not 4"):
        flower_overhead.seconds_of_rounds([10.0, 11.0])


def test_the_end_of_a_round_is_noticed_in_its_records(tmp_path):
    records = tmp_path / "records.jsonl"
    with flower_overhead.RoundEnds(records) as ends:
        for expected in (1, 2, 3):
            with records.open("a") as file:
                file.write("{}\n")
            while len(ends.times) < expected:
                time.sleep(flower_overhead.POLL_SECONDS)
    assert len(ends.times) == 3
    assert ends.times == sorted(ends.times)


def test_the_simulators_rounds_are_timed_one_by_one(tmp_path):
    federation = udjfl.load("dirty-digits", seed=0, clients=2)
    ends = flower_overhead._simulate(federation, tmp_path / "run")
    assert len(flower_overhead.seconds_of_rounds(ends)) == 3
    assert (tmp_path / "run" / "result.json").exists()


def test_without_flower_its_overhead_is_not_measured(monkeypatch):
    monkeypatch.setattr(flower_overhead.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match=r"pip install 'udjfl\[flower\]'"):
        flower_overhead.measure(7)


def comparison_results():
    """This checkout takes 11, 10 and 12 ms, the other one 10, 10 and 10."""
    records = {
        "udjfl": {"seconds": [0.011, 0.010, 0.012]},
        f"udjfl{comparison.OTHER}": {"seconds": [0.010] * 3},
    }
    suite = {"title": "T", "work": vars(TINY), "contenders": records, "others": 0.25}
    return {"repetitions": 3, "suites": {"round": suite}}


def test_two_checkouts_are_compared_as_a_ratio_and_a_slower_one_is_marked():
    text = comparison.report(comparison_results())
    assert "| T, udjfl | 3 | 11.0 | 10.0 | **1.100** | 1.000 to 1.200 |" in text
    assert "3,667 against 3,333" in text  # microseconds of one of three clients
    faster = comparison_results()
    faster["suites"]["round"]["contenders"]["udjfl"]["seconds"] = [0.009] * 3
    assert "| 0.900 |" in comparison.report(faster)


def test_a_checkout_that_cannot_be_measured_has_the_reason_in_its_line():
    results = comparison_results()
    results["suites"]["round"]["contenders"]["udjfl"] = {"failed": "ImportError: no such name"}
    assert "**failed**: ImportError: no such name" in comparison.report(results)


def test_both_checkouts_do_each_work_and_500_clients_are_among_it(tmp_path):
    assert 500 in [suite.work.clients for suite in comparison.SUITES]
    for suite in comparison.SUITES:
        entries = comparison.with_other(suite, tmp_path).entries
        assert [entry.source for entry in entries[:2]] == [None, str(tmp_path)]
        assert len(entries) == 2 * len(suite.entries)
    with pytest.raises(SystemExit, match="has no src/udjfl"):
        comparison.measure(tmp_path, 1)


def test_a_contender_imports_udjfl_from_its_source(tmp_path):
    assert child_environment()["PYTHONPATH"].startswith(str(ROOT / "src"))
    assert child_environment("elsewhere")["PYTHONPATH"].startswith("elsewhere")
    package = tmp_path / "udjfl"
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError('the other one')")
    with pytest.raises(ContenderError, match="the other one"):
        Child(sys.executable, "udjfl_runs", "stacked", TINY, str(tmp_path))


@pytest.mark.parametrize("trick", tricks.TRICKS, ids=lambda trick: trick.name)
def test_every_trick_can_be_left_out(trick):
    """By a variant that exists; the names it changes are those of the engine."""
    from benchmarks.contenders import udjfl_tricks

    assert {trick.variant, trick.without} <= set(udjfl_tricks.VARIANTS)


def test_a_trick_is_measured_with_and_without_it(monkeypatch):
    """In processes of their own, with equal work."""
    small = suites.Suite("round", "T", TINY, 1, (), "")
    trick = tricks.Trick("pages", "huge pages", "data/_contiguous", small, "small pages")
    record = run_suite(tricks._suite_of(trick), 1)["contenders"]
    assert record[tricks.ALL]["check"] == record["small pages"]["check"]
    monkeypatch.setattr(tricks, "TRICKS", (trick,))
    measured = {"with": [0.009], "without": [0.010], "failed": None, "others": 0.0}
    about = {"title": "huge pages", "module": "data/_contiguous", "work": "T"}
    text = tricks.report(
        {
            "machine": {"taken": "m", "cores": 2},
            "repetitions": 1,
            "measured": {"pages": {**about, **measured}},
        }
    )
    assert "| huge pages | `data/_contiguous` | T | 9.0 | 10.0 | 10% | 0.00 |" in text
    assert "**Fewer than 9 repetitions: not to be quoted.**" in text
    assert "Missing" not in text
    assert "busy" not in text


# --- Points together ---


def test_figures_of_points_together():
    """8 x 5 x 4,800 examples: 6 x 50,176 + 8 x 640 operations each with the received losses."""
    operations = 8 * 5 * 4800 * (6 * 50_176 + 8 * 640)
    forward = 8 * 5 * 4800 * 2 * (50_176 + 640)
    measured = {
        "rate": [1e11, 1e11, 9e99],
        "together": [2 * operations / 1e11],
        "received": [1.2 * forward / 1e11],
        **{name: [2.0] for name in points.GOALS if name not in ("together", "received")},
        **{name + points.ALONE: [13.0] for name in points.GOALS},
    }
    del measured["together" + points.ALONE], measured["received" + points.ALONE]
    found = {name: points.figure(name, measured) for name in points.GOALS}
    assert found["together"] == pytest.approx(0.5)
    assert found["received"] == pytest.approx(1.2)
    assert found["scanners"] == 6.5
    part = {
        "machine": STORED["machine"],
        "repetitions": 9,
        "others": 0.05,
        "measured": dict.fromkeys(points.CLOCKS, measured),
    }
    text = points.report(dict.fromkeys(points.PARTS, part))
    assert "at least 78% | 50% | 50% | no |" in text
    assert "at most 1.30x | 1.20x | 1.20x | yes |" in text
    assert "| – | 6.50x | 6.50x | – | 0.05 |" in text, "given uncertainties promise nothing"
    assert "not to be quoted" not in text
    text = points.report({"scanners": {**part, "others": 1.5}})
    assert "not to be quoted" in text
    assert "78%" not in text, "a part that was not measured has no row"


def test_cpu_is_split_between_messages_and_nodes() -> None:
    """Process 1 stays and its ended children used 4 s more; process 3 came, and used 2 s so far."""
    before = {1: (10.0, 5.0), 2: (1.0, 0.0)}
    after = {1: (11.0, 9.0), 2: (1.5, 0.0), 3: (2.0, 0.0)}
    cpu = flower_rounds.split_cpu(before, after)
    assert cpu == {"message_cpu": 6.0, "node_cpu": 1.5}


def test_this_process_is_among_those_that_are_read() -> None:
    own, _ = flower_rounds.read_processes([os.getpid()])[os.getpid()]
    assert own > 0
    assert flower_rounds.read_processes([]) == {}


def test_supernodes_are_compared_with_those_of_another_checkout() -> None:
    about = {**dict.fromkeys(["udjfl", "flwr", "load_before", "taken", "cpu", "cores"], "m")}
    about |= dict.fromkeys(["memory_gb", "system", "python", "torch"], "m")
    turns = [
        {
            "side": side,
            "nodes": 3,
            "seconds": [seconds],
            "messages": messages,
            "message_cpu": cpu,
            "node_cpu": 6.0,
            "accuracies": {"a": 50.0},
        }
        for side, seconds, messages, cpu in (("before", 20.0, 24, 120.0), ("after", 4.0, 15, 3.0))
    ]
    results = {"machine": about, "against": "abc", "turns": turns}
    text = flower_rounds.report(results)
    assert "| 3 | CPU s per message: its process | 5.00 | 0.20 | 25.0x | at least 20x |" in text
    assert "| 3 | seconds per round | 20.00 | 4.00 | 5.0x | at least 6x |" in text
    assert "The same accuracies before and now" in text
