"""The table of runs: what is added is on disk, and a killed writer loses nothing finished."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from udjfl.errors import StorageError
from udjfl.search.run_table import PointRun, RunTable

CLIENTS = ("client-1", "two, with a comma")
RUN = PointRun((91.25, 1 / 3), (0.1, math.nan), 88.0, (10, 20))
FAILED = PointRun(failed="diverged in round 3,\nat client-1")


def test_a_table_is_read_back_from_its_file(tmp_path: Path) -> None:
    table = RunTable(CLIENTS, tmp_path / "runs.csv")
    table.add({("a", 0): RUN})
    table.add({("b, c", 7): FAILED, ("a", 1): PointRun((1.0, 2.0), (0.5, 0.25), None)})
    again = RunTable(CLIENTS, tmp_path / "runs.csv").runs
    assert list(again) == list(table.runs)
    assert repr(again["a", 0]) == repr(RUN)
    assert again["a", 1] == table.runs["a", 1]
    assert again["b, c", 7].failed == "diverged in round 3, at client-1"
    assert (tmp_path / "runs.csv").read_bytes() == table.to_csv()


def test_what_is_there_is_not_written_again(tmp_path: Path) -> None:
    table = RunTable(CLIENTS, tmp_path / "runs.csv")
    table.add({("a", 0): RUN})
    before = (tmp_path / "runs.csv").read_bytes()
    table.add({("a", 0): FAILED})
    assert (tmp_path / "runs.csv").read_bytes() == before
    assert table.runs["a", 0] is RUN


def test_sorted_by_point_and_seed_whatever_finished_first(tmp_path: Path) -> None:
    one, two = (RunTable(CLIENTS, tmp_path / name) for name in ("one.csv", "two.csv"))
    keys = [("b", 1), ("a", 0), ("a", 1), ("b", 0)]
    for table, order in ((one, keys), (two, keys[::-1])):
        for key in order:
            table.add({key: RUN})
        table.sort(["b", "a"], [0, 1])
    assert list(one.runs) == [("b", 0), ("b", 1), ("a", 0), ("a", 1)]
    assert (tmp_path / "one.csv").read_bytes() == (tmp_path / "two.csv").read_bytes()


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 400))
def test_a_file_cut_off_anywhere_keeps_every_whole_line(tmp_path_factory, cut: int) -> None:
    path = tmp_path_factory.mktemp("cut") / "runs.csv"
    table = RunTable(CLIENTS, path)
    header = path.read_bytes()
    table.add({("a", seed): RUN for seed in range(3)})
    content = path.read_bytes()
    kept = content[: max(len(header), len(content) - cut)]
    path.write_bytes(kept)
    again = RunTable(CLIENTS, path)
    assert len(again.runs) == kept.count(b"\n") - 1
    again.add({("a", seed): RUN for seed in range(3)})
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("point,seed\n", "has other columns"),
        ("", "has other columns"),
        ("{header}a,0,,88.0,x,1,,,,\n", "is damaged in line 2 .*delete that line"),
        ("{header}a,0,,88.0\n", "is damaged in line 2"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, content: str, words: str) -> None:
    path = tmp_path / "runs.csv"
    header = RunTable(CLIENTS).to_csv().decode()
    path.write_text(content.format(header=header), encoding="utf-8")
    with pytest.raises(StorageError, match=words):
        RunTable(CLIENTS, path)
