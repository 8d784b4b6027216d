"""Three hospitals' CSV files, in one command and in three lines of Python."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from command import Command
from table_helpers import make_hospitals, write_hospitals

import udjfl
from udjfl.settings import DataSettings

SHORT = ("--rounds", "2", "--uncertainty-epochs", "2", "--json")


@pytest.fixture
def hospitals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Write the files, go there, and return what a shell makes of hospitals/*.csv."""
    folder = write_hospitals(tmp_path / "hospitals")
    monkeypatch.chdir(tmp_path)
    return [str(path.relative_to(tmp_path)) for path in sorted(folder.glob("*.csv"))]


def test_three_lines_of_python(hospitals: list[str]) -> None:
    federation = udjfl.Federation.from_csv("hospitals/*.csv", target="ill")
    result = udjfl.simulate(federation, "fedavg", rounds=10)
    assert set(result.client_accuracy) == {"north", "south", "west"}
    # Unscaled incomes would leave uncertainties at ln 2 = 0.69 and accuracies at the majority.
    assert max(result.uncertainty.values()) < 0.6
    majority = 100 * max(torch.bincount(federation.test.y).tolist()) / len(federation.test)
    assert result.metrics["global_accuracy"] > majority + 10


def test_one_command(udjfl_command: Command, hospitals: list[str]) -> None:
    expanded = udjfl_command("compare", "--data", *hospitals, "--target", "ill", *SHORT)
    quoted = udjfl_command("compare", "--target", "ill", *SHORT, "--data", "hospitals/*.csv")
    assert expanded.code == quoted.code == 0
    one, two = json.loads(expanded.out), json.loads(quoted.out)
    assert one["settings"].pop("data") == ",".join(hospitals)
    assert two["settings"].pop("data") == "hospitals/*.csv"
    assert one == two


def test_a_run_is_kept_with_its_columns_and_resumes(
    udjfl_command: Command, hospitals: list[str]
) -> None:
    run = udjfl_command("run", "--data", *hospitals, "--target", "ill", *SHORT, "--out", "kept")
    assert run.code == 0
    stored = json.loads(Path("kept/settings.json").read_text())
    done = stored["federation"]["preprocessing"]
    assert [entry["column"] for entry in done["columns"]] == ["age", "income", "town", "smoker"]
    assert set(done["numbers"]["west"]["income"]) == {"fill", "mean", "scale"}
    again = udjfl_command("resume", "kept", "--json")
    assert again.code == 0
    assert json.loads(again.out)["client_accuracy"] == json.loads(run.out)["client_accuracy"]


def test_describe_shows_columns_and_problems(udjfl_command: Command, hospitals: list[str]) -> None:
    frame = make_hospitals()["west"].assign(town="Ely", extra=1.5)
    write_hospitals(Path("hospitals"), west=frame)
    output = udjfl_command("data", "describe", *hospitals, "--target", "ill")
    assert output.code == 0
    words = " ".join(output.out.split())
    assert "client 'west', column 'town': constant in the train part" in words
    assert "extra left out: client 'west' alone has it" in words
    assert "Missing values in train parts" in words
    described = udjfl_command("data", "describe", "hospitals/*.csv", "--target", "ill", "--json")
    document = json.loads(described.out)
    assert any("'extra' is left out" in problem for problem in document["problems"])
    assert document["preprocessing"]["columns"][0]["missing"]["north"] > 0


def test_problems_are_warned_of_before_training(
    udjfl_command: Command, hospitals: list[str]
) -> None:
    write_hospitals(Path("hospitals"), west=make_hospitals()["west"].assign(ill="ill"))
    for command in ("run", "compare"):
        output = udjfl_command(command, "--data", *hospitals, "--target", "ill", *SHORT)
        assert "client 'west', column 'ill': one class only" in " ".join(output.err.split())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("hospitals/*.csv",), "target: name the column of the labels"),
        (("hospitals/*.csv", "--target", "il"), "Did you mean 'ill'?"),
        (("hospital/*.csv", "--target", "ill"), "no file is called hospital/*.csv"),
        (("dirty-digits", "--target", "ill"), "target: dirty-digits has no such option"),
        (("hospitals/west.csv", "--target", "ill"), "is one file: name the column"),
        (
            ("hospitals/*.csv", "--target", "ill", "--scaling", "max"),
            "scaling: unknown value 'max'",
        ),
    ],
)
def test_mistakes(
    udjfl_command: Command, hospitals: list[str], arguments: tuple[str, ...], words: str
) -> None:
    for command in (("run", "--data"), ("compare", "--data"), ("data", "describe")):
        output = udjfl_command(*command, *arguments)
        assert output.code == 2
        assert words in " ".join(output.err.split()), command


def test_lists_of_files_in_settings() -> None:
    assert DataSettings(data=["a.csv", "b.csv"]).data == "a.csv,b.csv"
    with pytest.raises(ValueError, match="has a comma in its name"):
        DataSettings(data=["a,b.csv", "c.csv"])
