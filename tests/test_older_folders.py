"""Folders that version 0.1.0 wrote (`folders_0_1_0`): shown, and resumed where they can be.

They are of dirty-digits with a logistic model: a comparison of FedAvg and Rawls over two seeds, and
a run of each that was killed after a few of its 60 rounds. `fedavg-finished.safetensors` is the
model of that FedAvg run, which 0.1.0 finished without a stop.
"""

import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file
from typer.testing import CliRunner

import udjfl
from udjfl.cli.app import app
from udjfl.errors import StorageError
from udjfl.report.html.page import write_report
from udjfl.report.saved_runs import read_run

FOLDERS = Path(__file__).parent / "folders_0_1_0"


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    """Return a copy of the folders, which a test may change."""
    return Path(shutil.copytree(FOLDERS, tmp_path / "old"))


def test_a_comparison_is_shown(folders: Path) -> None:
    """Numbers that 0.1.0 did not compute are computed from those that it kept."""
    shown = CliRunner().invoke(app, ["report", str(folders / "comparison")])
    assert shown.exit_code == 0
    assert "client-5" in shown.output
    assert "not decided" in shown.output
    page = folders / "page.html"
    write_report([folders / "comparison"], page)
    assert "client-5" in page.read_text(encoding="utf-8")


def test_a_result_is_read_under_the_present_names_and_its_model_is_not_built(folders: Path) -> None:
    path = folders / "comparison" / "seed-0" / "fedavg-weights=size"
    assert list(read_run(path).client_scores) == [f"client-{n}" for n in range(1, 6)]
    with pytest.raises(StorageError, match="did not keep the shape of an example"):
        udjfl.open(path)


def test_fedavg_is_resumed_to_the_same_model(folders: Path) -> None:
    resumed = CliRunner().invoke(app, ["resume", str(folders / "interrupted-fedavg")])
    assert resumed.exit_code == 0, resumed.output
    model = load_file(folders / "interrupted-fedavg" / "model.safetensors")
    expected = load_file(FOLDERS / "fedavg-finished.safetensors")
    assert {name: value.tolist() for name, value in model.items()} == {
        name: value.tolist() for name, value in expected.items()
    }


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("interrupted-rawls", "by another version of udjfl, whose udj had no"),
        ("comparison", "start it again in another folder"),
    ],
)
def test_what_follows_other_rules_now_is_not_resumed(folders: Path, name: str, words: str) -> None:
    """UDJ's calibrated step has changed since: half of each would be no method at all."""
    before = {p: p.read_bytes() for p in (folders / name).rglob("*") if p.is_file()}
    refused = CliRunner().invoke(app, ["resume", str(folders / name)])
    assert isinstance(refused.exception, StorageError)
    assert words in str(refused.exception)
    assert {p: p.read_bytes() for p in before} == before
