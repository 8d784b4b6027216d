"""Readers of data files, and of the files of a run."""

from __future__ import annotations

import functools
import gzip
import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from fuzz_reader import Reader, of_file, save_to_bytes

from udjfl.data.image_folders import ImageFile, _read_images
from udjfl.data.sources._ambiguous_mnist import _read_tensor
from udjfl.data.sources._idx import read_idx
from udjfl.data.sources._images import open_npz, read_pictures
from udjfl.data.sources.heart import read_patients
from udjfl.training.lifecycle import _restore
from udjfl.training.manifest import Entry, Manifest
from udjfl.training.records import Record, parse_record
from udjfl.training.run_folder import Checkpoint
from udjfl.training.server_state import ServerState
from udjfl.training.tensor_file import ZEROS, _replace_digest, pack, unpack_content

PATIENT = b"63.0,1.0,1.0,145.0,233.0,1.0,2.0,150.0,0.0,2.3,3.0,0.0,6.0,0\n"


def make_idx_reader() -> Reader:
    sizes = b"".join(n.to_bytes(4, "big") for n in (2, 3, 3))
    content = gzip.compress(b"\0\0\x08\x03" + sizes + bytes(18))
    return Reader(content, of_file(lambda path: read_idx(path, 3)))


def make_npz_reader() -> Reader:
    content = save_to_bytes(
        lambda stream: np.savez_compressed(stream, x=np.arange(9), y=np.zeros((2, 2)))
    )
    return Reader(content, of_file(read_archive))


def read_archive(path: Path) -> None:
    with open_npz(path, "get it again") as archive:
        for name in archive.files:
            archive[name]


def make_pt_reader() -> Reader:
    content = save_to_bytes(lambda stream: torch.save(torch.arange(6.0), stream))
    return Reader(content, of_file(_read_tensor))


@functools.cache
def make_picture() -> bytes:
    from PIL import Image

    picture = Image.fromarray(np.arange(75, dtype=np.uint8).reshape(5, 5, 3))
    return save_to_bytes(lambda stream: picture.save(stream, "PNG"))


def make_image_reader() -> Reader:
    return Reader(make_picture(), of_file(lambda path: read_pictures([path]), "input.png"))


def make_own_image_reader() -> Reader:
    def read(path: Path) -> object:
        return _read_images([ImageFile("a", "x", path)], (4, 4), True)

    return Reader(make_picture(), of_file(read, "input.png"))


# --- files of a run

TENSORS = {"vector": torch.arange(5.0), "buffers": torch.zeros(0), "state.a": torch.ones(2, 2)}
CHECKPOINT = pack(TENSORS, {"round": 3, "records_length": 17, "run": "0" * 64})
DIGEST = CHECKPOINT[CHECKPOINT.index(b"sha256") :].split(b'\\"')[2].decode()


def make_manifest_reader() -> Reader:
    manifest = Manifest.of_run(b"a", b"b").expect({"result.json": Entry.of(b"c")})
    return Reader(
        manifest.encode(), lambda content, folder: Manifest.decode(content), (ValueError,)
    )


def make_record_reader() -> Reader:
    line = Record(3, "client-1", "loss", 0.25).to_line()
    return Reader(line, lambda content, folder: parse_record(content), (ValueError,))


def make_checkpoint_reader() -> Reader:
    return Reader(
        CHECKPOINT, lambda content, folder: unpack_content(content, folder / "checkpoint")
    )


def seal(content: bytes) -> bytes:
    """Give a changed checkpoint a checksum that fits, if there is still a place for one."""
    try:
        plain = _replace_digest(content, DIGEST, ZEROS)
        return _replace_digest(plain, ZEROS, hashlib.sha256(plain).hexdigest())
    except ValueError:
        return content


def read_state(content: bytes, folder: Path) -> object:
    """Read a checkpoint of somebody who can compute a checksum."""
    tensors, metadata = unpack_content(seal(content), folder / "checkpoint")
    if type(metadata.get("round")) is not int:
        return None  # refused when the folder is opened
    initial = ServerState(0, TENSORS["vector"], TENSORS["buffers"], {"a": TENSORS["state.a"]})
    return _restore(Checkpoint(metadata["round"], tensors, 0, None), initial, 5)


READERS: dict[str, Callable[[], Reader]] = {
    "manifest": make_manifest_reader,
    "record": make_record_reader,
    "checkpoint": make_checkpoint_reader,
    "sealed checkpoint": lambda: Reader(CHECKPOINT, read_state),
    "idx": make_idx_reader,
    "npz": make_npz_reader,
    "pt": make_pt_reader,
    "csv": lambda: Reader(PATIENT * 3, of_file(read_patients)),
    "image": make_image_reader,
    "own image": make_own_image_reader,
}
