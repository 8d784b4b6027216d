"""Bad input at the command line and in files: a line of words, no traceback, no hang.

Sizes are checked before memory is taken for them.
"""

from __future__ import annotations

import gzip
import io
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from command import SMALL, Command, mistakes_of

from udjfl.data.sources._ambiguous_mnist import _read_tensor
from udjfl.data.sources._idx import read_idx
from udjfl.data.sources._images import open_npz
from udjfl.data.sources.heart import read_patients
from udjfl.errors import DataError, SettingsError
from udjfl.settings import read_toml

LONG = "a" * 300


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("-p self=1", "rawls: self: no such parameter"),
        ("--model ..:x", "is not of the form package.module:Name"),
        ("--model builtins:dict", "does not say which arguments it takes"),
        ("--model antigravity.nowhere:x", "cannot import"),
        ("--clients 3000000", "clients: must be at most 100000"),
        ("--hidden 99999999999999999999999", "hidden: must be at most"),
        ("--local-epochs 99999999999999999999999", "local_epochs: must be at most"),
        ("--uncertainty-folds 999999999", "uncertainty_folds: must be at most"),
        ("--device meta", "device: 'meta' cannot be used here"),
        (f"--data heart --data-root {LONG}", "data_root: "),
        (f"--method {LONG}", "unknown name"),
        (f"--out {LONG}", "the name is too long"),
        ("--config /dev/zero", "config: cannot read /dev/zero: it has more than"),
    ],
)
def test_bad_flags_are_told_in_words(command: Command, flags: str, words: str) -> None:
    others = " ".join(SMALL.split()[4:])  # without the data and the number of clients
    data = "" if "--data " in flags else "--data tiny"
    text = "\n".join(mistakes_of(command("run", others, data, flags)))
    assert words in text


@pytest.mark.parametrize("command_name", ["resume", "report", "check"])
@pytest.mark.parametrize("name", [LONG, "/dev/null", "/proc/self/mem"])
def test_names_that_are_no_folder_are_told_in_words(
    command: Command, command_name: str, name: str
) -> None:
    assert mistakes_of(command(command_name, name))


@pytest.mark.parametrize(
    "content",
    [
        b"a = " + b"[" * 5000,
        b"rounds = " + b"9" * 5000,
        b"\xff\xfe",
        b"a = 1\n" * 300_000,
    ],
)
def test_toml_that_cannot_be_read_is_told_in_words(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "settings.toml").write_bytes(content)
    with pytest.raises(SettingsError, match="config: "):
        read_toml(tmp_path / "settings.toml")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("arguments", [["methods"], ["methods", "--json"], ["--help"]])
def test_a_full_disk_behind_standard_output_is_told_in_words(arguments: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "udjfl", *arguments],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert done.returncode == 2
    assert done.stderr == "udjfl: cannot write the output: No space left on device\n"


def idx_header(*shape: int) -> bytes:
    return b"\0\0\x08" + bytes([len(shape)]) + b"".join(n.to_bytes(4, "big") for n in shape)


def test_an_idx_file_that_unpacks_to_too_much_is_refused(tmp_path: Path) -> None:
    """300 kB on disk, 300 MB unpacked; and shapes whose product would wrap around to 0."""
    bomb = io.BytesIO()
    with gzip.GzipFile(fileobj=bomb, mode="wb", compresslevel=9) as packed:
        packed.write(idx_header(1 << 28))
        for _ in range(300):
            packed.write(bytes(1_000_000))
    (tmp_path / "bomb.gz").write_bytes(bomb.getvalue())
    with pytest.raises(DataError, match="has more than 268435456 bytes"):
        read_idx(tmp_path / "bomb.gz", 1)
    (tmp_path / "wraps").write_bytes(idx_header(1 << 31, 1 << 31, 4))
    with pytest.raises(DataError, match="not complete"):
        read_idx(tmp_path / "wraps", 3)


def write_npz(path: Path, header: bytes, data: bytes) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("images.npy", header + data)


def npy_header(shape: tuple[int, ...]) -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        stream, {"descr": "|u1", "fortran_order": False, "shape": shape}
    )
    return stream.getvalue()


@pytest.mark.parametrize("shape", [(10**15,), (1 << 62, 4), (10**6, 10**6)])
def test_an_npz_file_that_says_it_is_larger_than_it_is_is_refused(
    tmp_path: Path, shape: tuple[int, ...]
) -> None:
    write_npz(tmp_path / "x.npz", npy_header(shape), b"123")
    with (
        pytest.raises(DataError, match="fewer numbers than it says"),
        open_npz(tmp_path / "x.npz", "get it again") as archive,
    ):
        _ = archive["images"]


def test_a_tensor_file_that_unpacks_to_too_much_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.save(torch.zeros(1000), tmp_path / "x.pt")
    assert len(_read_tensor(tmp_path / "x.pt")) == 1000
    monkeypatch.setattr("udjfl.data.sources._ambiguous_mnist.MOST_BYTES", 3000)
    with pytest.raises(DataError, match="cannot be read as tensors"):
        _read_tensor(tmp_path / "x.pt")


def test_an_endless_table_is_refused(tmp_path: Path) -> None:
    (tmp_path / "hospital.data").symlink_to("/dev/zero")
    with pytest.raises(DataError, match="cannot be read"):
        read_patients(tmp_path / "hospital.data")
