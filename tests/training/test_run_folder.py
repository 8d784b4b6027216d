"""The run folder: atomic writes, detection of damage, and errors with advice."""

from __future__ import annotations

import errno
import json
import math
import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from small_runs import create_folder, read_files

import udjfl
from udjfl._files import write_atomic
from udjfl.errors import CheckpointError, StorageError, UdjflError
from udjfl.simulation.programs import folder_name
from udjfl.training.file_names import MODEL
from udjfl.training.record_file import CHECKPOINT
from udjfl.training.records import History, Record
from udjfl.training.run_folder import RunFolder
from udjfl.training.tensor_file import pack, unpack

TINY = {"model": "logistic", "rounds": 4, "checkpoint_every": 2, "uncertainty_epochs": 1}
RECORDS = [
    Record(1, "client-1", "train_loss", 0.1 + 0.2),
    Record(1, "client-2", "excluded", "its losses field is ∞; „oops“\n"),
    Record(1, None, "step_norm", None),
    Record(2, "client-1", "train_loss", 5e-324),
]


def make_failing(code: int) -> Callable[..., None]:
    def fail(*args: object, **options: object) -> None:
        raise OSError(code, os.strerror(code))

    return fail


# --- atomic writes


@pytest.mark.parametrize("function", ["fsync", "replace"])
def test_a_failing_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    path = tmp_path / "file"
    write_atomic(path, b"old")
    if function == "fsync":
        monkeypatch.setattr(os, "fsync", make_failing(errno.ENOSPC))
    else:
        monkeypatch.setattr(Path, "replace", make_failing(errno.ENOSPC))
    with pytest.raises(StorageError):
        write_atomic(path, b"new")
    assert read_files(tmp_path) == {"file": b"old"}  # nothing is left beside it either


def test_content_is_synced_before_the_file_is_renamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Content, name, folder: the order decides what a power cut leaves."""
    path = tmp_path / "file"
    seen: list[str] = []
    real_fsync, real_replace = os.fsync, Path.replace

    def fsync(descriptor: int) -> None:
        is_folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        seen.append("sync folder" if is_folder else f"sync {os.fstat(descriptor).st_size} bytes")
        real_fsync(descriptor)

    def replace(self: Path, target: Path) -> Path:
        seen.append(f"rename with {len(self.read_bytes())} bytes")
        return real_replace(self, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "replace", replace)
    write_atomic(path, b"new")
    assert seen == [
        "sync 3 bytes",
        "rename with 3 bytes",
        *(["sync folder"] if os.name == "posix" else []),
    ]


def test_leftovers_of_a_killed_write_are_removed_by_the_next_writer(tmp_path: Path) -> None:
    """Of this version, and of older ones; a file of the user's is not touched."""
    create_folder(tmp_path).unlock()
    before = read_files(tmp_path)
    for name in (".result.json.0123456789abcdef.part", "settings.json.part"):
        (tmp_path / name).write_bytes(b"half of something much lon")
    (tmp_path / "thesis.part").write_bytes(b"mine")
    folder = RunFolder.open(tmp_path)
    folder.lock()
    folder.unlock()
    assert read_files(tmp_path) == {**before, "thesis.part": b"mine"}


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


# --- JSON


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_nan_and_infinity_never_reach_a_file(tmp_path: Path, value: float) -> None:
    folder = create_folder(tmp_path / "run")
    before = read_files(tmp_path)
    with pytest.raises(ValueError, match="JSON"):
        folder.write_json("result.json", {"psi": value})
    with pytest.raises(ValueError, match="JSON"):
        folder.append([Record(1, None, "x", value)])
    assert {**read_files(tmp_path), "run/records.jsonl": b""} == {
        **before,
        "run/records.jsonl": b"",
    }


@pytest.mark.parametrize("value", [math.nan, math.inf, 0.0, -1.0])
def test_an_unusable_given_uncertainty_is_an_error_that_names_the_client(
    tmp_path: Path, federation: udjfl.Federation, value: float
) -> None:
    given = {"client-1": 1.0, "client-2": value, "client-3": 1.0}
    with pytest.raises(UdjflError, match=r"client-2.*uncertaint|uncertaint.*client-2"):
        udjfl.simulate(federation, "fedavg", uncertainty=given, out=tmp_path / "run", **TINY)


def test_every_file_of_a_run_is_strict_json(tmp_path: Path, federation: udjfl.Federation) -> None:
    """With this learning rate the test loss overflows; the record is null, which is JSON."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    settings = {**TINY, "lr": 1e20, "uncertainty_lr": 0.1}
    udjfl.simulate(federation, "fedavg", on_bad_report="exclude", out=tmp_path / "run", **settings)
    for name in ("settings.json", "versions.json", "uncertainty.json", "result.json"):
        json.loads((tmp_path / "run" / name).read_text(encoding="utf-8"), parse_constant=refuse)
    lines = (tmp_path / "run" / "records.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line, parse_constant=refuse) for line in lines]


@pytest.mark.parametrize("content", [b"", b"{", b'{"a": 1', b"\xff\xfe", b"garbage"])
def test_corrupted_settings_are_refused(
    tmp_path: Path, federation: udjfl.Federation, content: bytes
) -> None:
    udjfl.simulate(federation, "fedavg", out=tmp_path / "run", **TINY)
    (tmp_path / "run" / "settings.json").write_bytes(content)
    before = read_files(tmp_path)
    with pytest.raises(StorageError, match=r"settings\.json is damaged .*(restore|start)"):
        udjfl.simulate(federation, "fedavg", out=tmp_path / "run", resume=True, **TINY)
    assert read_files(tmp_path) == before


@pytest.mark.parametrize(
    "content", ["null", "[]", "{}", '"text"', '{"federation": {}}', '{"comparison": {}}']
)
def test_settings_that_are_not_those_of_a_run_are_refused(
    tmp_path: Path, federation: udjfl.Federation, content: str
) -> None:
    udjfl.simulate(federation, "fedavg", out=tmp_path / "run", **TINY)
    (tmp_path / "run" / "settings.json").write_text(content, encoding="utf-8")
    before = read_files(tmp_path)
    with pytest.raises(UdjflError, match="run"):
        udjfl.simulate(federation, "fedavg", out=tmp_path / "run", resume=True, **TINY)
    assert read_files(tmp_path) == before


@pytest.mark.parametrize(
    "content",
    ["", "null", "[]", '{"kind": "entropy", "values": {"client-1": 1.0}}', '{"values": 3}'],
)
def test_a_damaged_uncertainty_file_is_refused_or_measured_again(
    tmp_path: Path, federation: udjfl.Federation, content: str
) -> None:
    """Either an error names the file, or the uncertainties are measured again."""
    out = tmp_path / "run"
    udjfl.simulate(federation, "rawls", out=out, **TINY)
    before = read_files(out)
    (out / "uncertainty.json").write_text(content, encoding="utf-8")
    try:
        udjfl.simulate(federation, "rawls", out=out, resume=True, **TINY)
    except UdjflError as error:
        assert "uncertainty" in str(error)  # noqa: PT017 - both are right
        (out / "uncertainty.json").unlink()
        udjfl.simulate(federation, "rawls", out=out, resume=True, **TINY)
    assert read_files(out) == before


# --- a full disk


def test_a_run_on_a_full_disk_can_be_resumed(
    tmp_path: Path, federation: udjfl.Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After round 3, between checkpoints, half of the records is written, then ENOSPC returned."""
    out = tmp_path / "run"
    settings = {**TINY, "rounds": 6}
    whole = udjfl.simulate(federation, "rawls", out=tmp_path / "whole", **settings)
    real = os.write
    is_full = False

    def write(descriptor: int, content: bytes) -> int:
        if not is_full:
            return real(descriptor, content)
        if len(content) > 10:
            return real(descriptor, content[: len(content) // 2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def fill(event: udjfl.Progress) -> None:
        nonlocal is_full
        is_full = event.stage == "training" and event.done >= 3

    monkeypatch.setattr(os, "write", write)
    with pytest.raises(
        StorageError,
        match=r"records\.jsonl: the disk is full; free some space, then `udjfl resume`",
    ):
        udjfl.simulate(federation, "rawls", out=out, on_progress=fill, **settings)
    is_full = False
    again = udjfl.simulate(federation, "rawls", out=out, resume=True, **settings)
    assert read_files(out) == read_files(tmp_path / "whole")
    assert again.history == whole.history


def test_a_run_can_be_resumed_after_any_sync_failed(
    tmp_path: Path, federation: udjfl.Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each sync fails in turn: settings, uncertainty, checkpoints, model, result and so on."""
    count, fails_at, real = 0, 0, os.fsync

    def fsync(descriptor: int) -> None:
        nonlocal count
        count += 1
        if count == fails_at:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    udjfl.simulate(federation, "rawls", out=tmp_path / "whole", **TINY)
    syncs = count
    assert syncs >= 7
    for fails_at in range(1, syncs + 1):
        count, out = 0, tmp_path / f"run-{fails_at}"
        with pytest.raises(
            StorageError,
            match="the disk is full; free some space, then `udjfl resume`: what is there is int",
        ):
            udjfl.simulate(federation, "rawls", out=out, **TINY)
        udjfl.simulate(federation, "rawls", out=out, resume=True, **TINY)
        assert read_files(out) == read_files(tmp_path / "whole"), fails_at


# --- folders that cannot be used


@pytest.mark.parametrize("location", ["file", "below a file", "/proc", "too long a name"])
def test_a_folder_that_cannot_be_written_is_refused(
    tmp_path: Path, federation: udjfl.Federation, location: str
) -> None:
    (tmp_path / "taken").write_text("text")
    out = {
        "file": tmp_path / "taken",
        "below a file": tmp_path / "taken" / "run",
        "/proc": Path("/proc/udjfl-run"),
        "too long a name": tmp_path / ("x" * 300),
    }[location]
    if location == "/proc" and not Path("/proc/self").exists():
        pytest.skip("needs /proc")
    with pytest.raises(StorageError, match=r"choose another folder") as caught:
        udjfl.simulate(federation, "fedavg", out=out, **TINY)
    assert str(out) in str(caught.value)
    assert read_files(tmp_path) == {"taken": b"text"}


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        (errno.EROFS, "the file system is read-only; choose another folder"),
        (errno.EACCES, "permission denied; choose another folder"),
        (errno.EPERM, "permission denied; choose another folder"),
        (errno.EDQUOT, "quota is used up; free some space, then `udjfl resume`"),
        (errno.EIO, "Input/output error"),
    ],
)
def test_system_errors_are_explained_with_advice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, advice: str
) -> None:
    monkeypatch.setattr(Path, "mkdir", make_failing(code))
    with pytest.raises(StorageError, match=advice):
        create_folder(tmp_path / "run")


@contextmanager
def drop_root() -> Iterator[None]:
    """Run a block of code as an ordinary user: root may write everywhere."""
    user = os.geteuid()
    os.seteuid(65534 if user == 0 else user)
    try:
        yield
    finally:
        os.seteuid(user)


@pytest.mark.skipif(os.name != "posix", reason="needs file permissions")
@pytest.mark.parametrize("mode", [0o555, 0o000], ids=["read-only", "not even readable"])
def test_a_folder_without_permission_is_refused(mode: int) -> None:
    # Not tmp_path, whose parents only its owner may enter.
    with tempfile.TemporaryDirectory() as name:
        parent = Path(name) / "locked"
        parent.mkdir()
        Path(name).chmod(0o755)
        parent.chmod(mode)
        with (
            drop_root(),
            pytest.raises(StorageError, match="permission denied; choose another folder"),
        ):
            create_folder(parent / "run")
        parent.chmod(0o755)


def test_a_folder_that_holds_a_run_is_refused_and_not_changed(
    tmp_path: Path, federation: udjfl.Federation
) -> None:
    out = tmp_path / "run"
    udjfl.simulate(federation, "fedavg", out=out, **TINY)
    before = read_files(out)
    with pytest.raises(
        StorageError,
        match=r"already holds a run; continue it with `udjfl resume .*`, or choose another",
    ):
        udjfl.simulate(federation, "rawls", out=out, **TINY)
    assert read_files(out) == before


def test_leftovers_of_another_run_are_refused_and_not_changed(
    tmp_path: Path, federation: udjfl.Federation
) -> None:
    """Without settings.json it is unknown which run the checkpoint belongs to."""
    out = tmp_path / "run"
    udjfl.simulate(federation, "fedavg", out=out, **TINY)
    (out / "settings.json").unlink()
    before = read_files(out)
    with pytest.raises(StorageError, match=r"choose another folder|delete"):
        udjfl.simulate(federation, "desert", seed=1, out=out, **TINY)
    assert read_files(out) == before


def test_a_run_killed_before_its_settings_can_be_started_again(
    tmp_path: Path, federation: udjfl.Federation
) -> None:
    """versions.json is written first; a folder with only that is not yet a run."""
    out = tmp_path / "run"
    out.mkdir()
    (out / "versions.json").write_text("{}")
    (out / "settings.json.part").write_text('{"met')
    udjfl.simulate(federation, "fedavg", out=out, **TINY)
    udjfl.simulate(federation, "fedavg", out=tmp_path / "whole", **TINY)
    assert read_files(out) == read_files(tmp_path / "whole")


def test_a_folder_without_a_run_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(
        StorageError,
        match=r"holds no run \(there is no settings\.json\); start one with `udjfl run --out`",
    ):
        RunFolder.open(tmp_path)


@pytest.mark.parametrize(
    "wrong",
    [{"device": "nonsense"}, {"uncertainty": {"client-1": 1.0}}, {"model": "mpl"}, {"rounds": 0}],
    ids=["device", "uncertainty", "model", "rounds"],
)
def test_mistakes_are_reported_before_a_folder_is_created(
    tmp_path: Path, federation: udjfl.Federation, wrong: dict[str, Any]
) -> None:
    """Otherwise the corrected call would be refused: the folder "already holds a run"."""
    with pytest.raises(udjfl.SettingsError):
        udjfl.simulate(federation, "fedavg", out=tmp_path / "run", **{**TINY, **wrong})
    assert not (tmp_path / "run").exists()


# --- the files


def test_a_run_writes_its_files(tmp_path: Path, federation: udjfl.Federation) -> None:
    result = udjfl.simulate(federation, "rawls", out=tmp_path / "run", **TINY)
    folder = RunFolder.open(tmp_path / "run")
    assert set(read_files(folder.path)) == {
        ".lock",
        "settings.json",
        "versions.json",
        "manifest.json",
        "uncertainty.json",
        "records.jsonl",
        "checkpoint.safetensors",
        "model.safetensors",
        "result.json",
    }
    settings = folder.read_json("settings.json")
    assert (settings["method"], settings["params"]["theory"], settings["seed"]) == (
        "udj",
        "rawls",
        0,
    )
    assert settings["training"]["rounds"] == 4
    assert settings["federation"]["fingerprint"] == federation.fingerprint
    assert {"python", "udjfl", "torch", "numpy", "scipy", "scikit-learn"} <= set(
        folder.read_json("versions.json")
    )
    assert folder.read_json("uncertainty.json")["values"] == result.uncertainty
    assert list(folder.read_records()) == result.history.records
    stored, metadata = unpack(folder.path / MODEL)
    assert metadata["round"] == 4
    assert stored.keys() == result.model.state_dict().keys()
    assert all(
        torch.equal(stored[name], value) for name, value in result.model.state_dict().items()
    )
    final = folder.read_json("result.json")
    assert final["client_scores"] == result.client_scores
    assert final["global_accuracy"] == result.metrics["global_accuracy"]


SCRIPT = """
import sys
sys.path.insert(0, sys.argv[1])
from small_runs import make_federation
import udjfl
settings = {"rounds": 4, "hidden": 5, "checkpoint_every": 3, "uncertainty_epochs": 2}
udjfl.simulate(make_federation(), "rawls", "mlp", out=sys.argv[2], **settings)
"""


def test_equal_runs_give_equal_bytes_in_separate_processes(tmp_path: Path) -> None:
    # Sets of strings have another order with another hash seed.
    for name, hash_seed in (("a", "1"), ("b", "2")):
        subprocess.run(
            [sys.executable, "-c", SCRIPT, str(Path(__file__).parents[1]), str(tmp_path / name)],
            check=True,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
        )
    assert read_files(tmp_path / "a") == read_files(tmp_path / "b")
    assert set(read_files(tmp_path / "a")) >= {"model.safetensors", "records.jsonl", "result.json"}


def test_each_method_has_a_valid_folder_name_of_its_own() -> None:
    many = udjfl.UDJ(beta=tuple(map(float, range(100))), gamma=1.0)
    other = udjfl.UDJ(beta=(*map(float, range(99)), 0.0), gamma=1.0)
    names = [
        folder_name(method)
        for method in (udjfl.FedAvg(), many, other, udjfl.UDJ.rawls(), udjfl.UDJ.rawls(4.0))
    ]
    assert len(set(names)) == 5
    assert all(len(name.encode()) <= 255 and "/" not in name for name in names)


def test_names_that_differ_only_in_special_characters_get_two_folders() -> None:
    one, two = (udjfl.UDJ(beta={name: 1.0}, gamma=1.0) for name in ("a b", "a/b"))
    assert folder_name(one) != folder_name(two)
