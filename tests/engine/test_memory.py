"""The allocator of the process: the command line tunes it, the library does not."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from programs import run_program

LINUX = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="glibc's mallopt is called on Linux only"
)
PRELUDE = """
import ctypes, os, sys
import udjfl, udjfl.engine, udjfl.cli.commands

class Library:
    def __init__(self, name):
        assert name is None
    def __getattr__(self, name):
        assert name == "mallopt"
        return lambda *options: print(name, *options, flush=True) or 1

ctypes.CDLL = Library
"""
SIMULATE = """
from small_runs import make_federation
udjfl.simulate(make_federation(), "fedavg", rounds=2, hidden=4, uncertainty_epochs=1, workers=2)
"""
RUN = """
from udjfl.cli.run import run
from udjfl.settings import RunSettings, validate_settings
settings = {"rounds": 1, "uncertainty_epochs": 1, "method": "fedavg"}
run(validate_settings(RunSettings, settings), None, False, True)
print(os.environ["MALLOC_TRIM_THRESHOLD_"])
"""


def output_of(script: str) -> str:
    whole = f"import sys; sys.path.insert(0, 'tests')\n{PRELUDE}{script}"
    return run_program([sys.executable, "-c", whole], cwd=Path(__file__).parents[2])


@LINUX
def test_simulate_leaves_the_allocator_alone() -> None:
    """It belongs to the process that calls `simulate`."""
    assert "mallopt" not in output_of(SIMULATE)


@LINUX
def test_the_command_line_tunes_it_for_itself_and_the_processes_it_starts() -> None:
    lines = output_of(RUN).splitlines()
    assert lines[:2] == [f"mallopt -3 {1 << 30}", f"mallopt -1 {1 << 30}"]
    assert lines[-1] == str(1 << 30)
