"""What a trained model takes: tensors and CSV files of the right shape, and errors for others."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from udjfl.errors import DataError, StorageError
from udjfl.training.inputs import Inputs

INPUTS = Inputs((2,), ("ill", "well"))


def test_examples_become_float32() -> None:
    assert torch.equal(INPUTS.to_tensor([[1, 2], [3, 4]]), torch.tensor([[1.0, 2], [3, 4]]))
    assert INPUTS.to_tensor(torch.ones(3, 2, dtype=torch.float64)).dtype == torch.float32
    assert Inputs((1, 2, 2)).to_tensor(torch.ones(5, 1, 2, 2)).shape == (5, 1, 2, 2)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        ([[1, 2, 3]], r"shape \[1, 3\]; the model takes examples of shape \[2\], so give \[n, 2\]"),
        ([1, 2], r"has shape \[2\]"),
        (torch.zeros(0, 2), "no examples"),
        ([[1.0, float("nan")], [1.0, 2.0]], "example 0 has values that are NaN"),
        ([["a", "b"]], "holds no numbers"),
    ],
)
def test_other_examples_are_refused(x: object, message: str) -> None:
    with pytest.raises(DataError, match=message):
        INPUTS.to_tensor(x)


def test_classes_have_names_or_numbers() -> None:
    assert INPUTS.label(1) == "well"
    assert Inputs((2,)).label(1) == "1"


def write(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_a_csv_file_is_read_in_the_order_of_its_columns(tmp_path: Path) -> None:
    file = write(tmp_path / "a.csv", "\ufeffage,who,weight\n1,x,2.5\n\n3,y,-4e0\n")
    assert INPUTS.read_csv(file, ["who"]).tolist() == [[1.0, 2.5], [3.0, -4.0]]
    images = Inputs((1, 2, 1)).read_csv(file, ["who"])
    assert images.shape == (2, 1, 2, 1)


@pytest.mark.parametrize(
    ("text", "leave_out", "message"),
    [
        ("", [], "not a CSV file with a heading"),
        ("a,b\n", [], "no examples"),
        ("a,b,c\n1,2,3\n", [], "has 3 columns of numbers; the model takes 2. Leave others out"),
        ("a,b\n1,2\n", ["ill"], "has no column 'ill'; it has a, b"),
        ("a,b\n1,2\n1,two\n", [], "line 3: 'b' is 'two', not a number"),
        ("a,b\n1,2\n1\n", [], "line 3: has 1 cells; the heading has 2"),
        ("a,b\n1,nan\n", [], "NaN"),
        (b"\xff\xfe\x00", [], "not a CSV file"),
    ],
)
def test_other_csv_files_are_refused(
    tmp_path: Path, text: str | bytes, leave_out: list[str], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        INPUTS.read_csv(write(tmp_path / "a.csv", text), leave_out)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"^cannot read .*a\.csv: there is no such file; check"):
        INPUTS.read_csv(tmp_path / "a.csv")
    with pytest.raises(StorageError, match=r"^cannot read .*: it is a folder; name a file in it$"):
        INPUTS.read_csv(tmp_path)


def test_stored_types_are_kept() -> None:
    pixels = Inputs((2,), dtype=torch.uint8)
    assert pixels.to_tensor([[0, 255]]).dtype == torch.uint8
    assert pixels.to_tensor([[0.0, 0.5]]).dtype == torch.float32  # from 0 to 1 already
    words = Inputs((2,), dtype=torch.int64)
    assert words.to_tensor([[3.0, 4.0]]).dtype == torch.int64
    with pytest.raises(DataError, match="example 0 has values that are no int64"):
        words.to_tensor([[0.5, 1.0]])
    with pytest.raises(DataError, match="example 1 has values that are no uint8"):
        pixels.to_tensor([[1, 2], [1, 256]])


@pytest.mark.parametrize("inputs", [INPUTS, Inputs((1, 2), None, torch.uint8)])
def test_a_description_is_read_back(inputs: Inputs) -> None:
    assert Inputs.from_description(inputs.describe()) == inputs


@pytest.mark.parametrize(
    "description",
    [
        {"input_shape": ["a"]},
        {"input_shape": [2], "input_type": "float64"},
        {"input_shape": [2], "preprocessing": {"columns": []}},
        {"input_shape": [2], "preprocessing": [1]},
    ],
)
def test_a_damaged_description(description: dict[str, object]) -> None:
    with pytest.raises(StorageError, match="its description of the data"):
        Inputs.from_description(description)
