"""The table of runs: what is added is on disk, and a killed writer loses nothing finished."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest

from udjfl.errors import StorageError
from udjfl.search.run_table import PointRun, RunTable
from udjfl.training.run_folder import RunFolder

CLIENTS = ("client-1", "two, with a comma")
RUN = PointRun((91.25, 1 / 3), (0.1, math.nan), 88.0, (10, 20))
FAILED = PointRun(failed="diverged in round 3,\nat client-1")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[RunFolder]:
    opened = RunFolder.create(tmp_path, {}, {})
    yield opened
    opened.unlock()


def test_a_table_is_read_back_from_its_file(tmp_path: Path, folder: RunFolder) -> None:
    table = RunTable(CLIENTS, folder)
    table.add({("a", 0): RUN})
    table.add({("b, c", 7): FAILED, ("a", 1): PointRun((1.0, 2.0), (0.5, 0.25), None)})
    again = RunTable(CLIENTS, folder).runs
    assert list(again) == list(table.runs)
    assert repr(again["a", 0]) == repr(RUN)
    assert again["a", 1] == table.runs["a", 1]
    assert again["b, c", 7].failed == "diverged in round 3, at client-1"
    assert (tmp_path / "runs.csv").read_bytes() == table.to_csv()


def test_what_is_there_is_not_written_again(tmp_path: Path, folder: RunFolder) -> None:
    table = RunTable(CLIENTS, folder)
    table.add({("a", 0): RUN})
    before = (tmp_path / "runs.csv").read_bytes()
    table.add({("a", 0): FAILED})
    assert (tmp_path / "runs.csv").read_bytes() == before
    assert table.runs["a", 0] is RUN


def test_sorted_by_point_and_seed_whatever_finished_first(
    tmp_path: Path, folder: RunFolder
) -> None:
    one, two = (RunTable(CLIENTS, folder, name) for name in ("one.csv", "two.csv"))
    keys = [("b", 1), ("a", 0), ("a", 1), ("b", 0)]
    for table, order in ((one, keys), (two, keys[::-1])):
        for key in order:
            table.add({key: RUN})
        table.sort(["b", "a"], [0, 1])
    assert list(one.runs) == [("b", 0), ("b", 1), ("a", 0), ("a", 1)]
    assert (tmp_path / "one.csv").read_bytes() == (tmp_path / "two.csv").read_bytes()


def test_a_failed_write_adds_nothing(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    table = RunTable(CLIENTS, folder)
    table.add({("a", 0): RUN})

    def fail(contents: object) -> None:
        raise StorageError("the disk is full")

    monkeypatch.setattr(folder, "write_files", fail)
    with pytest.raises(StorageError):
        table.add({("a", 1): RUN})
    assert list(table.runs) == [("a", 0)]


@pytest.mark.parametrize("position", [0, 40, -2])
def test_a_changed_byte_is_found(tmp_path: Path, folder: RunFolder, position: int) -> None:
    RunTable(CLIENTS, folder).add({("a", seed): RUN for seed in range(3)})
    content = bytearray((tmp_path / "runs.csv").read_bytes())
    content[position] ^= 1
    (tmp_path / "runs.csv").write_bytes(content)
    with pytest.raises(StorageError, match="delete it and run the same command again"):
        RunTable(CLIENTS, folder)
    (tmp_path / "runs.csv").unlink()
    assert RunTable(CLIENTS, folder).runs == {}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"point,seed\n", "has other columns"),
        (b"", "has other columns"),
        (b"{header}a,0,,88.0,x,1,,,,\n", "is damaged in line 2 .*delete it"),
        (b"{header}a,0,,88.0\n", "is damaged in line 2"),
        (b"\xff", "is damaged"),
        (b"a" * 200_000, "is damaged"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, content: bytes, words: str) -> None:
    """In a folder without a manifest, of an older version."""
    content = content.replace(b"{header}", RunTable(CLIENTS).to_csv())
    (tmp_path / "runs.csv").write_bytes(content)
    with pytest.raises(StorageError, match=words):
        RunTable(CLIENTS, RunFolder(tmp_path))
