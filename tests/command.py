"""The command `udjfl`, called in this process with its streams captured."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from udjfl.cli.main import main

SMALL = "--data tiny --clients 2 --model logistic --rounds 3 --uncertainty-epochs 1"
TERMINAL_VARIABLES = ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE")


class Output(NamedTuple):
    """The exit code of a command and what it printed."""

    code: object
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        """The lines on standard error."""
        return self.err.splitlines()


class Command:
    """Calls the command in this process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.monkeypatch, self.capsys = monkeypatch, capsys

    def __call__(self, *arguments: str | Path) -> Output:
        """Call it. Texts are split at blanks, as a shell does; paths are not."""
        words = [
            word
            for given in arguments
            for word in (given.split() if isinstance(given, str) else [str(given)])
        ]
        self.monkeypatch.setattr(sys, "argv", ["udjfl", *words])
        self.capsys.readouterr()
        code: object = 0
        try:
            main()
        except SystemExit as stop:
            code = stop.code or 0
        return Output(code, *self.capsys.readouterr())


def mistakes_of(output: Output) -> list[str]:
    """Return the lines of a command that found mistakes, without the program's name."""
    assert output.code == 2
    assert output.out == ""
    assert all(line.startswith("udjfl: ") for line in output.lines), output.err
    return [line.removeprefix("udjfl: ") for line in output.lines]
