"""The list of submitted runs after a power cut."""

from __future__ import annotations

from pathlib import Path

import pytest

from udjfl.deployment.submissions import Submitted, append_submitted, read_submitted


def test_damaged_lines_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "submitted.jsonl"
    assert read_submitted(path) == []
    runs = [Submitted(name, tmp_path / name, 2**60, 1.5, 3) for name in "abc"]
    append_submitted(path, runs[0])
    append_submitted(path, runs[1])
    assert read_submitted(path) == runs[:2]
    whole = path.read_bytes()
    for end in range(len(whole) - 1):
        path.write_bytes(whole[:end])
        before = read_submitted(path)
        assert before == runs[: len(before)]
        append_submitted(path, runs[2])
        assert read_submitted(path) == [*before, runs[2]]


@pytest.mark.parametrize("line", ["[]", "{}", "null", '{"name": 1}', "\udcff", '{"out": 3}'])
def test_lines_of_another_kind_are_passed_over(tmp_path: Path, line: str) -> None:
    path = tmp_path / "submitted.jsonl"
    path.write_bytes(line.encode(errors="surrogateescape") + b"\n")
    append_submitted(path, Submitted("a", tmp_path, 1, 0.0))
    assert [run.name for run in read_submitted(path)] == ["a"]
