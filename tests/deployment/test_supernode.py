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
from udjfl.deployment.pauses import GrowingPause
from udjfl.deployment.supernode import WAITS


def test_flower_asks_for_the_waits_that_are_shortened() -> None:
    tree = ast.parse(inspect.getsource(importlib.import_module(flwr_internals.SUPERNODE)))
    asked = [
        ast.literal_eval(node.args[0])
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "time.sleep"
    ]
    assert set(asked) == WAITS.keys()


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
