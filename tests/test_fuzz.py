"""Damaged and random input for every reader, and random command lines: nothing but our errors."""

from __future__ import annotations

import os
import random
import signal
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command import Command
from fuzz_damage import ODD_JSON, mutate_tree
from fuzz_reader import MOST_FAILURES, Reader, fuzz_reader
from fuzz_readers import NEED_FLOWER, READERS, fuzz, get_reader, make_input
from small_runs import read_files

IN_MEMORY = Path("/dev/shm")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Make a folder for files that are written a million times: in memory, if there is a place."""
    parent = IN_MEMORY if os.access(IN_MEMORY, os.W_OK) else tmp_path
    with tempfile.TemporaryDirectory(dir=parent) as path:
        yield Path(path)


def skip_without_flower(name: str) -> None:
    if name in NEED_FLOWER:
        pytest.importorskip("flwr", reason="needs Flower")


@pytest.mark.filterwarnings("ignore")  # of Pillow and numpy about damaged files
@pytest.mark.parametrize("name", READERS)
def test_damaged_input_is_read_or_refused(name: str, folder: Path) -> None:
    skip_without_flower(name)
    fuzz(name, folder, range(300), 0)


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", READERS)
def test_a_million_damaged_inputs_are_read_or_refused(name: str, folder: Path) -> None:
    skip_without_flower(name)
    fuzz(name, folder, range(int(os.environ.get("UDJFL_FUZZ_INPUTS", "1000000"))), 1)


# --- the fuzzer itself


def test_every_kind_of_failure_is_told_once_with_its_first_input(tmp_path: Path) -> None:
    def read(content: bytes, folder: Path) -> None:
        if content.startswith(b"valid"):
            return
        if len(content) % 2:
            raise KeyError(len(content))
        raise TypeError(len(content))

    reader = Reader(b"valid", read)
    failing = [n for n in range(100) if not make_input(reader, 4, n).startswith(b"valid")]
    odd = [n for n in failing if len(make_input(reader, 4, n)) % 2]
    even = [n for n in failing if n not in odd]
    with pytest.raises(AssertionError, match=r"^2 kinds of errors") as raised:
        fuzz_reader("a reader", reader, tmp_path, range(100), 4)
    told = str(raised.value)
    assert told.count("a reader, seed 4, input ") == 2
    assert f"input {odd[0]}: {make_input(reader, 4, odd[0])!r}" in told
    assert f"input {even[0]}: {make_input(reader, 4, even[0])!r}" in told
    assert "raise KeyError(len(content))" in told
    assert "raise TypeError(len(content))" in told


def test_errors_of_one_type_from_two_lines_are_two_failures(tmp_path: Path) -> None:
    def read(content: bytes, folder: Path) -> int:
        if content == b"valid":
            return 0
        if len(content) % 2:
            return 1 // 0
        return 2 // 0

    with pytest.raises(AssertionError, match=r"^2 kinds of errors"):
        fuzz_reader("a reader", Reader(b"valid", read), tmp_path, range(100), 4)


def test_the_fuzzer_stops_after_many_kinds_of_failures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kinds = [type(f"Error{n}", (Exception,), {}) for n in range(MOST_FAILURES + 5)]
    inputs = iter([None, *kinds])

    def read(content: bytes, folder: Path) -> None:
        if kind := next(inputs):
            raise kind

    with pytest.raises(AssertionError, match=rf"^{MOST_FAILURES} kinds of errors"):
        fuzz_reader("a reader", Reader(b"valid", read), tmp_path, range(100), 4)
    assert f"a reader: {MOST_FAILURES} inputs" in capsys.readouterr().out


def test_a_reader_that_changes_its_input_is_a_failure(tmp_path: Path) -> None:
    reader = Reader([[1]], lambda values, folder: values[0].append(2), change=lambda v, _: v)
    with pytest.raises(AssertionError, match="changes what it reads"):
        fuzz_reader("a reader", reader, tmp_path, range(1), 4)


def test_damage_leaves_the_valid_input_as_it_was() -> None:
    valid = {"a": {"b": [1, {"c": 2.5}]}, "d": [[0.5]]}
    before = repr((valid, ODD_JSON))
    changed = [mutate_tree(valid, random.Random(seed)) for seed in range(500)]
    assert repr((valid, ODD_JSON)) == before
    assert sum(repr(one) == repr(valid) for one in changed) < 25


@pytest.mark.parametrize("name", ["table", "settings"])
def test_an_input_can_be_made_again(name: str) -> None:
    made = [make_input(get_reader(name), 4, number) for number in (7, 8, 7)]
    assert repr(made[0]) == repr(made[2]) != repr(made[1])


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
