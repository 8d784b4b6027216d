"""Folders of other people: nothing that they name is imported, and nothing they say is obeyed."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from command import SMALL, Command, mistakes_of
from small_runs import make_federation

import udjfl
from udjfl._files import to_json
from udjfl.report.saved_runs import read_run
from udjfl.search.frontier import Frontier
from udjfl.training.manifest import Entry, Manifest

CODE = """
from pathlib import Path
Path(__file__).with_name("imported").touch()

import math
import udjfl
from torch import nn

def make_model(input_shape, n_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(input_shape), n_classes))

def loss(scores, labels):
    return nn.functional.cross_entropy(scores, labels, reduction="none")

@udjfl.parameters
class Halved(udjfl.Method):
    name = "halved"
    title = "Halved mean"
    paper = "none"
    grade = "recalled"
    share: float = 0.5

    def aggregate(self, state, reports):
        return state, self.share * reports.deltas.mean(dim=0), {}
"""


@pytest.fixture
def marker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a file that importing the module `their_code` creates."""
    (tmp_path / "their_code.py").write_text(CODE)
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop("their_code", None)  # of another test
    return tmp_path / "imported"


def forget(marker: Path) -> None:
    sys.modules.pop("their_code", None)
    marker.unlink()


@pytest.mark.parametrize(
    "named",
    [
        "run --model their_code:make_model",
        "run --method their_code:Halved:share=0.7",
        "run --loss their_code:loss",
        "compare --seeds 1 --methods rawls,their_code:Halved",
    ],
)
def test_resume_imports_what_a_folder_names_only_if_it_is_trusted(
    tmp_path: Path, command: Command, marker: Path, named: str
) -> None:
    out = tmp_path / "run"
    flags = SMALL.replace("--model logistic ", "") if "--model" in named else SMALL
    assert command(named, flags, "--out", out).code == 0
    forget(marker)
    (line,) = mistakes_of(command("resume", out))
    assert "names code to import: their_code:" in line
    assert "--trust-model" in line
    assert command("report", out).code == 0
    assert command("check", out).code == 0
    assert not marker.exists()
    assert command("resume", out, "--trust-model").code == 0
    assert marker.exists()


def change_settings(folder: Path, **changes: object) -> None:
    """Change settings.json as its maker could, with a manifest that fits."""
    settings = {**json.loads((folder / "settings.json").read_text(encoding="utf-8")), **changes}
    contents = to_json(settings), (folder / "versions.json").read_bytes()
    (folder / "settings.json").write_bytes(contents[0])
    files = Manifest.decode((folder / "manifest.json").read_bytes()).files
    made = Manifest.of_run(*contents)
    files = {**files, **made.files}
    (folder / "manifest.json").write_bytes(Manifest(made.run, files).encode())


def test_methods_in_one_text_are_looked_at_one_by_one(
    tmp_path: Path, command: Command, marker: Path
) -> None:
    out = tmp_path / "run"
    assert command("compare --seeds 1 --methods rawls", SMALL, "--out", out).code == 0
    comparison = json.loads((out / "settings.json").read_text(encoding="utf-8"))["comparison"]
    change_settings(out, comparison={**comparison, "methods": "rawls, their_code:Halved"})
    (line,) = mistakes_of(command("resume", out))
    assert "names code to import: their_code:Halved" in line
    assert not marker.exists()


def test_opening_a_model_imports_what_a_folder_names_only_if_it_is_trusted(
    tmp_path: Path, command: Command, marker: Path
) -> None:
    out, rows = tmp_path / "run", tmp_path / "rows.csv"
    flags = SMALL.replace("--model logistic ", "")
    assert command("run --model their_code:make_model", flags, "--out", out).code == 0
    forget(marker)
    n_features = udjfl.load("tiny").test.x[0].numel()
    heading, row = (",".join([text] * n_features) for text in ("x", "0.5"))
    rows.write_text(f"{heading}\n{row}\n")
    for name, *arguments in (("predict", rows), ("export", tmp_path / "model.pt")):
        (line,) = mistakes_of(command(name, out, *arguments))
        assert "names code to import: their_code:make_model" in line
    with pytest.raises(udjfl.errors.SettingsError, match="trust_model=True"):
        udjfl.open(out)
    assert not marker.exists()
    assert command("predict", out, rows, "--trust-model").code == 0
    assert marker.exists()
    assert udjfl.open(out, "their_code:make_model").metrics  # named by the caller


def test_a_run_that_is_watched_names_its_method_without_importing_it(
    tmp_path: Path, command: Command, marker: Path
) -> None:
    out, page = tmp_path / "run", tmp_path / "page.html"
    assert command("run --method their_code:Halved", SMALL, "--out", out).code == 0
    forget(marker)
    assert command("watch", out, "--html", page).code == 0
    assert "their_code:Halved" in page.read_text(encoding="utf-8")
    assert not marker.exists()


def test_a_frontier_shows_methods_of_others_without_importing_them(
    tmp_path: Path, command: Command, marker: Path
) -> None:
    out = tmp_path / "frontier"
    small = "--gammas 0 --exponents 1 --budgets 0 --seeds 1 --methods their_code:Halved"
    assert command("frontier", small, SMALL, "--out", out).code == 0
    forget(marker)
    (point,) = [p for p in Frontier.load(out).points if p.kind == "method"]
    assert (point.label, point.method.params) == ("Halved mean", {"share": 0.5})
    assert not marker.exists()


def test_a_method_that_is_not_imported_is_shown_as_it_was_recorded(
    tmp_path: Path, command: Command, marker: Path
) -> None:
    out = tmp_path / "run"
    assert command("run --method their_code:Halved:share=0.7", SMALL, "--out", out).code == 0
    forget(marker)
    method = read_run(out).method
    assert (method.name, method.label, method.params) == (
        "halved",
        "Halved mean (share=0.7)",
        {"share": 0.7},
    )
    assert "Halved mean (share=0.7)" in command("report", out).out


def test_control_characters_of_a_folder_do_not_reach_the_terminal(
    tmp_path: Path, command: Command
) -> None:
    """Neither in tables nor in JSON nor in errors. They are text in every other way."""
    out = tmp_path / "run"
    udjfl.simulate(make_federation(), "fedavg", "logistic", rounds=1, uncertainty_epochs=1, out=out)
    nasty = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202eclient"
    result = json.loads((out / "result.json").read_text(encoding="utf-8"))
    for key in ("client_scores", "uncertainty", "test_sizes"):
        result[key] = {nasty if k == "client-1" else k: v for k, v in result[key].items()}
    result["notes"] = [f"Look: {nasty}"]
    (out / "result.json").write_bytes(to_json(result))
    manifest = Manifest.decode((out / "manifest.json").read_bytes())
    entry = Entry.of((out / "result.json").read_bytes())
    manifest = manifest.expect({"result.json": entry}).settle({})
    (out / "manifest.json").write_bytes(manifest.encode())
    for shown in (command("report", out), command("report", out, "--json")):
        assert shown.code == 0
        assert not {"\x1b", "\x07", "\x9b", "\u202e"}.intersection(shown.out), shown.out
        assert "owned" in shown.out
    assert json.loads(command("report", out, "--json").out)["notes"] == [f"Look: {nasty}"]
    lines = mistakes_of(command("report", tmp_path / "\x1b[31mfolder"))
    assert "\\x1b[31mfolder holds no finished run" in lines[0]
