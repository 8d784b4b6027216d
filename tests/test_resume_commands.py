"""The command line resumes runs and comparisons, or says why it cannot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from command import Command, mistakes_of
from small_runs import Stopped, change_settings, compare, make_federation, read_files, stop_after
from stopped_runs import COMPARE, TINY, ServerMomentum

import udjfl
from udjfl.simulation.programs import folder_name


def test_the_command_resumes_a_run(
    tmp_path: Path,
    tiny_source: str,
    command: Command,
) -> None:
    flags = (
        "--data tiny --clients 2 --method udj:theory=rawls -p beta=1,2 --seed 3 --model logistic "
        "--rounds 5 --checkpoint-every 2 --uncertainty-epochs 1 --json --out"
    )
    output = command("run", flags, tmp_path / "whole")
    assert output.code == 0
    first = json.loads(output.out)
    assert command("run", flags, tmp_path / "run").code == 0
    for name in ("checkpoint.safetensors", "model.safetensors", "result.json"):
        (tmp_path / "run" / name).unlink()
    output = command("resume", tmp_path / "run", "--json")
    assert output.code == 0
    again = json.loads(output.out)
    assert {**again, "folder": None} == {**first, "folder": None}
    assert read_files(tmp_path / "run") == read_files(tmp_path / "whole")


def test_the_command_resumes_a_comparison(
    tmp_path: Path,
    tiny_source: str,
    command: Command,
) -> None:
    flags = (
        "--data tiny --clients 2 --methods rawls,desert --seeds 2 --model logistic --rounds 3 "
        "--uncertainty-epochs 1 --json --out"
    )
    first = command("compare", flags, tmp_path)
    assert first.code == 0
    before = read_files(tmp_path)
    (tmp_path / "comparison.json").unlink()
    desert = tmp_path / "seed-1" / folder_name(udjfl.UDJ(theory="desert"))
    (desert / "checkpoint.safetensors").unlink()
    again = command("resume", tmp_path, "--json")
    assert (again.code, again.out) == (0, first.out)
    assert read_files(tmp_path) == before


def test_the_command_refuses_a_run_started_from_python_on_its_own_federation(
    tmp_path: Path,
    federation: udjfl.Federation,
    command: Command,
) -> None:
    with pytest.raises(Stopped):
        udjfl.simulate(federation, "rawls", out=tmp_path, on_progress=stop_after(5), **TINY)
    before = read_files(tmp_path)
    (line,) = mistakes_of(command("resume", tmp_path))
    assert "started from Python with data of its own; call udjfl.simulate(" in line
    assert f"out={str(tmp_path)!r}, resume=True) with the same federation" in line
    assert read_files(tmp_path) == before


@pytest.mark.parametrize("argument", ["federation", "methods"])
def test_the_command_refuses_a_comparison_started_from_python(
    tmp_path: Path,
    tiny_source: str,
    command: Command,
    argument: str,
) -> None:
    """The folder does not hold that federation or those methods."""
    settings = change_settings(COMPARE, data=tiny_source, clients=2)
    given: Any = (
        {"federation": make_federation()}
        if argument == "federation"
        else {"methods": [ServerMomentum()]}
    )

    def stop(event: udjfl.Progress) -> None:
        raise Stopped

    with pytest.raises(Stopped):
        compare(settings, **given, out=tmp_path, on_progress=stop)
    (line,) = mistakes_of(command("resume", tmp_path))
    assert "started from Python" in line
    assert "udjfl.compare(" in line


@pytest.mark.parametrize(
    "content", ["", "{", "null", "[]", '{"origin": {"data": "tiny"}}', '{"comparison": 3}']
)
def test_the_command_refuses_damaged_settings(
    tmp_path: Path,
    command: Command,
    content: str,
) -> None:
    (tmp_path / "settings.json").write_text(content)
    assert "settings.json" in "\n".join(mistakes_of(command("resume", tmp_path)))


def test_the_command_refuses_a_folder_without_a_run(tmp_path: Path, command: Command) -> None:
    assert "holds no run" in "\n".join(mistakes_of(command("resume", tmp_path / "nowhere")))
    assert not (tmp_path / "nowhere").exists()


def test_the_command_resumes_a_run_on_named_data_started_from_python(
    tmp_path: Path, tiny_source: str, command: Command
) -> None:
    """`load` records how it was called, so the folder alone is enough."""
    federation = udjfl.load(tiny_source, clients=2, seed=0)
    udjfl.simulate(federation, "rawls", out=tmp_path / "whole", **TINY)
    with pytest.raises(Stopped):
        udjfl.simulate(federation, "rawls", out=tmp_path / "run", on_progress=stop_after(5), **TINY)
    assert command("resume", tmp_path / "run").code == 0
    assert read_files(tmp_path / "run") == read_files(tmp_path / "whole")
