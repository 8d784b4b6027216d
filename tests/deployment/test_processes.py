"""Processes that end with their parent, and whose ids are told from reused ones."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from udjfl.deployment import processes
from udjfl.deployment.processes import ProcessTree, bind

LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs Linux")


@LINUX
@pytest.mark.parametrize(("parent", "output"), [(os.getpid, "runs"), (lambda: 2**22, "")])
def test_a_command_whose_parent_has_gone_does_not_begin(parent: object, output: str) -> None:
    assert callable(parent)
    command = bind([sys.executable, "-c", "print('runs')"], parent())
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.returncode) == (output, 0 if output else 1)


def test_a_reused_id_does_not_join_the_tree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = ProcessTree("a", [sys.executable, "-c", ""], os.environ, tmp_path / "a.log")
    assert tree.wait(60) == 0
    pid = tree.process.pid
    monkeypatch.setattr(processes, "process_table", lambda: {pid: (1, "later"), 5: (pid, "later")})
    assert tree.alive() == []
