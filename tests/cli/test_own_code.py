"""A mistake in a user's own method, model or data is one line that says where it is."""

from __future__ import annotations

import traceback
from pathlib import Path

import pytest
from command import SMALL, Command

from udjfl.cli.own_code import describe_own_failure
from udjfl.errors import StorageError
from udjfl.report.saved_runs import read_run

METHOD = """\
import udjfl


@udjfl.parameters
class Uniform(udjfl.Method):
    name, title, paper, grade = "uniform", "Uniform", "none", "own"

    def aggregate(self, state, reports):
        return state, reports.delta.mean(dim=0), {}
"""


@pytest.fixture
def method(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "mistaken_method.py"
    path.write_text(METHOD, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return path


def test_a_mistake_in_a_method_is_one_line(udjfl_command: Command, method: Path) -> None:
    output = udjfl_command("run --method mistaken_method:Uniform", SMALL)
    assert (output.code, output.out) == (2, "")
    assert output.lines[-1] == (
        f"udjfl: {method}, line 9, in Uniform.aggregate: AttributeError: 'Reports' object has no "
        "attribute 'delta'"
    )
    assert "Traceback" not in output.err


def test_with_jobs_it_is_the_same_line(udjfl_command: Command, method: Path) -> None:
    command = f"compare --methods mistaken_method:Uniform {SMALL} --seeds 2"
    alone, beside = (udjfl_command(f"{command} --jobs {jobs}") for jobs in (1, 2))
    assert "line 9, in Uniform.aggregate: AttributeError" in alone.lines[-1]
    assert (beside.code, beside.lines[-1]) == (2, alone.lines[-1])


def test_it_may_come_from_another_process(method: Path) -> None:
    class SentTraceback(Exception):
        """As `concurrent.futures` sends it."""

    error = NameError("name 'reprts' is not defined")
    error.__cause__ = SentTraceback(
        f'Traceback:\n  File "{traceback.__file__}", line 2, in f\n'
        f'  File "{method}", line 9, in aggregate\n    return reprts\nNameError: ...\n'
    )
    expected = f"{method}, line 9, in Uniform.aggregate: NameError: name 'reprts' is not defined"
    assert describe_own_failure(error) == expected


def test_a_mistake_of_the_package_or_a_library_is_not_the_users() -> None:
    with pytest.raises(TypeError) as caught:
        traceback.walk_tb()  # type: ignore[call-arg]
    assert describe_own_failure(caught.value) is not None  # this file calls it
    with pytest.raises(StorageError) as inside:
        read_run(Path("nowhere"))
    assert inside.value.__traceback__ is not None
    error = inside.value.with_traceback(inside.value.__traceback__.tb_next)
    assert describe_own_failure(error) is None
