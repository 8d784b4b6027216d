"""Errors, interrupts and streams of the command, also on a real terminal."""

from __future__ import annotations

import contextlib
import os
import pty
import ssl
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from command import SMALL, Command

from udjfl.cli.main import advise_after_stop
from udjfl.simulation import simulate as simulation


@pytest.mark.parametrize(
    "arguments", ["runn", "run --roundz 3", "run --rounds", "resume", "run stray"]
)
def test_wrong_usage_goes_to_standard_error(udjfl_command: Command, arguments: str) -> None:
    output = udjfl_command(arguments)
    assert output.code == 2
    assert output.out == ""
    assert "Traceback" not in output.err
    if arguments in ("runn", "run --roundz 3"):
        assert "Did you mean" in output.err or "Possible options" in output.err


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        ("run", "; nothing was kept (give --out FOLDER to be able to continue)"),
        ("run --out a/b --json", "; continue with `udjfl resume a/b`"),
        ("compare --out", "; continue with `udjfl resume FOLDER`"),
        ("resume a", "; run the same command again to continue"),
        ("data prepare heart", "; run the same command again to continue"),
        ("reproduce results", "; nothing was kept (give --out FOLDER to be able to continue)"),
        ("reproduce results --out a", "; run the same command again to continue"),
        ("report a", ""),
        ("data list", ""),
    ],
)
def test_advice_after_an_interrupt(arguments: str, advice: str) -> None:
    assert advise_after_stop(arguments.split()) == f"stopped{advice}"


def test_an_interrupt_is_one_line(udjfl_command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*arguments: object, **keywords: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(simulation, "run_method", interrupt)
    output = udjfl_command("run", SMALL)
    assert output.code == 130
    assert output.lines == [f"udjfl: {advise_after_stop(['run'])}"]


def test_a_failed_connection_is_not_taken_for_a_closed_stream(
    udjfl_command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def connect(*arguments: object, **keywords: object) -> None:
        ssl.create_default_context(cadata="junk")

    monkeypatch.setattr(simulation, "run_method", connect)
    output = udjfl_command("run", SMALL)
    assert output.code == 2
    assert output.lines[-1].startswith("udjfl: no TLS connection: no start line")


class Screen(NamedTuple):
    code: int
    text: str


def run_on_a_terminal(arguments: str, interrupt_after: str | None = None) -> Screen:
    """Run the command on a terminal; press Ctrl-C when a text has appeared."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, "-m", "udjfl", *arguments.split()])
    text = ""
    with contextlib.suppress(OSError):  # raised at the end of the output
        while chunk := os.read(terminal, 4096):
            text += chunk.decode()
            if interrupt_after and interrupt_after in text:
                os.write(terminal, b"\x03")
                interrupt_after = None
    os.close(terminal)
    return Screen(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), text)


def test_a_status_line_is_shown_while_torch_loads() -> None:
    screen = run_on_a_terminal("run --rounds 1 --uncertainty-epochs 1 --workers 1")
    assert screen.code == 0
    assert screen.text.startswith("starting ...")
    status = screen.text.index("loading torch ...")
    cleared = screen.text.index("\r" + " " * len("loading torch ...") + "\r")
    assert status < cleared < screen.text.index("seed 0")


@pytest.mark.parametrize("moment", ["starting ...", "loading torch ..."])
def test_an_interrupt_during_start_up_is_one_line(moment: str) -> None:
    screen = run_on_a_terminal("run --rounds 1", interrupt_after=moment)
    assert screen.code == 130
    assert screen.text.endswith("\rudjfl: stopped\r\n")
    assert "Traceback" not in screen.text


def test_an_interrupt_of_processes_is_one_line(tmp_path: Path) -> None:
    """With `--jobs` Ctrl-C reaches every process of the terminal; all of them end."""
    screen = run_on_a_terminal(
        f"compare --rounds 100000 --uncertainty-epochs 1 --jobs 2 --out {tmp_path / 'a'}",
        interrupt_after="seed ",
    )
    assert screen.code == 130
    command = f"`udjfl resume {tmp_path / 'a'}`"  # whole, in a line of its own if need be
    assert screen.text.endswith(f"{command}\r\n")
    last = " ".join(screen.text.removesuffix(f"{command}\r\n").split())
    assert last.endswith("udjfl: stopped; continue with")
    assert "Traceback" not in screen.text


def test_a_closed_pipe_is_no_traceback() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "udjfl", "methods", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    process.stdout.close()  # as `head` does when it has seen enough
    assert process.stderr is not None
    output = process.stderr.read().decode()
    process.wait()
    process.stderr.close()
    assert "Traceback" not in output


def test_a_stream_without_arrows_and_dashes() -> None:
    """On some systems a pipe is not UTF-8; a long run must not end in a traceback."""
    done = subprocess.run(
        [sys.executable, "-m", "udjfl", "methods"],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )
    assert done.returncode == 0, done.stderr.decode()
    assert b"fedavg" in done.stdout
