"""`udjfl report` on the terminal, of folders with strange ids and with something missing."""

from __future__ import annotations

from pathlib import Path

import pytest
from hostile_runs import FOLDERS, IDS
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
