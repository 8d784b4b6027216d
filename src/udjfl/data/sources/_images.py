"""Pictures: image files read into one array, kept decoded in the cache, and made ready for a model.

Pictures are uint8 [n, height, width, 3] (red, green, blue); a model's features are float32 [n, 3, height, width].
"""

from __future__ import annotations

import hashlib
import os
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from udjfl.data.partition import IndexArray
from udjfl.data.source import Progress, silent
from udjfl.errors import DataError

Pictures: TypeAlias = npt.NDArray[np.uint8]
Features: TypeAlias = npt.NDArray[np.float32]
Channels: TypeAlias = npt.NDArray[
    np.float64
]  # one number for each of red, green and blue, with pixels from 0 to 1

SIZE = 28
BRIGHTEST = 255
FILES_PER_REPORT = 200
# What numpy and zipfile raise for an archive that is cut short, overwritten, or something else altogether.
UNREADABLE_ARCHIVE = (
    OSError,
    EOFError,
    ValueError,
    KeyError,
    zipfile.BadZipFile,
    zlib.error,
    NotImplementedError,
)


def read_pictures(
    files: Sequence[Path], size: int = SIZE, progress: Progress = silent, stage: str = "pictures"
) -> Pictures:
    """Image files of any format Pillow knows, in colour, resized to size x size; a file that is no image is a DataError."""
    pictures = np.empty((len(files), size, size, 3), dtype=np.uint8)
    for place, file in enumerate(files):
        pictures[place] = _read(file, size)
        if (place + 1) % FILES_PER_REPORT == 0 or place + 1 == len(files):
            progress(stage, place + 1, len(files))
    return pictures


def resized(pictures: Pictures, size: int) -> Pictures:
    """The same pictures at size x size, as `read_pictures` would have made them; themselves, if they are so already."""
    if pictures.shape[1:3] == (size, size):
        return pictures
    from PIL import Image

    smaller = np.empty((len(pictures), size, size, 3), dtype=np.uint8)
    for place, picture in enumerate(pictures):
        smaller[place] = np.asarray(
            Image.fromarray(picture).resize((size, size), Image.Resampling.BILINEAR)
        )
    return smaller


def cached_pictures(
    files: Sequence[Path],
    cache: Path,
    name: str,
    size: int = SIZE,
    progress: Progress = silent,
) -> Pictures:
    """`read_pictures`, decoded once: the result is kept in the folder `cache`, for as long as the files stay the same.

    Files count as the same while their names (with their folder's) and sizes in bytes are. A damaged cache file is made again.
    """
    listing = [(file.parent.name, file.name, file.stat().st_size) for file in files]
    key = hashlib.sha256(repr((size, listing)).encode()).hexdigest()[:16]
    kept = cache / f"{name}-{size}px-{key}.npz"
    pictures = _kept_pictures(kept, (len(files), size, size, 3))
    if pictures is None:
        pictures = read_pictures(files, size, progress, name)
        _keep(kept, pictures)
    return pictures


def distinct(pictures: Pictures | Features) -> IndexArray:
    """Positions of the pictures, or features, that no earlier one equals.

    The same picture twice, under two names, could be in a train and in a test part.
    """
    first: dict[bytes, int] = {}
    for place, picture in enumerate(pictures):
        first.setdefault(hashlib.blake2b(picture.tobytes(), digest_size=16).digest(), place)
    return np.array(list(first.values()), dtype=np.int64)


def channel_statistics(pictures: Pictures) -> tuple[Channels, Channels]:
    """Mean and standard deviation of each channel over all pixels of all pictures, pixels being from 0 to 1."""
    mean = pictures.mean(axis=(0, 1, 2), dtype=np.float64) / BRIGHTEST
    std = pictures.std(axis=(0, 1, 2), dtype=np.float64) / BRIGHTEST
    return mean, np.where(std > 0, std, 1.0)  # a channel without any contrast becomes 0


def standardised(pictures: Pictures, mean: Channels, std: Channels) -> Features:
    """Features: pixels from 0 to 1, less the mean, over the standard deviation, for each channel."""
    features = (pictures / BRIGHTEST - mean) / std
    return np.ascontiguousarray(features.transpose(0, 3, 1, 2), dtype=np.float32)


def unstandardised(features: Features, mean: Channels, std: Channels) -> Pictures:
    """The pictures that `standardised` made these features of."""
    pixels = features.transpose(0, 2, 3, 1).astype(np.float64) * std + mean
    return np.clip(np.rint(pixels * BRIGHTEST), 0, BRIGHTEST).astype(np.uint8)


def standardised_each(pictures: Pictures) -> Features:
    """Features: each channel of each picture brought to mean 0 and standard deviation 1 by its own pixels.

    A picture's own numbers say nothing about other pictures. A channel of one colour becomes 0.
    """
    pixels = pictures.transpose(0, 3, 1, 2).astype(np.float64)
    std = pixels.std(axis=(2, 3), ddof=1, keepdims=True)
    features = (pixels - pixels.mean(axis=(2, 3), keepdims=True)) / np.where(std > 0, std, 1.0)
    return np.ascontiguousarray(features, dtype=np.float32)


def for_display(features: Any) -> Any:
    """Features [n, 3, height, width], as an array or a tensor, as numbers from 0 to 1, to be looked at.

    One scale for the whole set, from its lowest value to its highest: pictures that lost their contrast are seen to have
    lost it. Colours are near those of the photographs, not equal to them.
    """
    low, high = features.min(), features.max()
    return (features - low) / (high - low) if high > low else features - low


def _read(file: Path, size: int) -> Pictures:
    from PIL import Image

    # Pillow's readers raise all of these for files that are cut short or are no images.
    broken = (
        OSError,
        EOFError,
        SyntaxError,
        ValueError,
        IndexError,
        TypeError,
        struct.error,
        zlib.error,
    )
    try:
        with Image.open(file) as opened:
            smaller = opened.convert("RGB").resize((size, size), Image.Resampling.BILINEAR)
    except (*broken, Image.DecompressionBombError) as error:
        raise DataError(
            f"{file} cannot be read as an image ({error}): get it again, or take it out of the folder"
        ) from None
    return np.asarray(smaller, dtype=np.uint8)


def _kept_pictures(kept: Path, shape: tuple[int, ...]) -> Pictures | None:
    """What the cache has, if it is whole: zip archives have a checksum for each array."""
    try:
        with kept.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            pictures: npt.NDArray[Any] = archive["pictures"]
    except (
        *UNREADABLE_ARCHIVE,
        TypeError,
        AttributeError,
    ):  # the last two: a lone array is no archive
        return None
    return pictures if pictures.dtype == np.uint8 and pictures.shape == shape else None


def _keep(kept: Path, pictures: Pictures) -> None:
    """Write the whole file or none; without room for it, the next load decodes again."""
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        handle, beside = tempfile.mkstemp(dir=kept.parent, prefix=kept.stem, suffix=".part")
    except OSError:
        return
    try:
        with os.fdopen(handle, "wb") as file:
            np.savez(file, pictures=pictures)
        Path(beside).replace(kept)
    except OSError:
        Path(beside).unlink(missing_ok=True)
