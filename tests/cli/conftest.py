"""The command with a small data source, on a terminal-less stream of 120 columns."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
from command import TERMINAL_VARIABLES, Command


@pytest.fixture
def udjfl_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tiny_source: str
) -> Iterator[Command]:
    monkeypatch.setenv("COLUMNS", "120")
    for name in TERMINAL_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    handler = signal.getsignal(signal.SIGINT)
    yield Command(monkeypatch, capsys)
    signal.signal(signal.SIGINT, handler)  # after an interrupt the command leaves its own
