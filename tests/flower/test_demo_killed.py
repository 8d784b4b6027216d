"""`make flower-demo`, killed in the middle."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr")

import demo
from deployed_study import processes_below
from shared_deployment import wait_until

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs Linux"),
]


@pytest.mark.parametrize(
    "moment",
    ["$ udjfl flower up", pytest.param("$ udjfl flower status", marks=pytest.mark.soak)],
)
def test_a_killed_demo_leaves_nothing_behind(moment: str, tmp_path: Path) -> None:
    """Killed while a command starts something in the background, and when all nodes are online."""
    output = tmp_path / "output"
    with output.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, demo.__file__], stdout=file, stderr=subprocess.STDOUT
        )
    try:
        assert wait_until(lambda: moment in output.read_text() or process.poll() is not None)
        assert process.poll() is None, output.read_text()
    finally:
        process.kill()
        process.wait()
    found = re.search(r"Everything is in (\S+),", output.read_text())
    assert found is not None
    folder = Path(found[1])
    assert wait_until(lambda: not folder.exists(), 180)
    assert wait_until(lambda: processes_below(folder) == {}, 30)  # the one that removed it, too
