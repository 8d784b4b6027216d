"""`udjfl predict` and `udjfl export` on a finished run."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
import torch
from command import Command, mistakes_of
from small_runs import make_federation, train_briefly

import udjfl


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "ditto"
    train_briefly(make_federation(), "ditto:lam=0", rounds=5, out=out)
    return out


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "new.csv"
    path.write_text("a,b,c,d,ill\n2,0,0,0,yes\n0,2,0,0,no\n", encoding="utf-8")
    return path


def test_predictions_are_those_of_the_result(
    udjfl_command: Command, folder: Path, table: Path
) -> None:
    x = [[2.0, 0, 0, 0], [0, 2.0, 0, 0]]
    result = udjfl.open(folder)
    for client in (None, "client-2"):
        option = f"--client {client}" if client else ""
        output = udjfl_command(f"predict {folder} {table} --leave-out ill {option}")
        rows = list(csv.DictReader(io.StringIO(output.out)))
        assert [row["prediction"] for row in rows] == result.predict(x, client)
        shown = torch.tensor([[float(row[name]) for name in "012"] for row in rows])
        torch.testing.assert_close(
            shown.double(), result.predict_proba(x, client), rtol=0, atol=1e-6
        )
    document = json.loads(
        udjfl_command(f"predict {folder} {table} --leave-out ill --client client-2 --json").out
    )
    assert [row["prediction"] for row in document] == result.predict(x, "client-2")
    assert set(document[0]["probabilities"]) == {"0", "1", "2"}


def test_mistakes_name_the_file_and_the_column(
    udjfl_command: Command, folder: Path, table: Path
) -> None:
    (mistake,) = mistakes_of(udjfl_command(f"predict {folder} {table}"))
    assert "has 5 columns of numbers; the model takes 4" in mistake
    command = f"predict {folder} {table} --leave-out ill --client nobody"
    (mistake,) = mistakes_of(udjfl_command(command))
    assert "there is no 'nobody'" in mistake


@pytest.mark.filterwarnings("ignore:.torch.jit.load. is deprecated")
def test_an_exported_model_can_be_loaded(
    udjfl_command: Command, folder: Path, tmp_path: Path
) -> None:
    udjfl_command(f"export {folder} {tmp_path / 'own.pt'} --client client-3")
    loaded = torch.jit.load(tmp_path / "own.pt")  # type: ignore[no-untyped-call]
    x = torch.ones(3, 4)
    expected = udjfl.open(folder).predict_proba(x, "client-3")
    torch.testing.assert_close(loaded(x).double().softmax(1), expected, rtol=1e-5, atol=1e-6)
    (mistake,) = mistakes_of(udjfl_command(f"export {folder} {tmp_path / 'own.h5'}"))
    assert "choose onnx or torchscript" in mistake
