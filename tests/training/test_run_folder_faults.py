"""Full disks, failed syncs and folders that cannot be used: errors with advice."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fault_injection import make_failing
from small_runs import create_folder, read_files

import udjfl
from udjfl.errors import StorageError
from udjfl.training.run_folder import RunFolder

TINY = {"model": "logistic", "rounds": 4, "checkpoint_every": 2, "uncertainty_epochs": 1}


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
        match=r"already holds a run; continue it with `udjfl.simulate\(.*, resume=True\)`",
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
