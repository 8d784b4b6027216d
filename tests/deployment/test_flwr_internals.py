"""The installed Flower looks as warm clients expect, and another one is noticed."""

from __future__ import annotations

import importlib

import pytest

pytest.importorskip("flwr")

import flwr

from udjfl.deployment import flwr_internals


def test_the_installed_flower_is_as_expected() -> None:
    assert flwr_internals.find_mismatch() is None
    assert flwr_internals.find_supernode_mismatch() is None


@pytest.mark.parametrize("version", ["1.39.9", "1.43.0", "2.0.0", "unknown"])
def test_another_version_is_noticed(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flwr, "__version__", version)
    assert f"flwr is {version}" in str(flwr_internals.find_mismatch())
    assert f"flwr is {version}" in str(flwr_internals.find_supernode_mismatch())


@pytest.mark.parametrize("name", sorted(flwr_internals.PARAMETERS))
def test_other_parameters_are_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, _, function = name.rpartition(".")
    monkeypatch.setattr(_find_owner(owner), function, lambda: None)
    assert name in str(flwr_internals.find_mismatch())


@pytest.mark.parametrize("name", sorted(flwr_internals.PARAMETERS))
def test_a_missing_function_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, _, function = name.rpartition(".")
    monkeypatch.delattr(_find_owner(owner), function)
    assert function in str(flwr_internals.find_mismatch())


def test_a_function_that_is_no_longer_called_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"{flwr_internals.CLIENTAPP}.run_clientapp"
    monkeypatch.setitem(flwr_internals.CALLS, name, {"pull_task_input", "pull_it_another_way"})
    assert f"{name} does not call pull_it_another_way" in str(flwr_internals.find_mismatch())


@pytest.mark.parametrize(
    "source",
    [
        "import time\ntime.sleep(3)\ntime.monotonic()",
        "import time\ntime.sleep(3)\nwait = time",
        "import time\nfrom time import sleep\ntime.sleep(3)\nsleep(3)",
        "import asyncio",
    ],
)
def test_other_uses_of_time_are_noticed(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inspect.getsource", lambda _: source)
    both = flwr_internals.find_supernode_mismatch(), flwr_internals.find_mismatch()
    names = flwr_internals.SUPERNODE, flwr_internals.SUPEREXEC
    assert both == tuple(f"{name} {flwr_internals.OTHER_USE}" for name in names)


@pytest.mark.parametrize("name", sorted(flwr_internals.SUPERNODE_PARAMETERS))
def test_other_steps_of_a_supernode_are_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, _, function = name.rpartition(".")
    monkeypatch.setattr(_find_owner(owner), function, lambda: None)
    assert name in str(flwr_internals.find_supernode_mismatch())
    monkeypatch.delattr(_find_owner(owner), function)
    assert function in str(flwr_internals.find_supernode_mismatch())


def _find_owner(name: str) -> object:
    """Return a module, or a class in one."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        module, _, cls = name.rpartition(".")
        return getattr(importlib.import_module(module), cls)
