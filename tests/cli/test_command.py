"""Help pages: every setting, in sections, at every width."""

from __future__ import annotations

import re

import pytest
from command import Command

from udjfl.cli.command import ORDER, SECTIONS
from udjfl.paper.settings import ReproduceSettings
from udjfl.settings import CompareSettings, RunSettings, Settings


@pytest.mark.parametrize(("command", "cls"), [("run", RunSettings), ("compare", CompareSettings)])
@pytest.mark.parametrize("columns", ["60", "80", "120"])
def test_help_lists_every_setting_with_its_default(
    udjfl_command: Command,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    cls: type[Settings],
    columns: str,
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    output = udjfl_command(command, "--help")
    assert output.code == 0
    shown = re.sub(r"\s+", "", output.out)  # words may be broken across lines, but never cut off
    for name, field in cls.flat_fields().items():
        flag = "--param" if name == "params" else "--" + name.replace("_", "-")
        assert flag in output.out, name
        if name == "params":
            continue
        description, default = field.description or "", str(field.default)
        if isinstance(field.default, list):
            default = ",".join(map(str, field.default))
        elif isinstance(field.default, bool):
            default = "yes" if field.default else "no"
        elif field.default is None:  # that of the data: the description says which
            default = description.partition("default: ")[2].replace(" ", "")
            assert default, name
        assert f"default:{default}" in shown, name
        assert re.sub(r"\s+", "", description).lower() in shown.lower(), name
    for flag in ("--config", "--out", "--json", "-p"):
        assert flag in output.out
    assert "…" not in output.out
    assert all(len(line) <= int(columns) for line in output.out.splitlines())


def test_help_shows_what_can_be_chosen(udjfl_command: Command) -> None:
    shown = re.sub(r"\s+", " ", udjfl_command("run --help").out)
    for choices in (
        ("received", "running", "final"),
        ("fail", "exclude"),
        ("auto", "serial", "stacked", "mapped"),
    ):
        assert all(choice in shown for choice in choices)


@pytest.mark.parametrize("command", ["resume", "methods"])
def test_help_of_the_small_commands(udjfl_command: Command, command: str) -> None:
    for flag in ("--help", "-h"):
        output = udjfl_command(command, flag)
        assert output.code == 0
        assert "--json" in output.out


@pytest.mark.parametrize("columns", ["60", "80", "120"])
def test_flags_stand_in_sections(
    udjfl_command: Command, monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    page = udjfl_command("compare --help").out
    sections = re.findall(r"^(\S.*):$", page, re.MULTILINE)
    assert sections == [*(s for s in SECTIONS if s in sections), "Options"]
    assert {"Experiment", "Data", "Model", "Task", "Training", "Machine"} <= set(sections)
    experiment = page[page.index("Experiment:") : page.index("Data:")]
    assert re.findall(r"--[a-z]+", experiment)[:3] == ["--methods", "--param", "--seeds"]
    options = page[page.index("Options:") :]
    assert re.findall(r"--[a-z-]+", options) == ["--help"]


@pytest.mark.parametrize("cls", [RunSettings, CompareSettings, ReproduceSettings])
def test_every_setting_has_a_section(cls: type[Settings]) -> None:
    assert set(cls.flat_fields()) - {"params"} <= set(ORDER)
    assert len(ORDER) == len(set(ORDER))


def test_help_says_which_of_jobs_and_workers_to_use(udjfl_command: Command) -> None:
    page = re.sub(r"\s+", " ", udjfl_command("compare --help").out)
    assert "To use all cores, raise --jobs if there are several seeds; --workers is for a" in page


@pytest.mark.parametrize("arguments", ["resume", "report", "data describe", "data prepare"])
def test_required_arguments_are_marked(udjfl_command: Command, arguments: str) -> None:
    page = udjfl_command(arguments, "--help").out
    assert "[required]" in page
    assert "\\" not in page


@pytest.mark.parametrize(
    "arguments",
    ["", "run", "report", "methods", "data list", "data describe", "reproduce", "reproduce solo"],
)
def test_help_fits_a_narrow_terminal(
    udjfl_command: Command, monkeypatch: pytest.MonkeyPatch, arguments: str
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    lines = udjfl_command(arguments, "--help").out.splitlines()
    assert lines
    assert max(map(len, lines)) <= 60
