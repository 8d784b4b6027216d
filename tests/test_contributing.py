"""CONTRIBUTING.md followed to the letter: its files are written, and its commands run."""

from __future__ import annotations

import os
import re
import sys
import tomllib
from pathlib import Path

import pytest
from programs import run_program

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
WALK = TEXT.partition("## Extending udjfl\n")[2].partition("\n## ")[0]
FILES = dict(re.findall(r"^`([\w.]+)`:\n\n```\w+\n(.*?)^```", WALK, re.M | re.S))
BLOCKS = re.findall(r"^```bash\n(.*?)\n```", WALK, re.M | re.S)
COMMANDS = [line for block in BLOCKS for line in block.splitlines()]
EXPORT, INSTALL = "export PYTHONPATH=$PWD", "pip install --editable ."
EXPECTED = {
    "trimmed_mean:TrimmedMean": ["Trimmed mean", "FedAvg"],
    "describe schools:SOURCE": ["north", "south", "west"],
    "--data schools:SOURCE": ["schools", "north"],
    "two_layers:make_model": ["FedAvg", "client-5"],
    "python accuracy_range.py": ["Range: ", " points"],
    "--methods fedavg,trimmed-mean": ["Trimmed mean", "north", "Range"],
}


def install(folder: Path) -> None:
    """Do what `pip install --editable .` does, without a network: describe the package."""
    project = tomllib.loads(FILES["pyproject.toml"])["project"]
    described = folder / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    described.mkdir()
    (described / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    lines = []
    for group, points in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {target}" for name, target in points.items())]
    (described / "entry_points.txt").write_text("\n".join(lines) + "\n")


def test_the_walk_adds_a_method_a_data_set_a_model_and_a_metric() -> None:
    assert list(FILES) == [
        "trimmed_mean.py",
        "schools.py",
        "two_layers.py",
        "accuracy_range.py",
        "pyproject.toml",
    ]
    assert [command for command in COMMANDS if command in (EXPORT, INSTALL)] == [EXPORT, INSTALL]
    for command in COMMANDS:
        known = command in (EXPORT, INSTALL) or any(part in command for part in EXPECTED)
        assert known, f"say in EXPECTED what {command!r} prints"


@pytest.mark.parametrize(
    "command", [command for command in COMMANDS if command not in (EXPORT, INSTALL)]
)
def test_each_command_of_the_walk_works(command: str, tmp_path: Path) -> None:
    for name, content in FILES.items():
        (tmp_path / name).write_text(content, encoding="utf-8")
    if COMMANDS.index(command) > COMMANDS.index(INSTALL):
        install(tmp_path)
    search = [str(tmp_path), os.environ.get("PYTHONPATH", "")]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path for path in search if path),
        "COLUMNS": "120",
    }
    program, *arguments = command.split()
    python = [sys.executable, "-m", "udjfl"] if program == "udjfl" else [sys.executable]
    printed = run_program([*python, *arguments], tmp_path, environment)
    (words,) = [words for part, words in EXPECTED.items() if part in command]
    for word in words:
        assert word in printed
