"""Pictures: image files and archives read into arrays, cached, and turned into features.

Pictures are uint8 [n, height, width, 3] (red, green, blue); features are float32
[n, 3, height, width].
"""

import hashlib
import math
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from udjfl.data._image_errors import image_errors
from udjfl.data.partition import IndexArray
from udjfl.data.source import OnProgress, ignore_progress
from udjfl.errors import DataError

Pictures: TypeAlias = npt.NDArray[np.uint8]
Features: TypeAlias = npt.NDArray[np.float32]
# One number for each of red, green and blue, for pixels from 0 to 1.
Channels: TypeAlias = npt.NDArray[np.float64]

SIZE = 28
BRIGHTEST = 255
FILES_PER_REPORT = 200
MOST_BYTES = 1 << 32  # of an archive, unpacked
# Raised by numpy and zipfile for archives that are truncated, overwritten, or not archives.
UNREADABLE_ARCHIVE = (
    AttributeError,
    EOFError,
    KeyError,
    MemoryError,
    NotImplementedError,
    OSError,
    RuntimeError,  # an archive with a password
    TypeError,
    ValueError,
    zipfile.BadZipFile,
    zlib.error,
)


@contextmanager
def open_npz(path: Path, remedy: str) -> Iterator[Any]:
    """Open an .npz file without unpickling. Errors while reading it become a DataError."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            _check_sizes(archive)
            yield archive
    except UNREADABLE_ARCHIVE as error:
        raise DataError(f"{path} cannot be read ({error}): {remedy}") from None


def _check_sizes(archive: Any) -> None:
    """Refuse an archive that unpacks to too much, or says so, before memory is taken for it."""
    members = archive.zip.infolist()
    if sum(member.file_size for member in members) > MOST_BYTES:
        raise ValueError(f"it unpacks to more than {MOST_BYTES} bytes")
    for member in members:
        with archive.zip.open(member) as file:
            version = np.lib.format.read_magic(file)
            read = np.lib.format.read_array_header_1_0
            if version != (1, 0):
                read = np.lib.format.read_array_header_2_0
            shape, _, dtype = read(file)
        # Python objects are refused when the array is read.
        if not dtype.hasobject and math.prod(shape) * dtype.itemsize > member.file_size:
            raise ValueError(f"{member.filename} has fewer numbers than it says")


def read_pictures(
    files: Sequence[Path],
    size: int = SIZE,
    on_progress: OnProgress = ignore_progress,
    stage: str = "pictures",
) -> Pictures:
    """Read image files of any format Pillow supports, in colour, resized to size x size."""
    pictures = np.empty((len(files), size, size, 3), dtype=np.uint8)
    for index, file in enumerate(files):
        pictures[index] = _read_picture(file, size)
        if (index + 1) % FILES_PER_REPORT == 0 or index + 1 == len(files):
            on_progress(stage, index + 1, len(files))
    return pictures


def _read_picture(file: Path, size: int) -> Pictures:
    from PIL import Image

    try:
        with Image.open(file) as opened:
            picture = opened.convert("RGB").resize((size, size), Image.Resampling.BILINEAR)
    except image_errors() as error:
        raise DataError(
            f"{file} cannot be read as an image ({error}): get it again, or remove it from the "
            "folder"
        ) from None
    return np.asarray(picture, dtype=np.uint8)


def resize(pictures: Pictures, size: int) -> Pictures:
    """Resize to size x size as `read_pictures` does; return `pictures` if they have that size."""
    if pictures.shape[1:3] == (size, size):
        return pictures
    from PIL import Image

    return np.stack(
        [
            np.asarray(Image.fromarray(picture).resize((size, size), Image.Resampling.BILINEAR))
            for picture in pictures
        ]
    )


def read_cached_pictures(
    files: Sequence[Path],
    cache: Path,
    name: str,
    size: int = SIZE,
    on_progress: OnProgress = ignore_progress,
) -> Pictures:
    """Read image files once: the decoded pictures are stored in the folder `cache`.

    They are used while the files' names (with their folder's) and sizes in bytes stay the same. A
    damaged cache file is replaced.
    """
    listing = [(file.parent.name, file.name, file.stat().st_size) for file in files]
    key = hashlib.sha256(repr((size, listing)).encode()).hexdigest()[:16]
    path = cache / f"{name}-{size}px-{key}.npz"
    pictures = _load_cached(path, (len(files), size, size, 3))
    if pictures is None:
        pictures = read_pictures(files, size, on_progress, name)
        _store_cached(path, pictures)
    return pictures


def _load_cached(path: Path, shape: tuple[int, ...]) -> Pictures | None:
    """Return the cached pictures, None if there are none or the file is damaged."""
    try:
        with open_npz(path, "") as archive:
            pictures: npt.NDArray[Any] = archive["pictures"]
    except DataError:
        return None
    return pictures if pictures.dtype == np.uint8 and pictures.shape == shape else None


def _store_cached(path: Path, pictures: Pictures) -> None:
    """Write the complete file or nothing. A cache that cannot be written is not an error."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        # A folder of its own: another process may be writing the same file.
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=path.stem) as folder:
            complete = Path(folder) / path.name
            np.savez(complete, pictures=pictures)
            complete.replace(path)


def find_distinct(pictures: Pictures | Features) -> IndexArray:
    """Return the indices of pictures, or features, that no earlier one equals.

    Equal pictures under two names could otherwise be in a train and in a test part.
    """
    first: dict[bytes, int] = {}
    for index, picture in enumerate(pictures):
        first.setdefault(hashlib.blake2b(picture.tobytes(), digest_size=16).digest(), index)
    return np.array(list(first.values()), dtype=np.int64)


def number_pairs(first: IndexArray, second: IndexArray) -> IndexArray:
    """Number the distinct pairs, for each index the number of its pair."""
    pairs = np.stack([first, second], axis=1)
    return np.unique(pairs, axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)


def channel_statistics(pictures: Pictures) -> tuple[Channels, Channels]:
    """Return mean and standard deviation of each channel, for pixels from 0 to 1."""
    mean = pictures.mean(axis=(0, 1, 2), dtype=np.float64) / BRIGHTEST
    std = pictures.std(axis=(0, 1, 2), dtype=np.float64) / BRIGHTEST
    return mean, np.where(std > 0, std, 1.0)  # a channel without contrast becomes 0


def standardise(pictures: Pictures, mean: Channels, std: Channels) -> Features:
    """Return features: pixels from 0 to 1, less the mean, over the deviation of each channel."""
    features = (pictures / BRIGHTEST - mean) / std
    return np.ascontiguousarray(features.transpose(0, 3, 1, 2), dtype=np.float32)


def standardise_each(pictures: Pictures) -> Features:
    """Return features: each channel of each picture with mean 0 and standard deviation 1.

    No statistics are shared between pictures. A channel of one colour becomes 0.
    """
    pixels = pictures.transpose(0, 3, 1, 2).astype(np.float64)
    std = pixels.std(axis=(2, 3), ddof=1, keepdims=True)
    features = (pixels - pixels.mean(axis=(2, 3), keepdims=True)) / np.where(std > 0, std, 1.0)
    return np.ascontiguousarray(features, dtype=np.float32)


def scale_for_display(features: Any) -> Any:
    """Scale features [n, 3, height, width], an array or a tensor, to values from 0 to 1.

    The whole set has one scale, from its lowest value to its highest, so that a loss of contrast
    stays visible. Colours are close to those of the photographs, not equal to them.
    """
    low, high = features.min(), features.max()
    return (features - low) / (high - low) if high > low else features - low
