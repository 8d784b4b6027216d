"""Tables of clients that never meet, and the app that `udjfl flower init` writes for them."""

from __future__ import annotations

import importlib
import sys
import tomllib
from pathlib import Path

import pytest
from programs import run_program

pytest.importorskip("flwr")
pytest.importorskip("pandas")

import torch
from flwr.app import Context, RecordDict

import udjfl
from udjfl.cli.flower import init_command
from udjfl.errors import DataError
from udjfl.flower.new_app import OWN_SETTINGS, PACKAGE, write_app
from udjfl.flower.settings import SIMULATOR_ONLY, FlowerSettings
from udjfl.flower.tables import TableSchema

HEAD = "age,pressure,sex,ward,ill\n"


def write(path: Path, rows: list[str]) -> Path:
    path.write_text(HEAD + "\n".join(rows) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def example(tmp_path: Path) -> Path:
    pressures = ["" if i == 3 else 120 + 7 * i % 30 for i in range(12)]
    labels = ["yes" if i % 3 == 0 else "no" for i in range(12)]
    rows = [f"{40 + 5 * i % 13},{pressures[i]},{'fm'[i % 2]},a,{labels[i]}" for i in range(12)]
    return write(tmp_path / "example.csv", rows)


def test_an_agreement_has_names_and_no_values(example: Path, tmp_path: Path) -> None:
    schema = TableSchema.infer(example, "ill", drop=["age"])
    assert [column.name for column in schema.columns] == ["pressure", "sex"]
    assert schema.class_names == ("no", "yes")
    assert schema.left_out["ward"].startswith("constant")
    schema.save(tmp_path / "schema.json")
    assert TableSchema.load(tmp_path / "schema.json") == schema
    text = (tmp_path / "schema.json").read_text()
    assert not any(str(number) in text for number in range(120, 150))


def write_names(path: Path) -> Path:
    """Write a table with the name of each patient, wards, and one country; 24 rows."""
    rows = [f"P{i:02},{'ab'[i % 2]},Chad,{20 + 7 * i % 31},{i % 3 == 0}" for i in range(24)]
    rows[5:8] = [row.replace("P06", "P05").replace("P07", "P05") for row in rows[5:8]]
    path.write_text("name,ward,country,age,ill\n" + "\n".join(rows) + "\n", encoding="utf-8")
    return path


def test_names_of_patients_are_not_in_an_agreement(tmp_path: Path) -> None:
    path = write_names(tmp_path / "example.csv")
    schema = TableSchema.infer(path, "ill")
    assert [column.name for column in schema.columns] == ["ward", "age"]
    assert schema.left_out == {
        "name": "most of its 22 texts are in one or two rows: an id, or free text; "
        "--categories keeps it",
        "country": "constant",
    }
    schema.save(tmp_path / "schema.json")
    text = (tmp_path / "schema.json").read_text()
    assert "P0" not in text
    assert "Chad" not in text
    named = TableSchema.infer(path, "ill", categories=["name"])
    assert len(named.columns[0].labels) == 22  # wanted, and printed by `udjfl flower init`
    with pytest.raises(DataError, match=r"no column is left .* 'name': most of its 22 texts"):
        TableSchema.infer(path, "ill", drop=["ward", "age"])


def test_init_prints_every_text_that_nodes_receive(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_names(tmp_path / "example.csv")
    init_command(tmp_path / "study", path, "ill")
    printed = capsys.readouterr().out
    assert "left out: name (most of its 22 texts" in printed
    assert "go to every node" in printed
    assert "\n  ill (classes): False, True\n  ward: a, b\nnext:" in printed


def test_a_clients_table_is_scaled_by_its_own_train_part(example: Path, tmp_path: Path) -> None:
    schema = TableSchema.infer(example, "ill", drop=["ward"])
    rows = [f"{30 + i},{100 + i},f,a,{['no', 'yes'][i % 2]}" for i in range(20)]
    rows[4] = "50,,x,a,no"  # a missing value, and a category that was not agreed on
    data = schema.read_client("north", write(tmp_path / "north.csv", rows))
    train = data.federation.clients[0].train
    features = (len(schema.columns) - 1) + 2 + 1  # numbers, two categories, one indicator
    assert train.x.shape[1] == features == schema.server_data().input_shape[0]
    assert data.n_classes == 2
    torch.testing.assert_close(train.x[:, 0].mean(), torch.tensor(0.0), atol=1e-5, rtol=0)
    torch.testing.assert_close(
        train.x[:, 0].std(correction=0), torch.tensor(1.0), atol=1e-5, rtol=0
    )
    again = schema.read_client("north", tmp_path / "north.csv")
    assert again.federation.fingerprint == data.federation.fingerprint


def test_a_client_with_one_class_is_numbered_like_the_others(example: Path, tmp_path: Path) -> None:
    schema = TableSchema.infer(example, "ill", drop=["ward"])
    path = write(tmp_path / "south.csv", [f"{30 + i},{100 + i},m,a,yes" for i in range(10)])
    assert set(schema.read_client("south", path).federation.clients[0].train.y.tolist()) == {1}


def test_a_label_that_was_not_agreed_on_is_an_error(example: Path, tmp_path: Path) -> None:
    schema = TableSchema.infer(example, "ill")
    path = write(tmp_path / "south.csv", [f"{30 + i},100,m,a,perhaps" for i in range(10)])
    with pytest.raises(udjfl.DataError, match=r"'perhaps' is no class .* 'no', 'yes'"):
        schema.read_client("south", path)


def test_a_file_that_is_no_schema_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "schema.json").write_text('{"target": "ill"}')
    with pytest.raises(udjfl.DataError, match="is not a schema"):
        TableSchema.load(tmp_path / "schema.json")


def test_a_new_app_declares_every_setting_with_its_default(example: Path, tmp_path: Path) -> None:
    write_app(tmp_path / "My study", example, "ill")
    app = tomllib.loads((tmp_path / "My study" / "pyproject.toml").read_text())["tool"]["flwr"][
        "app"
    ]
    known = {
        name.replace("_", "-"): field.default
        for name, field in FlowerSettings.flat_fields().items()
        if name not in SIMULATOR_ONLY
    }
    known["model"] = ""
    assert app["config"] == {**known, **{name: own[0] for name, own in OWN_SETTINGS.items()}}
    with pytest.raises(udjfl.DeploymentError, match="has an app already"):
        write_app(tmp_path / "My study", example, "ill")
    with pytest.raises(udjfl.SettingsError, match="model"):
        write_app(tmp_path / "other", example, "ill", "no-such-model")
    assert not (tmp_path / "other").exists()


def test_the_functions_of_a_new_app_read_a_table(
    example: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_app(tmp_path / "study", example, "ill", "logistic")
    monkeypatch.syspath_prepend(str(tmp_path / "study"))
    try:
        task = importlib.import_module(f"{PACKAGE}.task")
        node = {"client-id": "north", "data": str(example)}
        run = {"test-share": 0.25, "split-seed": 1}
        context = Context(run_id=1, node_id=2, node_config=node, state=RecordDict(), run_config=run)
        data = task.client_data(context)
        assert (data.id, len(data.test.y), task.MODEL) == ("north", 3, "logistic")
        assert task.server_data(context).n_classes == 2
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == PACKAGE]:
            del sys.modules[name]


def test_init_says_what_comes_next(example: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "udjfl", "flower", "init", str(tmp_path / "study")]
    printed = run_program([*command, "--like", str(example), "--target", "ill"])
    assert "an app with 3 columns, 2 classes" in printed
    assert "left out: ward" in printed
    assert "next: udjfl flower keys" in printed


@pytest.mark.parametrize(
    ("rows", "words", "value"),
    [
        (["Mrs Miller,120,f,a,no"], "column 'age': 1 of 12 values are not numbers", "Miller"),
        (["47,120,f,a,hiv"], "column 'ill': label … is no class", "hiv"),
        (['47,"120,f,a,no'], "cannot be read as a table: …", "EOF"),
    ],
)
def test_what_leaves_a_client_of_its_mistakes_has_no_values(
    example: Path, tmp_path: Path, rows: list[str], words: str, value: str
) -> None:
    first, *others = example.read_text(encoding="utf-8").splitlines()[1:]
    schema = TableSchema.infer(write(tmp_path / "all.csv", [*others, first]), "ill")
    with pytest.raises(DataError) as caught:
        schema.read_client("north", write(tmp_path / "north.csv", [*others, *rows]))
    assert value in str(caught.value)
    assert words in caught.value.without_values
    assert value not in caught.value.without_values
