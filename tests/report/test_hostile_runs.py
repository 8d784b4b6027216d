"""`udjfl report` on the terminal, of folders with strange ids and with something missing."""

from __future__ import annotations

from pathlib import Path

import pytest
from hostile_runs import FOLDERS, IDS
from typer.testing import CliRunner

from udjfl.cli.app import app
from udjfl.errors import UdjflError

REFUSED = {"damaged", "no_fedavg"}  # in words, by tests of their own
STEERING = {"\x1b", "\x07", "\x9b", "\u202e"}


@pytest.mark.parametrize("name", sorted(set(FOLDERS) - REFUSED - {"thousand_clients"}))
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


def test_a_run_whose_records_were_changed_is_refused(tmp_path: Path) -> None:
    """The page lists such runs and shows the others; the tables are of whole runs only."""
    result = CliRunner().invoke(app, ["report", str(FOLDERS["damaged"](tmp_path))])
    assert isinstance(result.exception, UdjflError)
    assert "records.jsonl" in str(result.exception)


def test_without_fedavg_it_says_what_is_missing(tmp_path: Path) -> None:
    folder = FOLDERS["no_fedavg"](tmp_path)
    result = CliRunner().invoke(app, ["report", str(folder)])
    assert isinstance(result.exception, UdjflError)
    assert "none of the runs is FedAvg" in str(result.exception)
