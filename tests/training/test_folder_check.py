"""Damage of run folders: found by whatever reads them, and made again where that is possible."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command import Command, mistakes_of
from small_runs import Stopped, make_federation, make_older, read_files, stop_after

import udjfl
from udjfl.errors import CheckpointError, StorageError
from udjfl.report.saved_runs import find_runs, read_run
from udjfl.training.file_names import MADE_AGAIN
from udjfl.training.folder_check import check_files, check_folder
from udjfl.training.record_file import CHECKPOINT
from udjfl.training.run_folder import RunFolder
from udjfl.training.tensor_file import pack, unpack

TINY: dict[str, Any] = {
    "model": "logistic",
    "rounds": 5,
    "checkpoint_every": 2,
    "uncertainty_epochs": 1,
}
Folders = tuple[Path, Path]


def start(out: Path, seed: int = 0, method: str = "rawls", **others: Any) -> udjfl.Result:
    federation = make_federation()
    return udjfl.simulate(federation, method, out=out, resume=True, seed=seed, **TINY, **others)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    """Return a finished run, and one that stopped after round 3: do not change them."""
    root = tmp_path_factory.mktemp("folders")
    start(root / "finished", service="prior-all")
    with pytest.raises(Stopped):
        start(root / "stopped", service="prior-all", on_progress=stop_after(3))
    return root / "finished", root / "stopped"


@pytest.fixture
def finished(folders: Folders, tmp_path: Path) -> Path:
    return Path(shutil.copytree(folders[0], tmp_path / "finished"))


@pytest.fixture
def stopped(folders: Folders, tmp_path: Path) -> Path:
    return Path(shutil.copytree(folders[1], tmp_path / "stopped"))


def damage(path: Path, position: int = -3) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


def states(path: Path) -> dict[str, str]:
    return {file.name: file.state for file in check_files(RunFolder.open(path))}


def test_an_untouched_folder_is_whole(finished: Path, stopped: Path) -> None:
    names = {name for name in read_files(finished) if not name.startswith(".")}
    assert states(finished) == dict.fromkeys(names, "whole")
    assert len(names) == 9
    notes = {file.name: file.note for file in check_files(RunFolder.open(stopped))}
    assert set(states(stopped).values()) == {"whole"}
    assert notes["checkpoint.safetensors"] == "after round 2"
    assert "bytes after the checkpoint are made again" in notes["records.jsonl"]


@pytest.mark.parametrize("name", MADE_AGAIN[:3])
def test_a_damaged_result_of_a_finished_run_is_found_and_made_again(
    folders: Folders, finished: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    damage(finished / name)
    assert states(finished)[name] == "damaged"
    with pytest.raises(StorageError, match=rf"{name} is damaged .* `udjfl resume` makes it again"):
        read_run(finished)
    start(finished, service="prior-all")
    assert f"{name} is damaged and is made again" in caplog.text
    assert read_files(finished) == read_files(folders[0])


@pytest.mark.parametrize("name", MADE_AGAIN[:3])
def test_a_missing_result_of_a_finished_run_is_made_again(
    folders: Folders, finished: Path, name: str
) -> None:
    (finished / name).unlink()
    assert states(finished)[name] == "missing"
    start(finished, service="prior-all")
    assert read_files(finished) == read_files(folders[0])


@pytest.mark.parametrize("content", [[], "done", {"client_scores": 3}])
def test_a_whole_file_that_is_no_result_is_made_again(
    folders: Folders, finished: Path, content: object
) -> None:
    """A folder of somebody else's: its manifest lists whatever they wrote."""
    folder = RunFolder.open(finished)
    folder.write_json("result.json", content)
    start(finished, service="prior-all")
    assert read_files(finished) == read_files(folders[0])


@pytest.mark.parametrize(
    "name",
    ["settings.json", "versions.json", "uncertainty.json", "records.jsonl", CHECKPOINT],
)
@pytest.mark.parametrize("is_finished", [True, False])
def test_any_other_damage_stops_resume_and_report(
    finished: Path, stopped: Path, name: str, is_finished: bool
) -> None:
    path = finished if is_finished else stopped
    damage(path / name, 20)
    before = read_files(path)
    assert states(path)[name] == "damaged"
    with pytest.raises(StorageError, match=rf"{name} is damaged"):
        start(path, service="prior-all")
    if is_finished:
        with pytest.raises(StorageError, match=rf"{name} is damaged"):
            read_run(path)
    assert read_files(path) == before


def test_a_damaged_manifest_stops_everything(finished: Path) -> None:
    damage(finished / "manifest.json")
    for read in (lambda: start(finished, service="prior-all"), lambda: read_run(finished)):
        with pytest.raises(StorageError, match=r"manifest\.json is damaged"):
            read()


def test_a_folder_whose_manifest_is_gone_is_not_taken_for_an_older_one(finished: Path) -> None:
    (finished / "manifest.json").unlink()
    with pytest.raises(StorageError, match=r"manifest\.json is missing"):
        RunFolder.open(finished)
    with pytest.raises(StorageError, match=r"manifest\.json is missing"):
        start(finished, service="prior-all")


def test_a_file_that_the_run_did_not_write_is_not_read(finished: Path, stopped: Path) -> None:
    shutil.copy(finished / "result.json", stopped / "result.json")
    with pytest.raises(StorageError, match=r"result\.json does not belong to this run"):
        RunFolder.open(stopped).read_json("result.json")
    assert states(stopped)["result.json"] == "unknown"


def test_the_checkpoint_and_records_of_another_seed_are_refused(
    stopped: Path, tmp_path: Path
) -> None:
    with pytest.raises(Stopped):
        start(tmp_path / "other", seed=1, service="prior-all", on_progress=stop_after(3))
    for name in (CHECKPOINT, "records.jsonl"):
        shutil.copy(tmp_path / "other" / name, stopped / name)
    with pytest.raises(CheckpointError, match="does not belong here"):
        start(stopped, service="prior-all")


def forge(path: Path, change: Callable[[dict[str, Any], dict[str, Any]], None]) -> None:
    """Rewrite a checkpoint, with a right checksum, after a change of its tensors and metadata."""
    tensors, metadata = unpack(path / CHECKPOINT)
    change(tensors, metadata)
    (path / CHECKPOINT).write_bytes(pack(tensors, metadata))


@pytest.mark.parametrize("round", [-5, 0, 6, 99, 10**30, True, "2", None, 2.0])
def test_a_checkpoint_of_an_impossible_round_is_refused(stopped: Path, round: Any) -> None:
    forge(stopped, lambda tensors, metadata: metadata.update(round=round))
    with pytest.raises(CheckpointError, match="round"):
        start(stopped, service="prior-all")


@pytest.mark.parametrize(
    "change",
    [
        lambda t, m: t.pop("vector"),
        lambda t, m: t.update(vector=t["vector"][:-1].clone()),
        lambda t, m: t.update(vector=t["vector"].double()),
        lambda t, m: t.update(buffers=t["vector"].clone()),
        lambda t, m: m.pop("run"),
        lambda t, m: m.update(run="0" * 64),
        lambda t, m: m.update(records_length=-1),
        lambda t, m: m.update(records_length=m["records_length"] - 1),
        lambda t, m: m.update(records_length=10**9),
        lambda t, m: m.update(records_sha256=None),
        lambda t, m: m.update(records_sha256=17),
    ],
)
def test_a_checkpoint_with_nonsense_inside_is_refused(
    stopped: Path, change: Callable[[Any, Any], None]
) -> None:
    forge(stopped, change)
    with pytest.raises(StorageError):
        start(stopped, service="prior-all")


def test_a_run_whose_lost_uncertainties_cannot_be_measured_again_is_refused(
    tmp_path: Path,
) -> None:
    """They were given: measuring would silently give others."""
    federation = make_federation()
    given = {name: 0.5 + i for i, name in enumerate(federation.ids)}
    run = {"out": tmp_path, **{**TINY, "rounds": 2}}
    udjfl.simulate(federation, "rawls", uncertainty=given, **run)
    whole = read_files(tmp_path)
    (tmp_path / "uncertainty.json").unlink()
    with pytest.raises(StorageError, match="others than the run was started with"):
        udjfl.simulate(federation, "rawls", resume=True, **run)
    udjfl.simulate(federation, "rawls", uncertainty=given, resume=True, **run)
    assert read_files(tmp_path) == whole


def test_a_result_made_again_without_its_reference_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    federation = make_federation()
    reference = udjfl.simulate(federation, "fedavg", **TINY)
    start(tmp_path, reference=reference)
    whole = read_files(tmp_path)
    damage(tmp_path / "result.json")
    start(tmp_path)
    assert "result.json was made again, and is not what it was" in caplog.text
    assert set(states(tmp_path).values()) == {"whole"}
    start(tmp_path, reference=reference)
    assert read_files(tmp_path) == whole


def test_a_finished_run_without_checkpoint_and_records_starts_again(
    folders: Folders, finished: Path
) -> None:
    for name in (CHECKPOINT, "records.jsonl"):
        (finished / name).unlink()
    with pytest.raises(Stopped):
        start(finished, service="prior-all", on_progress=stop_after(3))
    assert set(states(finished).values()) == {"whole"}
    start(finished, service="prior-all")
    assert read_files(finished) == read_files(folders[0])


def make_old_checkpoint(path: Path) -> None:
    tensors, metadata = unpack(path / CHECKPOINT)
    for key in ("run", "records_sha256"):
        del metadata[key]
    (path / CHECKPOINT).write_bytes(pack(tensors, metadata))


def test_a_folder_of_an_older_version_opens_with_a_word(
    finished: Path, stopped: Path, folders: Folders, caplog: pytest.LogCaptureFixture
) -> None:
    for path in (finished, stopped):
        make_older(path)
        make_old_checkpoint(path)
        assert set(states(path).values()) == {"unchecked"}
    find_runs([finished])
    assert "no manifest.json (an older version made it)" in caplog.text
    start(stopped, service="prior-all")
    whole = read_files(folders[0])
    for name in ("records.jsonl", "model.safetensors", "served.safetensors", "result.json"):
        assert read_files(stopped)[name] == whole[name]
    damage(finished / "model.safetensors")
    assert states(finished)["model.safetensors"] == "damaged"


# --- links


@pytest.mark.parametrize(
    "name",
    ["records.jsonl", CHECKPOINT, "uncertainty.json", "settings.json", "manifest.json", ".lock"],
)
@pytest.mark.parametrize("kind", ["symbolic", "hard"])
def test_links_in_a_folder_change_nothing_outside(stopped: Path, name: str, kind: str) -> None:
    """A hard link is followed where a file is replaced whole: that leaves the other name alone."""
    outside = stopped.parent / "outside"
    (stopped / name).rename(outside)
    before = outside.read_bytes()
    if kind == "symbolic":
        (stopped / name).symlink_to(outside)
        with pytest.raises(StorageError):
            start(stopped, service="prior-all")
    else:
        os.link(outside, stopped / name)
        try:
            start(stopped, service="prior-all")
        except StorageError as error:
            assert name == "records.jsonl" and "hard link" in str(error)  # noqa: PT017, PT018
    assert outside.read_bytes() == before


def test_a_pipe_in_place_of_a_file_does_not_make_a_reader_wait(finished: Path) -> None:
    (finished / "result.json").unlink()
    os.mkfifo(finished / "result.json")
    with pytest.raises(StorageError, match="not a plain file"):
        read_run(finished)


def test_files_have_the_modes_of_the_users_other_files(folders: Folders) -> None:
    umask = os.umask(0)
    os.umask(umask)
    for path in folders[0].iterdir():
        if path.name != ".lock":
            assert path.stat().st_mode & 0o777 == 0o666 & ~umask, path


# --- the command


def test_the_command_says_what_is_damaged(finished: Path, stopped: Path, command: Command) -> None:
    assert command("check", finished).code == 0
    damage(finished / "model.safetensors")
    shown = command("check", finished)
    assert shown.code == 1
    assert "1 folder: 8 whole, 1 damaged." in shown.out
    assert "makes it again" in " ".join(shown.out.split())
    several = command("check", finished.parent, "--json")
    assert several.code == 1
    document = json.loads(several.out)
    assert document["whole"] is False
    assert [folder["whole"] for folder in document["folders"]] == [False, True]
    damage(stopped / "manifest.json")
    document = json.loads(command("check", finished.parent, "--json").out)
    assert "manifest.json is damaged" in document["folders"][1]["error"]
    (line,) = mistakes_of(command("check", finished.parent.parent / "nowhere"))
    assert "holds no run" in line


def test_a_comparison_is_checked_run_by_run(tmp_path: Path) -> None:
    udjfl.compare(make_federation(), "rawls", seeds=2, out=tmp_path, **{**TINY, "rounds": 2})
    found = check_folder(tmp_path)
    assert len(found) == 5
    assert all(folder.is_whole for folder in found)
    damage(tmp_path / "comparison.json")
    found = check_folder(tmp_path)
    assert [folder.is_damaged for folder in found] == [True, False, False, False, False]
