"""Lines on standard error, wrapped by words."""

from __future__ import annotations

import doctest
import io
import sys

import pytest

from udjfl.cli import wrapping


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_docstring_examples() -> None:
    assert doctest.testmod(wrapping).failed == 0


def test_a_path_is_never_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    path = "runs/a-long-folder/" + "x" * 40 + "/tuned.toml"
    monkeypatch.setenv("COLUMNS", "40")
    for stream, lines in (
        (Terminal(), ["udjfl: there is nothing in", path]),
        (io.StringIO(), None),
    ):
        monkeypatch.setattr(sys, "stderr", stream)
        wrapping.print_wrapped(f"udjfl: there is nothing in {path}")
        assert stream.getvalue().splitlines() == (lines or [f"udjfl: there is nothing in {path}"])


def test_an_empty_line_stays_one() -> None:
    assert wrapping.wrap("", 40) == [""]
