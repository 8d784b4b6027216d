"""Damaged and random input for every reader, and random command lines: nothing but our errors."""

from __future__ import annotations

import os
import random
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from command import Command
from fuzz_readers import MADE_LATER, NEED_FLOWER, READERS, fuzz
from small_runs import read_files


def skip_without_flower(name: str) -> None:
    if name in NEED_FLOWER:
        pytest.importorskip("flwr", reason="needs Flower")


@pytest.mark.filterwarnings("ignore")  # of Pillow and numpy about damaged files
@pytest.mark.parametrize("name", [*READERS, *MADE_LATER])
def test_damaged_input_is_read_or_refused(name: str, tmp_path: Path) -> None:
    skip_without_flower(name)
    fuzz(name, tmp_path, range(300), 0)


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [*READERS, *MADE_LATER])
def test_a_million_damaged_inputs_are_read_or_refused(name: str, tmp_path: Path) -> None:
    skip_without_flower(name)
    fuzz(name, tmp_path, range(int(os.environ.get("UDJFL_FUZZ_INPUTS", "1000000"))), 1)


# --- command lines

LONG = "a" * 300
ODD_WORDS = """
-1 0 1e999 nan inf .. ..:x os:path builtins:dict self=1 \x1b[31m 💥 /dev/null /dev/full /
-- a=b=c %s {} mlp:hidden=-1 udj:theory=x all ,,, 0.5 fedavg 3,3 true
"""
ODD = (*ODD_WORDS.split(), "", LONG, "9" * 400, "[" * 5000)
FLAGS = """
--rounds 1 2
--lr 0.1 0.01
--momentum 0 0.5
--batch-size 8 64
--local-epochs 1 2
--clients 2 3
--model logistic mlp
--hidden 4 8
--participation 1 0.5
--partition iid dirichlet:0.5
--engine auto serial
--uncertainty paper confidence
--on-bad-report fail exclude
--service none prior-all
--eval-every 1 2
--loss-at auto final
"""
GOOD = {flag: values for flag, *values in map(str.split, FLAGS.strip().splitlines())}
NAMES = ("fedavg", "rawls", "egalitarian", "qffl:q=2", "term", "afl")


def make_line(chance: random.Random, folder: Path, is_valid: bool) -> list[str]:
    """Make a command line: a valid one, or one with some odd words in it."""
    name = chance.choice(("run", "run", "compare", "methods", "data", "report", "check", "resume"))
    if name == "methods":
        words = ["methods", *chance.choice(([], [chance.choice(("fedavg", "rawls"))], ["--json"]))]
    elif name == "data":
        words = ["data", *chance.choice((["list"], ["describe", "tiny"]))]
    elif name in ("report", "check", "resume"):
        words = [name, str(folder / "kept"), *chance.choice(([], ["--json"]))]
    else:
        words = [
            name,
            "--data",
            "tiny",
            "--rounds",
            "1",
            "--uncertainty-epochs",
            "1",
            "--workers",
            "1",
        ]
        words += ["--seeds", "2"] if name == "compare" else ["--seed", "3"]
        flag = "--method" if name == "run" else "--methods"
        words += [flag, chance.choice(NAMES)]
        for option in chance.sample(sorted(GOOD), 3):
            words += [option, chance.choice(GOOD[option])]
    if is_valid:
        return words
    for _ in range(chance.choice((1, 1, 2))):
        odd = chance.choice(ODD)
        if chance.random() < 0.3:
            odd = chance.choice((*GOOD, "--out", "--config", "-p", "--device", "--data-root"))
            words += [odd, chance.choice(ODD)]
        else:
            words[chance.randrange(len(words))] = odd
    return words


class Hung(BaseException):
    """A command that takes too long."""


def check_lines(command: Command, folder: Path, count: int, seed: int) -> None:
    """Call random command lines: no traceback, no hang, nothing written but where they say."""
    chance, codes = random.Random(seed), Counter[Any]()
    work = folder / "work"
    work.mkdir()
    command.monkeypatch.chdir(work)
    kept = "--data tiny --rounds 1 --uncertainty-epochs 1 --model logistic"
    assert command("run --method rawls", kept, "--out", folder / "kept").code == 0
    before = {name: text for name, text in read_files(folder).items() if name.startswith("kept")}

    def stop(*_: object) -> None:
        raise Hung

    previous = signal.signal(signal.SIGALRM, stop)
    try:
        for number in range(count):
            line = make_line(chance, folder, is_valid=number % 2 == 0)
            signal.alarm(60)
            output = command(*map(_Word, line))  # type: ignore[arg-type]
            signal.alarm(0)
            assert output.code in (0, 1, 2), (line, output)
            assert "Traceback" not in output.err, (line, output.err)
            assert number % 2 or output.code == 0, (line, output.err)
            codes[output.code] += 1
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)
    after = read_files(folder)
    assert {n: t for n, t in after.items() if n.startswith("kept")} == before
    assert all(name.startswith(("kept/", "work/")) for name in after)
    print(f"{count} command lines: exit codes {dict(codes)}")


class _Word:
    """A word of a command line, which is not split as texts are."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __str__(self) -> str:
        return self.text


def test_random_command_lines(command: Command, tmp_path: Path) -> None:
    check_lines(command, tmp_path, 60, 0)


@pytest.mark.soak
def test_two_thousand_random_command_lines(command: Command, tmp_path: Path) -> None:
    check_lines(command, tmp_path, 2_000, 1)
