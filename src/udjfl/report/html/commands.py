"""The commands that repeat the runs of a report, from the settings in their folders."""

from __future__ import annotations

import functools
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from udjfl.errors import UdjflError
from udjfl.search.settings import FrontierSettings, TuneSettings
from udjfl.settings import CompareSettings, RunSettings, Settings, validate_settings
from udjfl.training.resuming import LEVELS_TO_COMPARISON
from udjfl.training.run_folder import RunFolder

SEARCHES: dict[str, type[Settings]] = {"frontier": FrontierSettings, "tune": TuneSettings}
NOT_SETTINGS = ("fingerprint", "searched")  # kept beside the settings of a search


def find_commands(folders: Sequence[Path]) -> list[str]:
    """Return the commands that repeat these runs; runs started from Python have none."""
    commands: list[str] = []
    read = functools.cache(_command_of)  # all runs of a comparison lie in one folder
    for folder in folders:
        parents = folder.resolve().parents
        above = parents[LEVELS_TO_COMPARISON - 1 : LEVELS_TO_COMPARISON]
        for candidate in (*above, folder):
            command = read(candidate)
            if command is not None:
                commands.append(command)
                break
    return list(dict.fromkeys(commands))


def _command_of(folder: Path) -> str | None:
    try:
        stored = RunFolder.open(folder).read_settings()
        if stored.get("from_python"):
            return None
        for name, settings_class in SEARCHES.items():
            if isinstance(stored.get(name), dict):
                given = {k: v for k, v in stored[name].items() if k not in NOT_SETTINGS}
                return write_command(name, validate_settings(settings_class, given))
        if isinstance(stored.get("comparison"), dict):
            settings: Settings = validate_settings(CompareSettings, stored["comparison"])
            return write_command("compare", settings)
        named = {"method": stored["method"], "params": stored["params"]}
        values = {**stored["training"], **stored["origin"], **named}
        return write_command("run", validate_settings(RunSettings, values))
    except (UdjflError, KeyError, TypeError):
        return None


def write_command(name: str, settings: Settings) -> str:
    """Return the command line whose settings are these: a flag for each that is not the default."""
    words = ["udjfl", name]
    defaults = {key: field.default for key, field in settings.flat_fields().items()}
    for key, value in settings.to_flat().items():
        if key == "params":
            words += [word for pair in _known(value).items() for word in _parameter(*pair)]
        elif value is not None and value != defaults[key]:
            words += _flag(key, value)
    return shlex.join(words)


def _known(params: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in params.items() if value is not None}


def _parameter(key: str, value: Any) -> list[str]:
    if isinstance(value, float) and float(f"{value:g}") == value:
        value = f"{value:g}"
    return ["-p", f"{key}={value}"]


def _flag(key: str, value: Any) -> list[str]:
    flag = key.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{flag}" if value else f"--no-{flag}"]
    if key == "seeds":
        counted = value == list(range(len(value)))
        return ["--seeds", str(len(value)) if counted else ",".join(map(str, value)) + ","]
    if isinstance(value, dict):
        return [f"--{flag}", ",".join(f"{name}={number}" for name, number in value.items())]
    if isinstance(value, list):
        return [f"--{flag}", ",".join(map(str, value))]
    return [f"--{flag}", str(value)]
