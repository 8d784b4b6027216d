"""`udjfl report`: finished runs, read back from their folders."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

import udjfl
from udjfl.cli import main as cli
from udjfl.errors import SettingsError, StorageError
from udjfl.report.saved_runs import compared_runs, read_run, runs_below

METHODS = ["fedavg", "rawls"]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two methods on two seeds, each run by itself, so that none knows its reference."""
    folder = tmp_path_factory.mktemp("runs")
    for seed in (0, 1):
        federation = udjfl.load("dirty-digits", seed=seed)
        for name in METHODS:
            udjfl.simulate(
                federation,
                name,
                rounds=2,
                uncertainty_epochs=1,
                seed=seed,
                out=folder / f"{name}-{seed}",
            )
    return folder


def run(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli.app, list(words))
    return result.exit_code, result.output


def test_a_run_is_read_back_as_it_was(root: Path) -> None:
    kept = read_run(root / "rawls-1")
    federation = udjfl.load("dirty-digits", seed=1)
    again = udjfl.simulate(federation, "rawls", rounds=2, uncertainty_epochs=1, seed=1)
    assert kept.metrics == again.metrics
    assert kept.client_accuracy == again.client_accuracy
    assert kept.uncertainty == again.uncertainty
    assert kept.method == again.method
    assert kept.seed == 1


def test_runs_side_by_side_are_the_comparison_of_them(root: Path) -> None:
    """Psi included, although no run knew its reference."""
    ours = compared_runs(runs_below([root]))
    settings = udjfl.CompareSettings(methods=METHODS, seeds=2, rounds=2, uncertainty_epochs=1)
    theirs = udjfl.compare(settings)
    assert [row.method for row in ours.rows] == [row.method for row in theirs.rows]
    for mine, other in zip(ours.rows, theirs.rows, strict=True):
        assert mine.metrics == other.metrics
        assert mine.client_accuracy == other.client_accuracy
        assert mine.against_fedavg == other.against_fedavg


def test_a_table_of_one_run_and_of_several(root: Path) -> None:
    code, text = run("report", str(root / "rawls-0"))
    assert code == 0
    assert "UDJ-FL rawls, seed 0" in text
    code, text = run("report", str(root / "fedavg-0"), str(root / "rawls-0"))
    assert code == 0
    assert "mean over 1 seed" in text


def test_json_is_a_document(root: Path) -> None:
    code, text = run("report", "--json", str(root))
    assert code == 0
    document = json.loads(text)
    assert document["seeds"] == [0, 1]
    assert [row["method"] for row in document["methods"]] == ["fedavg", "udj"]


def test_a_run_that_was_not_finished_is_named_with_what_to_do(root: Path, tmp_path: Path) -> None:
    shutil.copytree(root / "rawls-0", tmp_path / "half")
    (tmp_path / "half" / "result.json").unlink()
    with pytest.raises(StorageError, match="not finished; `udjfl resume"):
        runs_below([tmp_path / "half"])
    with pytest.raises(StorageError, match="name the folder given as --out"):
        runs_below([tmp_path / "nowhere"])


def test_without_fedavg_there_is_nothing_to_compare_with(root: Path) -> None:
    with pytest.raises(SettingsError, match="none of the runs is FedAvg"):
        compared_runs([read_run(root / "rawls-0"), read_run(root / "rawls-1")])


def test_a_seed_without_fedavg_is_refused(root: Path) -> None:
    with pytest.raises(SettingsError, match="has seed 1, and FedAvg was not run with it"):
        compared_runs([read_run(root / "fedavg-0"), read_run(root / "rawls-1")])


def test_the_same_run_twice_is_refused(root: Path, tmp_path: Path) -> None:
    shutil.copytree(root / "rawls-0", tmp_path / "copy")
    runs = [read_run(root / "fedavg-0"), read_run(root / "rawls-0"), read_run(tmp_path / "copy")]
    with pytest.raises(SettingsError, match="are the same method and seed"):
        compared_runs(runs)


def test_runs_on_other_data_are_refused(root: Path, tmp_path: Path) -> None:
    shutil.copytree(root / "rawls-0", tmp_path / "other")
    about = json.loads((tmp_path / "other" / "settings.json").read_text())
    about["federation"]["fingerprint"] = "0" * 64
    (tmp_path / "other" / "settings.json").write_text(json.dumps(about))
    with pytest.raises(SettingsError, match="made with other data"):
        compared_runs([read_run(root / "fedavg-0"), read_run(tmp_path / "other")])


@pytest.mark.parametrize("content", ["null", "{}", '{"uncertainty": 3}'])
def test_a_damaged_result_is_named(root: Path, tmp_path: Path, content: str) -> None:
    shutil.copytree(root / "rawls-0", tmp_path / "bad")
    (tmp_path / "bad" / "result.json").write_text(content)
    with pytest.raises(StorageError, match="bad"):
        read_run(tmp_path / "bad")
