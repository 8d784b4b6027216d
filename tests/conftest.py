"""Fixtures of all tests. What tests import is in modules with names of their own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
import torch
from small_runs import make_federation, tiny_pools

import udjfl
from udjfl.data import SOURCES, Source

if TYPE_CHECKING:
    from command import Command
    from shared_deployment import DeployedFederation


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    """Limit torch to one thread: tests run side by side."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def _no_user_data() -> None:
    """Hide the data folder of this machine's user: tests bring their own data."""
    os.environ.pop("UDJFL_DATA", None)


@pytest.fixture
def federation() -> udjfl.Federation:
    return make_federation()


@pytest.fixture
def tiny_source(monkeypatch: pytest.MonkeyPatch) -> str:
    """Register a small data source and return its name."""
    monkeypatch.setitem(SOURCES, "tiny", Source("tiny", "for tests", "Random.", tiny_pools))
    return "tiny"


@pytest.fixture
def command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tiny_source: str
) -> Command:
    """Return the command `udjfl`, called in this process, with the small data source."""
    from command import Command

    return Command(monkeypatch, capsys)


@pytest.fixture(scope="session")
def deployed() -> Iterator[DeployedFederation]:
    """Deploy two clients, once for all tests with real processes; see flower/README.md.

    A SuperLink with TLS and node authentication, and two SuperNodes. The SuperLink keeps its state
    in a file, so that a test can kill it and start it again.
    """
    pytest.importorskip("flwr")
    from shared_deployment import DeployedFederation, make_deployment

    with make_deployment(keep_state=True) as deployment:
        yield DeployedFederation(deployment, udjfl.load("dirty-digits", clients=2, seed=0))
