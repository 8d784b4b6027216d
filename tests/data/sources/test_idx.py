"""Damaged MNIST files are refused."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from mnist_files import TRAIN, TRAIN_IMAGES, load_mnist, noise, write_idx

from udjfl.data.sources import dirty_mnist as mnist
from udjfl.data.sources._idx import read_idx
from udjfl.errors import DataError

IMAGES = TRAIN_IMAGES + ".gz"


@pytest.mark.parametrize("name", ["numbers", "numbers.gz"])
@pytest.mark.parametrize("shape", [(6,), (3, 2), (1, 2, 3)])
def test_files_are_read_gzipped_or_not(tmp_path: Path, name: str, shape: tuple[int, ...]) -> None:
    numbers = np.arange(6, dtype=np.uint8).reshape(shape)
    write_idx(tmp_path / name, numbers)
    assert np.array_equal(read_idx(tmp_path / name, len(shape)), numbers)


def truncate(root: Path) -> None:
    content = gzip.decompress((root / IMAGES).read_bytes())
    (root / IMAGES).write_bytes(gzip.compress(content[:-1]))


def truncate_gzip(root: Path) -> None:
    (root / IMAGES).write_bytes((root / IMAGES).read_bytes()[:5000])


def overwrite_gzip(root: Path) -> None:
    content = bytearray((root / IMAGES).read_bytes())
    content[10:40] = b"\xff" * 30
    (root / IMAGES).write_bytes(bytes(content))


def change_element_type(root: Path) -> None:
    head = struct.pack(">HBB3I", 0, 9, 3, TRAIN, 28, 28)
    write_idx(root / IMAGES, noise(TRAIN, 1), head)


def change_number_of_dimensions(root: Path) -> None:
    write_idx(root / IMAGES, noise(TRAIN, 1).reshape(TRAIN, 784))


def empty(root: Path) -> None:
    (root / IMAGES).write_bytes(b"")


def replace_by_web_page(root: Path) -> None:
    (root / IMAGES).write_bytes(b"<html>not found</html>")


def change_shape(root: Path) -> None:
    write_idx(root / IMAGES, noise(TRAIN, 1).reshape(TRAIN, 14, 56))


def remove_image(root: Path) -> None:
    write_idx(root / IMAGES, noise(TRAIN - 1, 1))


def change_labels(root: Path) -> None:
    write_idx(root / (mnist.FILES["train labels"] + ".gz"), np.full(TRAIN, 10, dtype=np.uint8))


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (truncate, "is not one of MNIST's files, or not complete; get it again"),
        (truncate_gzip, "cannot be read .*get the file again"),
        (overwrite_gzip, "cannot be read .*get the file again"),
        (change_element_type, "is not one of MNIST's files"),
        (change_number_of_dimensions, "is not one of MNIST's files"),
        (empty, "cannot be read .*get the file again"),
        (replace_by_web_page, "cannot be read|is not one of MNIST's files"),
        (change_shape, "they are not MNIST's"),
        (remove_image, "they are not MNIST's"),
        (change_labels, "they are not MNIST's"),
    ],
)
def test_damaged_files_are_refused(
    release_root: Path, damage: Callable[[Path], None], words: str
) -> None:
    damage(release_root)
    with pytest.raises(DataError, match=words) as caught:
        load_mnist(release_root)
    assert str(release_root) in str(caught.value)
