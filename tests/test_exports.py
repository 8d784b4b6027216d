"""The public names: sorted, complete, and cheap to have."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import udjfl


def isort_style(name: str) -> tuple[int, list[str | int], str]:
    """Constants first, then classes, then the rest, each counting as people do (ruff's RUF022)."""
    group = 0 if name.isupper() and len(name) > 1 else 1 if name[0].isupper() else 2
    parts: list[str | int] = list(re.split(r"([0-9]+)", name))
    parts[1::2] = [int(digits) for digits in parts[1::2]]
    return group, parts, name


def test_sorted_and_each_once() -> None:
    assert udjfl.__all__ == sorted(udjfl.__all__, key=isort_style)
    assert len(set(udjfl.__all__)) == len(udjfl.__all__)


def test_complete() -> None:
    assert set(udjfl.__all__) == set(udjfl._HOME)
    assert set(udjfl.__all__) <= set(dir(udjfl))
    # What a newcomer needs to run, compare, and write a method of their own.
    assert {
        "Federation",
        "Method",
        "Plan",
        "Reports",
        "ServedModels",
        "Setup",
        "compare",
        "load",
        "method",
        "parameters",
        "simulate",
    } <= set(udjfl.__all__)


@pytest.mark.parametrize("name", sorted(udjfl.__all__))
def test_importable_from_its_home(name: str) -> None:
    home = importlib.import_module(f"udjfl.{udjfl._HOME[name]}")
    assert getattr(udjfl, name) is getattr(home, name)


def test_every_error_is_public() -> None:
    """A caller catches what udjfl raises without reaching into its modules."""
    errors = importlib.import_module("udjfl.errors")
    raised = {
        name
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, errors.UdjflError)
    }
    assert raised <= set(udjfl.__all__)


def test_unknown_name() -> None:
    with pytest.raises(AttributeError, match="'simulator'"):
        _ = udjfl.simulator


def test_type_checkers_see_the_same_names() -> None:
    """The names under TYPE_CHECKING, which editors read, are the public ones, from the same homes."""
    tree = ast.parse(Path(udjfl.__file__).read_text(encoding="utf-8"))
    guard = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {
        alias.name: node.module
        for node in guard.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert seen == {name: f"udjfl.{home}" for name, home in udjfl._HOME.items()}


def test_import_does_not_wait_for_torch() -> None:
    script = "import sys, udjfl; print(sorted({'torch', 'sklearn', 'scipy', 'pydantic', 'rich'} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_commands_and_settings_do_not_wait_for_torch() -> None:
    script = (
        "import sys, udjfl.cli.run; print(sorted({'torch', 'sklearn', 'scipy'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
