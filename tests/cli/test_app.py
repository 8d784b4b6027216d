"""The front page: commands, version, completion, and how little it imports."""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys

import pytest
from command import Command
from typer.main import get_group

from udjfl.cli import app as front
from udjfl.cli import commands
from udjfl.cli.options import DATA_NAMES
from udjfl.data import SOURCES

HEAVY = {"torch", "numpy", "scipy", "sklearn", "safetensors"}


def imported_by(arguments: str) -> set[str]:
    """Return the packages that a command imports in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "udjfl", *arguments.split()],
        capture_output=True,
        text=True,
    )
    modules = [
        line.rpartition("|")[2].strip()
        for line in done.stderr.splitlines()
        if line.startswith("import time:")
    ]
    assert "udjfl.errors" in modules
    return {module.partition(".")[0] for module in modules}


def complete(line: str) -> list[str]:
    """Return what bash offers at the end of the line."""
    words = line.split(" ")
    script = (
        "import sys; sys.argv[0] = 'udjfl'; from udjfl.cli.main import main\n"
        "try: main()\n"
        "finally: assert 'torch' not in sys.modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        env={
            **os.environ,
            "_UDJFL_COMPLETE": "complete_bash",
            "COMP_WORDS": line,
            "COMP_CWORD": str(len(words) - 1),
        },
    )
    assert done.stderr == ""
    return done.stdout.split()


def test_without_a_command_it_shows_help(udjfl_command: Command) -> None:
    output = udjfl_command()
    for command in ("run", "compare", "resume", "methods"):
        assert re.search(rf"\b{command}\b", output.out + output.err)
    assert udjfl_command("-h").code == 0


def test_the_front_page_lists_every_command_in_one_line(udjfl_command: Command) -> None:
    assert list(front.COMMANDS) == list(get_group(commands.app).commands)
    shown = udjfl_command("--help").out
    assert all(
        re.search(rf"^  {name} +{re.escape(line)}$", shown, re.MULTILINE)
        for name, line in front.COMMANDS.items()
    )
    assert "--install-completion" in shown
    assert "--show-completion" in shown


@pytest.mark.parametrize("arguments", ["", "--help", "--version"])
def test_the_front_page_imports_no_library_but_its_own(arguments: str) -> None:
    assert not imported_by(arguments) & {*HEAVY, "pydantic", "rich"}


@pytest.mark.parametrize("arguments", [*(f"{name} --help" for name in front.COMMANDS), "methods"])
def test_help_pages_and_the_list_of_methods_do_not_wait_for_torch(arguments: str) -> None:
    assert not imported_by(arguments) & HEAVY


@pytest.mark.parametrize("module", ["udjfl", "udjfl.cli.main"])
def test_version(module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", module, "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"udjfl {importlib.metadata.version('udjfl')}\n"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("udjfl com", ["compare"]),
        ("udjfl run --method ra", ["rawls"]),
        ("udjfl compare --methods fedavg,ra", ["fedavg,rawls"]),
        ("udjfl compare --methods al", ["all"]),
        ("udjfl run --data dirty", ["dirty-digits", "dirty-mnist"]),
        ("udjfl run --engine st", ["stacked"]),
        ("udjfl methods fedf", ["fedfv", "fedfa", "fedfair3"]),
        ("udjfl data describe he", ["heart"]),
        ("udjfl reproduce results --pro", ["--profile"]),
    ],
)
def test_names_are_completed_without_torch(line: str, expected: list[str]) -> None:
    assert complete(line) == expected


def test_every_data_source_is_completed() -> None:
    assert set(DATA_NAMES) == set(SOURCES)


def test_the_completion_script_names_the_command() -> None:
    script = "import sys; sys.argv[0] = 'udjfl'; from udjfl.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", script, "--show-completion", "bash"],
        capture_output=True,
        text=True,
        env={**os.environ, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"},
    )
    assert "_UDJFL_COMPLETE" in done.stdout, done.stderr
