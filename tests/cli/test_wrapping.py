"""Lines on standard error, wrapped by words."""

from __future__ import annotations

import doctest
import fcntl
import io
import os
import pty
import struct
import sys
import termios
import textwrap

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


def test_spaces_in_backticks_are_no_place_to_break() -> None:
    path = "`/data/My  Study 2026/runs/a b`"
    assert wrapping.wrap(f"kept in {path}: result.json", 30) == [
        "kept in",
        f"{path}:",
        "result.json",
    ]


@pytest.mark.parametrize(("columns", "width"), [(None, 20), ("0", 20), ("many", 20), ("60", 60)])
def test_lines_are_as_wide_as_the_terminal_behind_standard_error(
    monkeypatch: pytest.MonkeyPatch, columns: str | None, width: int
) -> None:
    """Standard output may be a file, which has no width."""
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns is not None:
        monkeypatch.setenv("COLUMNS", columns)
    terminal, stream = pty.openpty()
    fcntl.ioctl(stream, termios.TIOCSWINSZ, struct.pack("HHHH", 10, 20, 0, 0))
    text = "word " * 15 + "end"
    try:
        with os.fdopen(stream, "w", encoding="utf-8") as stderr:
            monkeypatch.setattr(sys, "stderr", stderr)
            wrapping.print_wrapped(text)
            stderr.flush()
            shown = os.read(terminal, 4096).decode()
    finally:
        os.close(terminal)
    assert shown.splitlines() == textwrap.wrap(text, width)


def test_a_line_cannot_steer_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for stream in (Terminal(), io.StringIO()):
        monkeypatch.setattr(sys, "stderr", stream)
        wrapping.print_wrapped("kept in `a\x1b[2J\nb`")
        assert stream.getvalue() == "kept in `a\\x1b[2J\\nb`\n"


def test_an_empty_line_stays_one() -> None:
    assert wrapping.wrap("", 40) == [""]
