"""Programs that run in a process of their own."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path


def run_program(
    arguments: Sequence[str], cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> str:
    """Run a program, which has to succeed, and return what it prints."""
    done = subprocess.run(arguments, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
