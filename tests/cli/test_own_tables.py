"""Three hospitals' CSV files, in one command and in three lines of Python."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from command import Command
from table_helpers import make_hospitals, write_hospitals

import udjfl
from udjfl.settings import DataSettings
from udjfl.training.federation_info import FederationInfo
from udjfl.training.inputs import Inputs

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
    assert set(result.client_scores) == {"north", "south", "west"}
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
    assert json.loads(again.out)["client_scores"] == json.loads(run.out)["client_scores"]


def test_the_story_ends_with_predictions_from_raw_rows(
    udjfl_command: Command, hospitals: list[str]
) -> None:
    arguments = ("--data", *hospitals, "--target", "ill", "--rounds", "10", "--json")
    assert udjfl_command("run", *arguments, "--method", "fedavg", "--out", "kept").code == 0
    for name, frame in make_hospitals().items():
        output = udjfl_command("predict", "kept", f"hospitals/{name}.csv", "--client", name)
        assert output.code == 0
        rows = list(csv.DictReader(io.StringIO(output.out)))
        assert list(rows[0]) == ["prediction", "ill", "well"]
        predicted = [row["prediction"] for row in rows]
        # Chance is near one half; unscaled or shuffled columns would be near it.
        assert sum(predicted == frame["ill"]) > 0.75 * len(frame)
        in_python = udjfl.open("kept").predict(frame.drop(columns="ill"), name)
        assert in_python == predicted
    for arguments in ((), ("--leave-out", "ill")):
        output = udjfl_command("predict", "kept", "hospitals/west.csv", *arguments, "--json")
        document = json.loads(output.out)
        assert {row["prediction"] for row in document} == {"ill", "well"}
        assert set(document[0]["probabilities"]) == {"ill", "well"}


def test_raw_rows_become_the_features_of_the_training(hospitals: list[str]) -> None:
    for scaling in ("own", "shared", "none"):
        federation = udjfl.Federation.from_csv("hospitals/*.csv", target="ill", scaling=scaling)
        inputs = FederationInfo.of(federation).inputs
        kept = Inputs.from_description(json.loads(json.dumps(inputs.describe())))
        assert kept is not None
        for client in federation.clients:
            features = kept.to_tensor(make_hospitals()[client.id], client.id)
            trained = torch.cat([client.train.x, client.test.x])
            assert torch.equal(features.unique(dim=0), trained.unique(dim=0)), scaling


def test_rows_that_cannot_be_predicted(udjfl_command: Command, hospitals: list[str]) -> None:
    udjfl_command("run", "--data", *hospitals, "--target", "ill", *SHORT, "--out", "kept")

    def predict(frame: pd.DataFrame, *arguments: str) -> tuple[int, str]:
        frame.to_csv("new.csv", index=False)
        output = udjfl_command("predict", "kept", "new.csv", *arguments)
        return output.code, " ".join(output.err.split())

    west = make_hospitals()["west"]
    code, error = predict(west.drop(columns="income").rename(columns={"age": "Age"}))
    assert code == 2
    assert "new.csv: there is no column 'age', which the model was trained on." in error
    assert "new.csv: there is no column 'income'" in error
    code, error = predict(west.astype({"age": object}).replace({"age": {west["age"][1]: "old"}}))
    assert code == 2
    assert "new.csv: column 'age', row 2: 'old' is not a number" in error
    code, error = predict(west, "--client", "wast")
    assert code == 2
    assert "there is no 'wast'. Did you mean 'west'?" in error
    code, error = predict(west, "--leave-out", "sick")
    assert code == 2
    assert "'sick'" in error
    code, error = predict(west.assign(town="Hull"))
    assert code == 0
    assert "column 'town': 40 rows have categories that the model was not trained on" in error


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


def test_a_search_warns_of_problems_once_and_of_nothing_else(
    udjfl_command: Command, hospitals: list[str]
) -> None:
    write_hospitals(Path("hospitals"), west=make_hospitals()["west"].assign(extra=1.5))
    small = ("--target", "ill", *SHORT, "--seeds", "2", "--workers", "1")
    few = ("--exponents", "1", "--gammas", "2", "--budgets", "2", "--methods", "qffl")
    for command in (("frontier", *few), ("tune", "--cost", "16", "--budget", "90")):
        output = udjfl_command(*command, "--data", *hospitals, *small)
        assert output.code == 0, output.err
        words = " ".join(output.err.split())
        assert words.count("column 'extra' is left out") == 1, command
        assert words.count("WARNING") == 3  # two clients do not have the column


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


def test_a_number_is_predicted_from_csv_files(
    udjfl_command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    frames = {name: frame.drop(columns="ill") for name, frame in make_hospitals().items()}
    for frame in frames.values():
        known = frame["age"].fillna(55.0)
        frame["cost"] = 5000 + 100 * known + 900.0 * (frame["smoker"] == "yes")
    for name, frame in frames.items():
        frame.to_csv(f"{name}.csv", index=False)
    described = udjfl_command(
        "data", "describe", "*.csv", "--target", "cost", "--task", "regression"
    )
    assert "none: numbers" in described.out
    arguments = ("--target", "cost", "--task", "regression", "--rounds", "30", "--lr", "0.05")
    run = udjfl_command(
        *("run", "--data", "*.csv", *arguments, "--method", "fedavg", "--score", "rmse"),
        *("--json", "--out", "kept"),
    )
    assert run.code == 0
    document = json.loads(run.out)
    assert document["score"]["name"] == "rmse"
    for name, frame in frames.items():
        output = udjfl_command("predict", "kept", f"{name}.csv", "--client", name)
        rows = list(csv.DictReader(io.StringIO(output.out)))
        predicted = np.array([float(row["prediction"]) for row in rows])
        assert udjfl.open("kept").predict(frame, name) == pytest.approx(predicted.tolist())
        error = np.sqrt(np.mean((predicted - frame["cost"]) ** 2))
        assert error < 0.5 * frame["cost"].std()
        # In the units of the table, on the test part of the same rows.
        assert 0.3 * error < document["client_scores"][name] < 3 * error
    again = udjfl_command("resume", "kept", "--json")
    assert json.loads(again.out)["client_scores"] == document["client_scores"]
    with pytest.raises(udjfl.SettingsError, match="a regression has no classes"):
        udjfl.open("kept").predict_proba(frames["west"], "west")


def test_describe_warns_of_an_encoding(udjfl_command: Command, hospitals: list[str]) -> None:
    west = Path("hospitals/west.csv")
    west.write_bytes(west.read_bytes().replace(b"Bath", "Bäth".encode("latin-1")))
    output = udjfl_command("data", "describe", *hospitals, "--target", "ill")
    assert output.code == 0
    assert "hospitals/west.csv is not UTF-8" in " ".join(output.err.split())
