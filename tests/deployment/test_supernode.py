"""A SuperNode's pauses, and what runs where they cannot be replaced."""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from udjfl.deployment import flwr_internals, supernode
from udjfl.deployment.supernode import FIRST_PAUSES, GrowingPause


def pauses_for(*asked: float) -> list[float]:
    """Return how long each sleep takes that is asked for."""
    slept: list[float] = []
    clock = GrowingPause(slept.append)
    for seconds in asked:
        clock.sleep(seconds)
    return slept


def test_pauses_grow_up_to_those_of_flower() -> None:
    pauses = pauses_for(*[3] * 12)
    assert pauses[:3] == pytest.approx([0.1, 0.15, 0.225])
    assert pauses[-2:] == [3, 3]
    assert pauses == sorted(pauses)


def test_a_message_starts_a_short_wait_for_the_next() -> None:
    """Waiting for a message, for the reply to it, and for the next message."""
    pauses = pauses_for(*[3] * 12, *[0.5] * 8, *[3] * 2)
    assert pauses[12:14] == pytest.approx([0.05, 0.075])
    assert pauses[19] == 0.5
    assert pauses[20:] == pytest.approx([0.1, 0.15])


def test_at_most_a_third_of_a_wait_is_lost_and_a_wait_costs_few_requests() -> None:
    pauses = pauses_for(*[3] * 12)
    for number, pause in enumerate(pauses):
        assert pause <= (sum(pauses[: number + 1])) / 3 + 0.1
    assert sum(pause < 3 for pause in pauses) == 9


def test_other_waits_are_as_asked_for() -> None:
    assert pauses_for(7, 7, 0.2) == [7, 7, 0.2]


def test_flower_asks_for_the_waits_that_are_shortened() -> None:
    tree = ast.parse(inspect.getsource(importlib.import_module(flwr_internals.SUPERNODE)))
    asked = [
        ast.literal_eval(node.args[0])
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "time.sleep"
    ]
    assert set(asked) == FIRST_PAUSES.keys()


def test_flowers_supernode_runs_with_these_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = importlib.import_module(flwr_internals.SUPERNODE)
    clocks = []
    monkeypatch.setattr(module, "time", module.time)  # restored at the end
    monkeypatch.setattr(
        "flwr.supernode.cli.flower_supernode", lambda: clocks.append(vars(module)["time"])
    )
    supernode.main()
    assert [type(clock) for clock in clocks] == [GrowingPause]


def test_elsewhere_flowers_own_program_runs_with_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    replaced: list[list[str]] = []
    monkeypatch.setattr(os, "execvp", lambda _, command: replaced.append(command))
    monkeypatch.setattr(supernode, "show_log", lambda: None)
    monkeypatch.setattr("flwr.__version__", "1.99.0")
    monkeypatch.setattr(sys, "argv", ["supernode", "--superlink", "fl.example.org:8443"])
    supernode.main()
    ((program, *arguments),) = replaced
    assert Path(program).name == "flower-supernode"
    assert arguments == ["--superlink", "fl.example.org:8443"]
    assert "flwr is 1.99.0" in caplog.text
