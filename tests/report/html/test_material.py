"""Folders as material of a report: whatever can be read is used, the rest is named."""

from __future__ import annotations

import json
import os
import shutil
import socket
from pathlib import Path

import pytest

from udjfl.errors import StorageError
from udjfl.report.html.material import Material, read_material
from udjfl.report.saved_comparison import find_damage, read_comparison
from udjfl.training.follow import is_being_written
from udjfl.training.run_folder import RunFolder


def test_a_comparison_is_read_in_the_order_of_tables(material: Material) -> None:
    labels = [row.label for row in material.rows]
    assert labels == ["FedAvg", "UDJ-FL rawls (budget=2)", "UDJ-FL rawls", "AFL"]
    assert [curves.label for curves in material.curves] == [
        "FedAvg",
        "Rawls budget=2",
        "Rawls",
        "AFL",
    ]
    assert material.comparison is not None
    assert material.problems == ()
    assert material.seeds == (0, 1, 2, 3, 4)
    assert material.reference is material.rows[0]
    assert {facts.train_size for facts in material.clients.values()} != {None}


def test_clients_are_sorted_by_uncertainty(material: Material) -> None:
    means = [material.rows[0].uncertainty[client].mean for client in material.by_uncertainty()]
    assert means == sorted(means, key=lambda mean: mean or 0.0)


def test_one_run_has_no_comparison(run_folder: Path) -> None:
    material = read_material([run_folder])
    assert material.comparison is None
    assert "one run only" in material.no_comparison
    assert [row.method.name for row in material.rows] == ["fedavg"]


def test_an_unfinished_run_has_curves_but_no_scores(run_folder: Path) -> None:
    (run_folder / "result.json").unlink()
    material = read_material([run_folder])
    assert material.rows == ()
    assert [problem.folder for problem in material.problems] == ["run"]
    assert "resume=True" in material.problems[0].text
    assert material.curves[0].reached == 8
    assert material.client_ids


@pytest.mark.parametrize("name", ["settings.json", "result.json", "uncertainty.json"])
@pytest.mark.parametrize("content", ["{", "[]", "null", '{"a": 1}', '"text"'])
def test_a_damaged_file_is_a_problem_not_an_error(
    run_folder: Path, name: str, content: str
) -> None:
    (run_folder / name).write_text(content)
    material = read_material([run_folder])
    assert material.rows == () or name == "uncertainty.json"


def test_records_that_are_damaged_are_left_out(run_folder: Path) -> None:
    records = run_folder / "records.jsonl"
    lines = records.read_text().splitlines()
    bad = ['{"round": 1, "client"', "[1]", '{"round": "x", "client": 1}', "[" * 5000, "\x00"]
    records.write_text("\n".join([*bad, *lines[:-1], lines[-1][:10]]))
    assert read_material([run_folder]).curves[0].reached == 8


@pytest.mark.parametrize("is_finished", [True, False])
def test_a_run_refused_as_damaged_has_no_curves(
    comparison_folder: Path, tmp_path: Path, is_finished: bool
) -> None:
    run = tmp_path / "run"
    shutil.copytree(next((comparison_folder / "seed-0").glob("fedavg*")), run)
    if not is_finished:
        (run / "result.json").unlink()
    assert len(read_material([run]).curves) == 1
    records = run / "records.jsonl"
    records.write_text(records.read_text().replace("test_accuracy", "test_loss", 1))
    material = read_material([run])
    assert material.curves == ()
    assert "records.jsonl is damaged" in material.problems[0].text


def test_runs_without_fedavg_are_shown_side_by_side(comparison_folder: Path) -> None:
    folders = sorted(comparison_folder.glob("seed-*/udj*")) + sorted(
        comparison_folder.glob("seed-*/afl*")
    )
    material = read_material(folders)
    assert material.comparison is None
    assert "FedAvg" in material.no_comparison
    assert len(material.rows) == 3


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="holds no run"):
        read_material([tmp_path])


def test_runs_of_other_clients_are_left_out_of_the_rows(run_folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    for file in run_folder.iterdir():
        (other / file.name).write_bytes(file.read_bytes())
    result = json.loads((other / "result.json").read_text())
    for key in ("client_scores", "uncertainty", "test_sizes"):
        result[key] = {f"x{name}": value for name, value in result[key].items()}
    result["seed"] = 1
    (other / "result.json").write_text(json.dumps(result))
    settings = json.loads((other / "settings.json").read_text())
    (other / "settings.json").write_text(json.dumps({**settings, "seed": 1}))
    material = read_material([run_folder, other])
    assert material.comparison is None
    assert "other clients" in material.no_comparison
    assert material.rows[0].runs.outcomes


def test_a_damaged_file_of_the_comparison_itself_is_refused_by_tables_and_told_by_the_report(
    comparison_folder: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(comparison_folder, tmp_path / "copy"))
    path = folder / "comparison.json"
    path.write_bytes(path.read_bytes().replace(b"1", b"2", 1))
    with pytest.raises(StorageError, match=r"comparison\.json is damaged"):
        read_comparison(folder)
    assert any(
        "comparison.json is damaged" in each.text for each in read_material([folder]).problems
    )


@pytest.fixture
def copied(comparison_folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(comparison_folder, tmp_path / "copy"))


def test_a_file_that_is_replaced_while_it_is_checked_is_not_damaged(
    copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stale = [RunFolder.open(copied)]  # has the manifest of before
    writer = RunFolder.open(copied)
    writer.lock()
    try:
        writer.write_json("comparison.json", {"a": 1})
        open_now = RunFolder.open
        monkeypatch.setattr(
            RunFolder, "open", lambda path: stale.pop() if stale else open_now(path)
        )
        assert list(find_damage([copied])) == []
        assert not stale
    finally:
        writer.unlock()


@pytest.mark.parametrize("host", ["the-cluster", None])
def test_damage_is_found_where_a_process_seems_to_write(copied: Path, host: str | None) -> None:
    """A process that was killed on another machine seems to write for ever."""
    path = copied / "comparison.json"
    path.write_bytes(path.read_bytes().replace(b"1", b"2", 1))
    owner = {"pid": os.getpid(), "host": host or socket.gethostname()}
    (copied / ".writer.json").write_text(json.dumps(owner))
    assert is_being_written(copied)
    (damage,) = find_damage([copied])
    assert "comparison.json" in str(damage)
    with pytest.raises(StorageError, match=r"comparison\.json is damaged"):
        read_comparison(copied)


def test_damage_of_an_unfinished_run_is_found_where_a_process_seems_to_write(copied: Path) -> None:
    run = next((copied / "seed-0").glob("fedavg*"))
    (run / "result.json").unlink()
    (run / ".writer.json").write_text(json.dumps({"pid": 1, "host": "the-cluster"}))
    assert "not finished" in read_material([run]).problems[0].text
    path = run / "uncertainty.json"
    path.write_bytes(path.read_bytes() + b" ")
    assert "uncertainty.json is damaged" in read_material([run]).problems[0].text


def test_a_method_with_runs_that_contradict_each_other_is_left_out(
    comparison_folder: Path, tmp_path: Path
) -> None:
    shutil.copytree(comparison_folder, tmp_path / "a")
    shutil.copytree(next((comparison_folder / "seed-0").glob("afl*")), tmp_path / "b")
    material = read_material([tmp_path])
    assert "AFL" not in {row.label for row in material.rows}
    assert len(material.rows) == 3
    (problem,) = [each for each in material.problems if "same method and seed" in each.text]
    assert problem.folder == "AFL"
