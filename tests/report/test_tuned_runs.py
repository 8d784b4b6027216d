"""A tuning whose test was stopped, or is damaged."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from command import Command
from small_runs import make_federation

from udjfl.errors import StorageError
from udjfl.report.tuned_runs import read_tuned
from udjfl.search.folder import add_files
from udjfl.search.settings import TuneSettings
from udjfl.search.tune import tune
from udjfl.settings import validate_settings

SETTINGS = {
    **{"rounds": 3, "seeds": 2, "budget": 90, "cost": 14},
    **{"model": "logistic", "uncertainty_epochs": 2, "theory": "egalitarian", "workers": 1},
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tuned") / "search"
    tune(validate_settings(TuneSettings, SETTINGS), data=make_federation(), out=folder)
    return folder


@pytest.fixture
def folder(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "copy"))


def test_a_test_that_lacks_a_seed_is_not_finished(folder: Path) -> None:
    tuned = read_tuned(folder)[1]
    assert tuned is not None
    assert tuned.test.seeds == (0, 1)
    shutil.rmtree(folder / "test" / "seed-1")
    (folder / "test" / "comparison.json").unlink()
    assert read_tuned(folder)[1] is None


def test_a_damaged_test_is_an_error(folder: Path) -> None:
    result = min((folder / "test" / "seed-0").rglob("result.json"))
    result.write_bytes(result.read_bytes()[:-20])
    with pytest.raises(StorageError, match=r"result\.json"):
        read_tuned(folder)


def test_a_changed_choice_is_an_error(folder: Path) -> None:
    choice = folder / "choice.json"
    choice.write_bytes(choice.read_bytes().replace(b"9", b"8", 1))
    with pytest.raises(StorageError, match=r"choice\.json is damaged"):
        read_tuned(folder)


def test_another_changed_file_of_a_search_is_an_error(folder: Path) -> None:
    table = min(folder.glob("held-out-*.csv"))
    table.write_bytes(table.read_bytes().replace(b"1", b"2", 1))
    with pytest.raises(StorageError, match=r"held-out-.*\.csv is damaged"):
        read_tuned(folder)


def test_a_changed_search_is_an_error_where_only_its_runs_are_shown(
    folder: Path, command: Command
) -> None:
    assert command("report", folder, "--csv").code == 0
    choice = folder / "choice.json"
    choice.write_bytes(choice.read_bytes().replace(b"9", b"8", 1))
    for words in (("--csv",), (folder / "test", "--markdown")):
        shown = command("report", folder, *words)
        assert shown.code == 2
        assert "choice.json is damaged" in shown.err


@pytest.mark.parametrize("content", ["[]", "3", '{"default": 5}', "[" * 100_000])
def test_a_choice_of_other_types_is_an_error(tmp_path: Path, content: str) -> None:
    (tmp_path / "choice.json").write_text(content)
    with pytest.raises(StorageError, match=r"choice\.json (is damaged|cannot be read)"):
        read_tuned(tmp_path)


def test_a_test_that_is_a_link_is_refused(folder: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    shutil.rmtree(folder / "test")
    (folder / "test").symlink_to(outside)
    with pytest.raises(StorageError, match="it is a link"):
        tune(validate_settings(TuneSettings, SETTINGS), data=make_federation(), out=folder)
    assert not list(outside.iterdir())


def test_a_file_called_choice_that_is_no_search_stops_no_report(
    folder: Path, command: Command
) -> None:
    notes = folder / "test" / "notes"
    notes.mkdir()
    (notes / "choice.json").write_text("{}")
    assert command("report", folder, "--csv").code == 0


def test_a_changed_configuration_says_how_to_keep_the_change(folder: Path) -> None:
    add_files(folder, {"tuned.toml": b"rounds = 3\n"})
    (folder / "tuned.toml").write_bytes(b"rounds = 4\n")
    with pytest.raises(StorageError, match=r"tuned\.toml is damaged .*copy it elsewhere to keep"):
        read_tuned(folder)
