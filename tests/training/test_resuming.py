"""The command that continues what a folder holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from udjfl.training.resuming import advise_to_resume

OWN = "own:Tail"
COMPARISON = {"comparison": {"methods": ["afl"]}}
RUN = {"training": {"model": "mlp"}, "origin": {"data": "tiny"}, "method": "afl"}


def write(folder: Path, settings: dict[str, Any]) -> Path:
    folder.mkdir(parents=True)
    (folder / "settings.json").write_text(json.dumps(settings))
    return folder


@pytest.mark.parametrize(
    ("settings", "flag"),
    [
        (RUN, ""),
        ({**RUN, "method": OWN}, " --trust-model"),
        ({**RUN, "training": {"model": OWN}}, " --trust-model"),
        ({**RUN, "origin": {"data": OWN}}, " --trust-model"),
        (COMPARISON, ""),
        ({"comparison": {"methods": ["afl", OWN]}}, " --trust-model"),
        ({"tune": {"model": OWN}}, " --trust-model"),
    ],
)
def test_the_flag_is_in_the_command_if_code_is_named(
    tmp_path: Path, settings: dict[str, Any], flag: str
) -> None:
    folder = write(tmp_path / "a b", settings)
    assert advise_to_resume(folder) == f"`udjfl resume '{folder}'{flag}`"


def test_a_run_of_a_comparison_is_resumed_with_it(tmp_path: Path) -> None:
    write(tmp_path / "all", COMPARISON)
    run = write(tmp_path / "all" / "seed-0" / "afl", RUN)
    assert advise_to_resume(run) == f"`udjfl resume {tmp_path / 'all'}`"


def test_the_test_of_a_search_is_resumed_with_it(tmp_path: Path) -> None:
    write(tmp_path / "search", {"tune": {"model": "mlp"}})
    write(tmp_path / "search" / "test", {**COMPARISON, "from_python": True})
    run = write(tmp_path / "search" / "test" / "seed-0" / "afl", RUN)
    assert advise_to_resume(run) == f"`udjfl resume {tmp_path / 'search'}`"


def test_what_was_started_from_python_is_resumed_there(tmp_path: Path) -> None:
    compared = write(tmp_path / "compared", {**COMPARISON, "from_python": True})
    assert f"`udjfl.compare(..., out={str(compared)!r}, resume=True)`" in advise_to_resume(compared)
    run = write(tmp_path / "run", {**RUN, "origin": None})
    assert f"`udjfl.simulate(..., out={str(run)!r}, resume=True)`" in advise_to_resume(run)


def test_a_damaged_folder_gets_the_plain_command(tmp_path: Path) -> None:
    folder = write(tmp_path / "run", RUN)
    (folder / "settings.json").write_text("{")
    assert advise_to_resume(folder) == f"`udjfl resume {folder}`"
