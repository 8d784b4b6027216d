"""`udjfl report` on the terminal, of folders with strange ids and with something missing."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
from hostile_runs import FOLDERS, IDS, train
from typer.testing import CliRunner

from udjfl.cli.app import app
from udjfl.errors import UdjflError

STEERING = {"\x1b", "\x07", "\x9b", "\u202e"}


REFUSED = {  # in the terminal; a page shows the rest
    "altered": "result.json is damaged",
    "damaged": "records.jsonl is damaged",
    "no_fedavg": "none of the runs is FedAvg",
}


@pytest.mark.parametrize("name", sorted(set(FOLDERS) - {"thousand_clients", *REFUSED}))
def test_the_tables_show_what_there_is(name: str, tmp_path: Path) -> None:
    folder = FOLDERS[name](tmp_path / name)
    result = CliRunner().invoke(app, ["report", str(folder)])
    assert result.exit_code == 0, result.output
    assert "FedAvg" in result.output
    assert not STEERING & set(result.output)


def test_ids_are_shown_as_they_are(tmp_path: Path) -> None:
    folder = FOLDERS["hostile_ids"](tmp_path)
    shown = CliRunner().invoke(app, ["report", str(folder)]).output
    for client in IDS[:3] + IDS[4:7]:
        assert client in shown
    assert "\\x1b[31mred\\x1b[0m" in shown
    one = CliRunner().invoke(app, ["report", str(next(folder.rglob("fedavg*")))]).output
    assert "[bold red]markup[/bold red] :smile: [/]" in one
    assert not STEERING & set(shown + one)


@pytest.mark.parametrize("name", REFUSED)
def test_it_says_what_is_wrong(tmp_path: Path, name: str) -> None:
    folder = FOLDERS[name](tmp_path)
    result = CliRunner().invoke(app, ["report", str(folder)])
    assert isinstance(result.exception, UdjflError)
    assert REFUSED[name] in str(result.exception)


SPREADSHEET = ("=1+1", "@SUM(A1)", "\\input{x}", "a|b", "$x$", "\x1b[31mred\x07", "\u202ex")


def test_tables_for_other_programs_print_ids_and_obey_none(tmp_path: Path) -> None:
    folder = train(tmp_path / "runs", SPREADSHEET, seeds=1, rounds=1, uncertainty="paper")
    one = min(path.parent for path in folder.rglob("result.json"))
    shown = {
        flag: [
            CliRunner().invoke(app, ["report", str(path), flag]).output for path in (folder, one)
        ]
        for flag in ("--csv", "--markdown", "--latex")
    }
    for tables in shown.values():
        for text in tables:
            assert "1+1" in text
            assert "\\x1b" in text or "x1b" in text
            assert not STEERING & set(text)
    for text in shown["--csv"]:
        cells = {cell for row in csv.reader(io.StringIO(text)) for cell in row}
        assert {"'=1+1", "'@SUM(A1)"} <= cells
        assert not [cell for cell in cells if cell.startswith(("=", "@"))]
    assert all(r"\textbackslash{}input\{x\}" in text for text in shown["--latex"])
    assert all(r"a\|b" in text and r"\$x\$" in text for text in shown["--markdown"])
