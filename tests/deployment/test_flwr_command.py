"""The `flwr` command when it does not behave."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from udjfl.deployment import flwr_command
from udjfl.deployment.flwr_command import FlwrCommand
from udjfl.errors import DeploymentError


def test_a_command_that_hangs_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flwr_command, "executable", lambda name: sys.executable)
    monkeypatch.setattr(flwr_command, "TIMEOUT", 0.1)
    with pytest.raises(DeploymentError, match=r"has not ended after 0\.1 s"):
        FlwrCommand(tmp_path, {}).run("-c", "import time; time.sleep(1000)")
