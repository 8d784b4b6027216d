"""Damaged and random input for every reader, and random command lines: nothing but our errors."""

from __future__ import annotations

import gzip
import io
import os
import random
import signal
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command import Command
from conftest import read_files

from udjfl._spec import parse_spec
from udjfl.data.partition import Partition
from udjfl.data.sources._ambiguous_mnist import _read_tensor
from udjfl.data.sources._idx import read_idx
from udjfl.data.sources._images import open_npz, read_pictures
from udjfl.data.sources.heart import read_patients
from udjfl.errors import UdjflError
from udjfl.settings import RunSettings, read_toml, validate_settings
from udjfl.training.manifest import Entry, Manifest
from udjfl.training.records import Record, parse_record
from udjfl.training.service import parse_service
from udjfl.training.tensor_file import pack, unpack_content

Read = Callable[[bytes, Path], object]


@dataclass(frozen=True)
class Reader:
    """A reader, a content that it takes, and the errors it may raise."""

    valid: bytes
    read: Read
    errors: tuple[type[Exception], ...] = (UdjflError,)


def of_file(read: Callable[[Path], object], name: str = "input") -> Read:
    """Return a reader of contents from one of files."""

    def read_content(content: bytes, folder: Path) -> object:
        (folder / name).write_bytes(content)
        return read(folder / name)

    return read_content


def of_text(read: Callable[[str], object]) -> Read:
    return lambda content, folder: read(content.decode("latin-1"))


def read_archive(path: Path) -> None:
    with open_npz(path, "get it again") as archive:
        for name in archive.files:
            archive[name]


def make_idx() -> bytes:
    return gzip.compress(
        b"\0\0\x08\x03" + b"".join(n.to_bytes(4, "big") for n in (2, 3, 3)) + bytes(18)
    )


def save_to_bytes(save: Callable[[io.BytesIO], object]) -> bytes:
    stream = io.BytesIO()
    save(stream)
    return stream.getvalue()


def make_picture() -> bytes:
    from PIL import Image

    picture = Image.fromarray(np.arange(75, dtype=np.uint8).reshape(5, 5, 3))
    return save_to_bytes(lambda stream: picture.save(stream, "PNG"))


TENSORS = {"vector": torch.arange(5.0), "buffers": torch.zeros(0), "state.a": torch.ones(2, 2)}
PATIENT = b"63.0,1.0,1.0,145.0,233.0,1.0,2.0,150.0,0.0,2.3,3.0,0.0,6.0,0\n"
TOML = b'rounds = 3\nlr = 0.1\nmethod = "rawls"\nmodel = "mlp"\n[params]\nbeta = 2.0\n'
READERS = {
    "manifest": Reader(
        Manifest.of_run(b"a", b"b").expect({"result.json": Entry.of(b"c")}).encode(),
        lambda content, folder: Manifest.decode(content),
        (ValueError,),
    ),
    "record": Reader(
        Record(3, "client-1", "loss", 0.25).to_line(),
        lambda content, folder: parse_record(content),
        (ValueError,),
    ),
    "checkpoint": Reader(
        pack(TENSORS, {"round": 3, "records_length": 17, "run": "0" * 64}),
        lambda content, folder: unpack_content(content, folder / "checkpoint"),
    ),
    "toml": Reader(TOML, of_file(lambda path: validate_settings(RunSettings, read_toml(path)))),
    "idx": Reader(make_idx(), of_file(lambda path: read_idx(path, 3))),
    "npz": Reader(
        save_to_bytes(
            lambda stream: np.savez_compressed(stream, x=np.arange(9), y=np.zeros((2, 2)))
        ),
        of_file(read_archive),
    ),
    "pt": Reader(
        save_to_bytes(lambda stream: torch.save(torch.arange(6.0), stream)), of_file(_read_tensor)
    ),
    "csv": Reader(PATIENT * 3, of_file(read_patients)),
    "image": Reader(make_picture(), of_file(lambda path: read_pictures([path]), "input.png")),
    "spec": Reader(b"udj:theory=rawls:beta=5", of_text(lambda text: parse_spec(text, "method"))),
    "partition": Reader(b"shards:size=20,mix=1/2+3/4", of_text(Partition.parse)),
    "service": Reader(b"prior-all:strength=0.5", of_text(parse_service)),
}
TOKENS = (
    *b"nan 1e999 -1 null true 0 [ { , : = \xff \xf0\x9f\x92\xa5 \x1b[31m".split(),
    *(b"", b"\0", b'"', b"\n", b"9" * 30, b"[" * 2000),
)


def mutate(valid: bytes, chance: random.Random) -> bytes:
    """Change a content in a few places: bits, bytes, pieces that are removed or doubled."""
    content = bytearray(valid)
    for _ in range(chance.choice((1, 1, 1, 2, 5))):
        at = chance.randrange(len(content) + 1)
        end = min(len(content), at + chance.choice((1, 1, 4, 64)))
        kind = chance.randrange(6)
        if kind == 0 and at < len(content):
            content[at] ^= 1 << chance.randrange(8)
        elif kind == 1:
            content[at:end] = chance.randbytes(end - at)
        elif kind == 2:
            del content[at:end]
        elif kind == 3:
            content[at:at] = content[at:end]
        elif kind == 4:
            content[at:end] = chance.choice(TOKENS)
        else:
            content = content[:at]
    return bytes(content) if chance.random() < 0.95 else chance.randbytes(chance.randrange(300))


def fuzz(name: str, folder: Path, count: int, seed: int) -> None:
    """Read many mutated contents: each is read, or refused with an error of ours."""
    reader, chance, outcomes = READERS[name], random.Random(seed), Counter[str]()
    reader.read(reader.valid, folder)
    for number in range(count):
        content = mutate(reader.valid, chance)
        try:
            reader.read(content, folder)
            outcomes["read"] += 1
        except reader.errors:
            outcomes["refused"] += 1
        except Exception as error:
            raise AssertionError(f"{name}, seed {seed}, input {number}: {content!r}") from error
    print(f"{name}: {count} inputs: {dict(outcomes)}")


@pytest.mark.filterwarnings("ignore")  # of Pillow and numpy about damaged files
@pytest.mark.parametrize("name", READERS)
def test_damaged_input_is_read_or_refused(name: str, tmp_path: Path) -> None:
    fuzz(name, tmp_path, 500, 0)


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", READERS)
def test_a_million_damaged_inputs_are_read_or_refused(name: str, tmp_path: Path) -> None:
    fuzz(name, tmp_path, int(os.environ.get("UDJFL_FUZZ_INPUTS", "1000000")), 1)


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


@pytest.fixture
def command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tiny_source: str
) -> Command:
    return Command(monkeypatch, capsys)


def test_random_command_lines(command: Command, tmp_path: Path) -> None:
    check_lines(command, tmp_path, 60, 0)


@pytest.mark.soak
def test_two_thousand_random_command_lines(command: Command, tmp_path: Path) -> None:
    check_lines(command, tmp_path, 2_000, 1)
