"""Records and checkpoints are read as written; damage is detected."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
import torch
from fault_injection import make_failing
from small_runs import create_folder

from udjfl.errors import CheckpointError, StorageError
from udjfl.training.record_file import CHECKPOINT
from udjfl.training.records import History, Record
from udjfl.training.run_folder import RunFolder
from udjfl.training.tensor_file import pack, unpack

RECORDS = [
    Record(1, "client-1", "train_loss", 0.1 + 0.2),
    Record(1, "client-2", "excluded", "its losses field is ∞; „oops“\n"),
    Record(1, None, "step_norm", None),
    Record(2, "client-1", "train_loss", 5e-324),
]


# --- records


def test_records_are_read_as_written(tmp_path: Path) -> None:
    folder = create_folder(tmp_path / "run")
    folder.append(RECORDS[:2])
    folder.append([])
    folder.append(RECORDS[2:])
    assert list(folder.read_records()) == RECORDS
    # One line each: a line break inside a value is escaped.
    assert len(folder.records.path.read_bytes().splitlines()) == 4


def test_rewind_removes_records_after_the_checkpoint(tmp_path: Path) -> None:
    folder = create_folder(tmp_path / "run")
    folder.append(RECORDS[:3])
    folder.save_checkpoint(1, {"vector": torch.arange(3.0)})
    before = folder.records.path.read_bytes()
    folder.append(RECORDS[3:])
    with folder.records.path.open("ab") as file:
        file.write(b'{"round": 2, "cli')  # killed in the middle of a line
    checkpoint, history = folder.rewind()
    assert checkpoint is not None
    assert (checkpoint.round, checkpoint.records_length) == (1, len(before))
    assert torch.equal(checkpoint.tensors["vector"], torch.arange(3.0))
    assert history.records == RECORDS[:3]
    assert folder.records.path.read_bytes() == before


def test_rewind_without_a_checkpoint_removes_all_records(tmp_path: Path) -> None:
    folder = create_folder(tmp_path / "run")
    folder.append(RECORDS)
    assert folder.rewind() == (None, History([]))
    assert folder.records.path.read_bytes() == b""


def test_after_a_failed_checkpoint_the_older_one_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = create_folder(tmp_path / "run")
    folder.append(RECORDS[:1])
    folder.save_checkpoint(1, {"vector": torch.zeros(1)})
    folder.append(RECORDS[1:])
    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", make_failing(errno.EIO))
        with pytest.raises(StorageError):
            folder.save_checkpoint(2, {"vector": torch.ones(1)})
    checkpoint, history = folder.rewind()
    assert checkpoint is not None
    assert (checkpoint.round, history.records) == (1, RECORDS[:1])


def test_records_shorter_than_at_the_checkpoint_are_an_error(tmp_path: Path) -> None:
    folder = create_folder(tmp_path / "run")
    folder.append(RECORDS)
    folder.save_checkpoint(2, {"vector": torch.zeros(1)})
    with folder.records.path.open("ab") as file:
        file.truncate(10)
    with pytest.raises(
        CheckpointError,
        match=r"records\.jsonl is shorter .* delete records\.jsonl and checkpoint",
    ):
        folder.rewind()


@pytest.mark.parametrize(
    "damage",
    [b"\xff", b"}", b"\x00", b'{"round": 1}\n'],
    ids=["no text", "no JSON", "zero", "no record"],
)
def test_damaged_records_are_an_error_with_advice(tmp_path: Path, damage: bytes) -> None:
    folder = create_folder(tmp_path / "run")
    folder.append(RECORDS)
    folder.save_checkpoint(2, {"vector": torch.zeros(1)})
    content = folder.records.path.read_bytes()
    folder.records.path.write_bytes(damage + content[len(damage) :])
    with pytest.raises(StorageError, match=r"records\.jsonl.*(delete|restore)"):
        folder.rewind()


# --- checkpoints


def save_folder(tmp_path: Path) -> RunFolder:
    folder = create_folder(tmp_path / "run")
    folder.append(RECORDS)
    folder.save_checkpoint(
        2,
        {
            "vector": torch.tensor([1.5, -2.0]),
            "state.m": torch.tensor([[7]]),
            "none": torch.zeros(0),
        },
    )
    return folder


def test_tensors_are_restored_with_type_shape_and_bits(tmp_path: Path) -> None:
    tensors = {
        "a": torch.tensor([[1.5, float("nan")], [float("-inf"), -0.0]], dtype=torch.float64),
        "b": torch.tensor(3, dtype=torch.int64),
        "c": torch.zeros(0, 5),
        "d": torch.tensor([True, False]),
        "e": torch.arange(6).reshape(2, 3).T,  # not contiguous
        "f": torch.tensor([1.0], dtype=torch.bfloat16),
    }
    (tmp_path / "x").write_bytes(pack(tensors, {"round": 3}))
    restored, metadata = unpack(tmp_path / "x")
    assert metadata["round"] == 3
    assert restored.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert restored[name].dtype == tensor.dtype
        assert restored[name].shape == tensor.shape
        # The same bits, NaN and -0.0 included.
        assert pack({"t": restored[name]}, {}) == pack({"t": tensor}, {})


def test_equal_contents_give_equal_bytes_in_any_order() -> None:
    one, two = torch.ones(2), torch.zeros(3)
    assert pack({"a": one, "b": two}, {"x": 1, "y": 2}) == pack(
        {"b": two, "a": one}, {"y": 2, "x": 1}
    )


@pytest.mark.parametrize("keep", [0, 1, 7, 8, 40, -1, -8])
def test_a_truncated_checkpoint_is_refused(tmp_path: Path, keep: int) -> None:
    folder = save_folder(tmp_path)
    (folder.path / CHECKPOINT).write_bytes((folder.path / CHECKPOINT).read_bytes()[:keep])
    with pytest.raises(
        CheckpointError, match=r"checkpoint\.safetensors is damaged .*delete that file and resume"
    ):
        folder.rewind()


@pytest.mark.parametrize(
    "content", [b"garbage", b"\x00" * 64, b"\xff" * 64, b"{}", b"\x02" + b"\x00" * 7 + b"{}"]
)
def test_a_file_that_is_not_a_checkpoint_is_refused(tmp_path: Path, content: bytes) -> None:
    folder = save_folder(tmp_path)
    (folder.path / CHECKPOINT).write_bytes(content)
    with pytest.raises(CheckpointError, match="delete that file and resume"):
        folder.rewind()


def test_a_flipped_bit_in_the_numbers_is_detected(tmp_path: Path) -> None:
    folder = save_folder(tmp_path)
    content = bytearray((folder.path / CHECKPOINT).read_bytes())
    content[-1] ^= 1
    (folder.path / CHECKPOINT).write_bytes(content)
    with pytest.raises(
        CheckpointError, match=r"checksum does not match.*delete that file and resume"
    ):
        folder.rewind()


def test_a_flipped_bit_anywhere_is_detected(tmp_path: Path) -> None:
    """Also in the header, where it could change the round or the length of the records."""
    folder = save_folder(tmp_path)
    whole = (folder.path / CHECKPOINT).read_bytes()
    assert folder.read_checkpoint() is not None
    for position in range(len(whole)):
        content = bytearray(whole)
        content[position] ^= 1 << position % 5  # low bits: a digit stays a digit, a letter a letter
        (folder.path / CHECKPOINT).write_bytes(content)
        with pytest.raises(CheckpointError):
            folder.read_checkpoint()
