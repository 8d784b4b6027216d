"""The public names: complete, each listed once, and quick to import."""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest

import udjfl

MODULES = vars(udjfl)["_modules"]()


def test_each_name_is_listed_once_and_in_order() -> None:
    assert udjfl.__all__ == sorted(set(udjfl.__all__))
    table = Path(udjfl.__file__).with_suffix(".pyi").read_text(encoding="utf-8")
    imports = [node for node in ast.walk(ast.parse(table)) if isinstance(node, ast.ImportFrom)]
    # `import X as X` tells type checkers that X is public.
    assert [alias.name for node in imports for alias in node.names] == list(MODULES)
    assert all(alias.asname == alias.name for node in imports for alias in node.names)


def test_complete() -> None:
    assert {*udjfl.__all__, "__version__"} <= set(dir(udjfl))
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


def test_version() -> None:
    assert udjfl.__version__ == importlib.metadata.version("udjfl")


@pytest.mark.parametrize("name", sorted(udjfl.__all__))
def test_each_name_is_that_of_its_module(name: str) -> None:
    assert getattr(udjfl, name) is getattr(importlib.import_module(MODULES[name]), name)


def test_every_error_is_public() -> None:
    """A caller catches what udjfl raises without importing its modules."""
    errors = importlib.import_module("udjfl.errors")
    raised = {
        name
        for name, cls in vars(errors).items()
        if isinstance(cls, type) and issubclass(cls, errors.UdjflError)
    }
    assert raised <= set(udjfl.__all__)


def test_unknown_name() -> None:
    name = "simulator"
    with pytest.raises(AttributeError, match="'simulator'"):
        getattr(udjfl, name)


@pytest.mark.parametrize(
    ("module", "unwanted"),
    [
        ("udjfl", {"torch", "sklearn", "scipy", "pydantic", "rich", "typing", "pathlib"}),
        ("udjfl.cli.commands", {"torch", "sklearn", "scipy"}),
    ],
)
def test_imports_are_quick(module: str, unwanted: set[str]) -> None:
    script = (
        f"import sys; before = set(sys.modules); import {module}; print(set(sys.modules) - before)"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", f"import sys; sys.path[:0] = {sys.path}; {script}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert not unwanted & set(ast.literal_eval(done.stdout))
