"""The units for systemd in examples/deploy, as systemd reads them."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

UNITS = sorted((Path(__file__).parents[2] / "examples" / "deploy").glob("*.service"))
COMMAND = "/opt/udjfl/venv/bin/udjfl"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd")
@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_systemd_has_nothing_against_a_unit(unit: Path, tmp_path: Path) -> None:
    """The program is not installed where the unit has it, so another one takes its place."""
    text = unit.read_text(encoding="utf-8")
    assert len(re.findall(rf"^ExecStart={COMMAND} flower ", text, flags=re.M)) == 1
    copy = tmp_path / unit.name
    copy.write_text(text.replace(COMMAND, "/bin/true"), encoding="utf-8")
    command = ["systemd-analyze", "verify", "--man=no", str(copy)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_both_kinds_of_machines_have_a_unit() -> None:
    assert [path.stem for path in UNITS] == ["udjfl-coordinator", "udjfl-node"]
