"""`udjfl choose`: flags, questions, JSON, and ways to stop."""

from __future__ import annotations

import io
import json
import os
import pty
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest
from command import Command, mistakes_of

from udjfl.report.choosing import QUESTIONS


def typed(monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))


def test_flags_answer_without_questions(udjfl_command: Command) -> None:
    output = udjfl_command("choose --aim reward --cause means --budget 1 --defaults --data heart")
    assert output.code == 0
    assert output.err == ""
    assert "it takes from those who had no choice" in " ".join(output.out.split())
    assert "udjfl run --data heart --method desert:budget=1" in output.out


def test_commands_for_files_name_the_target(udjfl_command: Command) -> None:
    files = ("choose --aim lift --defaults --json --data", "hospitals/*.csv")
    for more, words in ((), "COLUMN"), (("--target", "y==ill"), "y==ill"):
        document = json.loads(udjfl_command(*files, *more).out)
        commands = [step["command"] for step in document["steps"]]
        named = [c for c in commands if "hospitals" in c]
        assert len(named) == 3
        assert all(f"--data 'hospitals/*.csv' --target {words}" in c for c in named[1:])
        assert named[0] == f"udjfl data describe 'hospitals/*.csv' --target {words}"


def test_json_is_one_document_and_asks_nothing(udjfl_command: Command) -> None:
    output = udjfl_command("choose --aim whole --gap severe --json")
    document = json.loads(output.out)
    assert document["theory"] == "utilitarian"
    assert document["methods"][0] == "utilitarian:budget=2"
    assert "utilitarian-gap" in {caution["key"] for caution in document["cautions"]}
    assert document["answers"]["examples"] == "unknown"
    assert output.err == ""


def test_questions_take_numbers_names_and_defaults(
    udjfl_command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A wrong number is asked for again; an empty line is the default.
    typed(monkeypatch, "1", "7", "means", "", "1", "2", "3.5", "alone")
    output = udjfl_command("choose")
    assert output.code == 0
    assert "'7' is no answer. Give a number from 1 to 5." in output.err
    assert "rawls:budget=3.5:floor=alone" in output.out
    assert all(question.text in output.err for question in QUESTIONS)


def test_only_what_no_flag_answers_is_asked(
    udjfl_command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    typed(monkeypatch, "2")
    flags = "--cause means --gap small --false-reports no --examples many --budget none"
    output = udjfl_command("choose", flags)
    assert output.code == 0
    assert "1 of 2. Which of these" in output.err
    assert QUESTIONS[-1].text not in output.err  # without a budget it has no meaning
    assert "Strict egalitarianism" in output.out


def test_mistakes_in_flags_are_told_before_any_question(udjfl_command: Command) -> None:
    mistakes = mistakes_of(udjfl_command("choose --aim lifft --budget many"))
    assert [mistake.partition(":")[0] for mistake in mistakes] == ["aim", "budget"]


def test_the_end_of_a_file_says_what_to_do(
    udjfl_command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    typed(monkeypatch, "1")
    output = udjfl_command("choose")
    assert (output.code, output.out) == (2, "")
    assert output.lines[-1] == (
        "udjfl: cause: there is no answer to read; give --cause, or --defaults"
    )


@pytest.mark.parametrize("key", [b"\x03", b"\x04"], ids=["Ctrl-C", "Ctrl-D"])
def test_a_person_can_stop(key: bytes) -> None:
    controller, terminal = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "udjfl", "choose"],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        env={**os.environ, "TERM": "xterm"},
        start_new_session=True,
        preexec_fn=_own_terminal,
    )
    os.close(terminal)
    shown = b""
    while b"[5]:" not in shown:
        shown += os.read(controller, 4096)
    time.sleep(0.1)  # the prompt is written before it is read
    os.write(controller, key)
    try:
        while chunk := os.read(controller, 4096):
            shown += chunk
    except OSError:  # the other end is closed
        pass
    os.close(controller)
    assert process.wait(timeout=30) == 130
    assert b"udjfl: stopped" in shown
    assert b"Traceback" not in shown


def _own_terminal() -> None:
    """Make standard input the terminal that sends signals to the process."""
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def test_the_advised_commands_run(udjfl_command: Command, tmp_path: Path) -> None:
    document = json.loads(udjfl_command("choose --aim lift --data tiny --json").out)
    small = "--clients 2 --model logistic --rounds 2 --uncertainty-epochs 1"
    describe, compare, report, run = (
        " ".join(shlex.split(step["command"])[1:])
        .replace("runs/", f"{tmp_path}/")
        .replace("report.html", f"{tmp_path}/report.html")
        for step in document["steps"]
    )
    assert udjfl_command(describe, "--clients 2").code == 0
    assert udjfl_command(compare.replace("--seeds 10", "--seeds 2"), small).code == 0
    assert udjfl_command(report).code == 0
    assert "rawls" in (tmp_path / "report.html").read_text(encoding="utf-8")
    assert udjfl_command(run, small).code == 0
