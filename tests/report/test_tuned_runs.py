"""A tuning whose test was stopped, or is damaged."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from small_runs import make_federation

from udjfl.errors import StorageError
from udjfl.report.tuned_runs import read_tuned
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
