"""Files in the formats of MNIST and Ambiguous-MNIST, as small as possible."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path
from typing import Any

import numpy as np
import torch
from data_helpers import row_set

from udjfl.data import Federation, Request, load
from udjfl.data.sources import _ambiguous_mnist as ambiguous_mnist
from udjfl.data.sources import dirty_mnist as mnist

TRAIN, TEST, AMBIGUOUS, LABELS = 160, 20, 24, 10
SOURCES = np.arange(0, 60, 2)  # the digits that regenerated ones were made from
TRAIN_IMAGES = mnist.FILES["train images"]
RELEASE_SEED, REGENERATED_SEED = 3, 4  # of `noise`


def noise(count: int, seed: int) -> np.ndarray:
    """Make random images."""
    return np.random.default_rng(seed).integers(0, 256, (count, 28, 28)).astype(np.uint8)


def write_idx(path: Path, numbers: np.ndarray, head: bytes | None = None) -> None:
    """Write an idx file, gzipped if its name ends in .gz."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if head is None:
        head = struct.pack(f">HBB{numbers.ndim}I", 0, 8, numbers.ndim, *numbers.shape)
    content = head + numbers.tobytes()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


def write_digits(folder: Path, suffix: str = ".gz") -> None:
    """Write MNIST's four files."""
    for part, count, seed in (("train", TRAIN, 1), ("test", TEST, 2)):
        labels = (np.arange(count) % 10).astype(np.uint8)
        write_idx(folder / (mnist.FILES[f"{part} images"] + suffix), noise(count, seed))
        write_idx(folder / (mnist.FILES[f"{part} labels"] + suffix), labels)


def write_release(folder: Path, images: Any = None, labels: Any = None) -> None:
    """Write the two files of Ambiguous-MNIST."""
    folder.mkdir(parents=True, exist_ok=True)
    if images is None:
        pixels = torch.from_numpy(noise(AMBIGUOUS, RELEASE_SEED) / np.float32(255))
        images = pixels.reshape(AMBIGUOUS, 1, 28, 28)
    if labels is None:
        labels = torch.arange(AMBIGUOUS * LABELS).reshape(AMBIGUOUS, LABELS) % 10
    torch.save(images, folder / "amnist_samples.pt")
    torch.save(labels, folder / "amnist_labels.pt")


def write_regenerated(folder: Path, **changes: Any) -> Path:
    """Write the file of regenerated digits."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / ambiguous_mnist.REGENERATED
    labels = (np.arange(AMBIGUOUS * LABELS).reshape(AMBIGUOUS, LABELS) % 10).astype(np.uint8)
    arrays = {"images": noise(AMBIGUOUS, REGENERATED_SEED), "labels": labels, "sources": SOURCES}
    np.savez(path, **{**arrays, **changes})
    return path


def load_mnist(
    root: Path, options: str = "", seed: int = 0, partition: str = "shards", clients: int = 2
) -> Federation:
    """Load a federation of dirty-mnist."""
    return load("dirty-mnist" + options, clients=clients, partition=partition, seed=seed, root=root)


def make_request(root: Path | None, cache: Path, seed: int = 0, **options: str) -> Request:
    """Make a request with these options."""
    return Request(seed, root, cache, mnist.MnistOptions(**options))  # type: ignore[arg-type]


def as_features(images: np.ndarray) -> set[bytes]:
    """Return images as the bytes of features."""
    pixels = images.astype(np.float32) / np.float32(255)
    return row_set(mnist._make_examples(pixels, np.zeros(len(images))))
