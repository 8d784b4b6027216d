"""The command that repeats a run has exactly its settings."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from udjfl.cli import commands
from udjfl.cli.app import app
from udjfl.report.html.commands import find_commands, write_command
from udjfl.settings import CompareSettings, RunSettings, validate_settings


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"data": "scanners", "rounds": 7, "weight_norm": False, "seeds": 3},
        {"methods": ["fedavg", "udj:beta=2:gamma=1"], "seeds": [4], "lr": 0.03},
        {"methods": ["rawls"], "params": {"beta": 2.0}, "seeds": [1, 5], "model": "my model:x"},
        {"methods": ["rawls"], "params": {"beta": 0.123456789}},
        {"methods": ["rawls"], "params": {"beta": 12345678.0}},
    ],
)
def test_the_settings_come_back(values: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    settings = validate_settings(CompareSettings, values)
    words = shlex.split(write_command("compare", settings))
    seen: list[CompareSettings] = []

    def read(cls: Any, config: Any, flags: Any, defaults: Any = None) -> Any:
        pairs = {k: float(v) for k, v in (pair.split("=") for pair in flags.pop("params", []))}
        seen.append(validate_settings(cls, {**flags, "params": pairs}))
        raise SystemExit

    monkeypatch.setattr("udjfl.cli.options.read_settings", read)
    assert commands.app is not None
    CliRunner().invoke(app, words[1:])
    assert seen[0].to_flat() == settings.to_flat()


def test_defaults_need_no_flags() -> None:
    assert write_command("run", RunSettings()) == "udjfl run"


def test_runs_from_python_have_no_command(comparison_folder: Path) -> None:
    assert find_commands(sorted(comparison_folder.glob("seed-*/*"))) == []


def test_a_comparison_of_many_runs_is_one_command(tmp_path: Path) -> None:
    arguments = [
        "compare",
        "--rounds",
        "1",
        "--seeds",
        "2",
        "--methods",
        "fedavg",
        "--uncertainty-epochs",
        "1",
    ]
    result = CliRunner().invoke(app, [*arguments, "--out", str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    [command] = find_commands(sorted((tmp_path / "out").glob("seed-*/*")))
    assert set(shlex.split(command)) == {"udjfl", *arguments}
