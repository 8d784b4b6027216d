"""What tables say about clients that would be better off alone."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

from paired_comparison import compare_gains, with_alone
from rich.console import Console

import udjfl
from udjfl.report.comparison_table import comparison_view, result_view
from udjfl.report.joining import joining_lines, joining_of_run
from udjfl.training.result import FinishedRun


def printed(view: Any, width: int) -> str:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    console.print(view)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


ALONE = {f"client-{i}": a for i, a in enumerate([99.0, 80.0, 70.0, 60.0, 50.0], start=1)}


def test_the_table_says_who_would_be_better_off_alone() -> None:
    comparison = with_alone(compare_gains({udjfl.method("rawls"): [6.0, 0, 0, 0, 0]}), ALONE)
    (line,) = joining_lines(comparison)
    # FedAvg gives client-1 94, Rawls 100; alone it has 99.
    assert line.endswith(
        "Better off alone (paired t-tests over seeds, Holm): FedAvg: client-1 (-5.0)."
    )
    shown = printed(comparison_view(comparison), 120)
    assert "Alone" in shown
    assert "99.00" in shown
    assert comparison.as_dict()["methods"][0]["joining"]["client-1"]["better_off_alone"] is True


def test_few_seeds_leave_it_undecided() -> None:
    few = with_alone(compare_gains({udjfl.method("rawls"): [0.0] * 5}, seeds=2), ALONE)
    (line,) = joining_lines(few)
    assert "undecided with fewer than 5 seeds: FedAvg: client-1" in line
    assert joining_lines(compare_gains({})) == []


def test_one_run_names_clients_beyond_test_noise() -> None:
    run = FinishedRun(
        method=udjfl.FedAvg(),
        seed=0,
        metrics={},
        undefined={},
        client_scores={"a": 70.0, "b": 85.0, "c": 88.0},
        uncertainty={"a": 0.1, "b": 0.1, "c": 0.1},
        test_sizes={"a": 100, "b": 100, "c": 100},
        accuracy_alone={"a": 90.0, "b": 90.0},
    )
    # 1.96 sqrt(2 * 90 * 10 / 100) = 8.3: 20 is beyond, 5 is not.
    (line,) = joining_of_run(run)
    assert line.endswith("by more than the noise of test parts: a (-20.0).")
    assert "Alone" in printed(result_view(run), 100)
    assert joining_of_run(replace(run, accuracy_alone=None)) == []
