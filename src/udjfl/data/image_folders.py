"""Images in folders client/class/image, decoded one by one into bytes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from udjfl._ids import id_sort_key
from udjfl.data._image_errors import image_errors
from udjfl.data.examples import Examples
from udjfl.data.source import Pools
from udjfl.errors import DataError, quote_values

MAX_SHOWN = 5
SUFFIXES = frozenset(
    (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
)


@dataclass(frozen=True)
class ImageFile:
    """An image, the client it belongs to, and its class."""

    client: str
    label: str
    path: Path


def read_image_folders(
    root: Path, size: int | tuple[int, int] | None, colour: bool, test_share: float
) -> Pools:
    """Read all images of all clients; equal images stay on one side of the split."""
    files = list(_list_images(root))
    if not files:
        raise DataError(f"{root}: there are no images in folders client/class/image")
    names = sorted({file.label for file in files}, key=id_sort_key)
    if len(names) < 2:
        raise DataError(f"{root}: there is one class only ({names[0]!r}): a model needs two")
    x = _read_images(files, (size, size) if isinstance(size, int) else size, colour)
    number = {label: index for index, label in enumerate(names)}
    y = torch.tensor([number[file.label] for file in files])
    _, groups = np.unique(x.reshape(len(x), -1), axis=0, return_inverse=True)
    return Pools(
        clean=Examples(torch.from_numpy(x), y),
        ambiguous=None,
        test=None,
        class_names=tuple(names),
        clean_groups=groups.reshape(-1).astype(np.int64),
        ambiguous_groups=np.empty(0, dtype=np.int64),
        owners=[file.client for file in files],
        stratify=True,
        test_share=test_share,
    )


def has_image_folders(root: Path) -> bool:
    """Tell whether there is an image in folders client/class/image."""
    return next(_list_images(root), None) is not None


def _list_images(root: Path) -> Iterator[ImageFile]:
    if not root.is_dir():
        raise DataError(f"{root} is no folder; name the one that has a folder for each client")
    for client in _list_folders(root):
        for label in _list_folders(client):
            for path in sorted(label.iterdir()):
                if path.suffix.lower() in SUFFIXES:
                    yield ImageFile(client.name, label.name, path)


def _list_folders(root: Path) -> list[Path]:
    return sorted(path for path in root.iterdir() if path.is_dir() and path.name[0] != ".")


def _read_images(
    files: list[ImageFile], size: tuple[int, int] | None, colour: bool
) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """Decode into one array, so that never more than one image is held twice."""
    images: np.ndarray[tuple[int, ...], np.dtype[np.uint8]] | None = None
    mistakes: list[str] = []
    for index, file in enumerate(files):
        name = quote_values(str(file.path))  # it may be that of a person
        try:
            image = _read_image(file.path, size, colour)
        except image_errors() as error:
            reason = quote_values(str(error))
            mistakes.append(f"client {file.client!r}: {name} cannot be decoded: {reason}")
            continue
        if images is None:
            images = np.zeros((len(files), *image.shape), dtype=np.uint8)
        if image.shape != images.shape[1:]:
            mistakes.append(
                f"client {file.client!r}: {name} is {_show(image.shape)} pixels, others are "
                f"{_show(images.shape[1:])}: give `size`"
            )
            continue
        images[index] = image
    if len(mistakes) > MAX_SHOWN:
        mistakes[MAX_SHOWN:] = [f"and {len(mistakes) - MAX_SHOWN} more"]
    if mistakes or images is None:
        raise DataError("\n".join(mistakes))
    return images


def _read_image(
    path: Path, size: tuple[int, int] | None, colour: bool
) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """Return an image [channels, height, width]."""
    from PIL import Image

    with Image.open(path) as image:
        picture = image.convert("RGB" if colour else "L")
        if size is not None:
            picture = picture.resize((size[1], size[0]))
        pixels = np.asarray(picture, dtype=np.uint8)
    return pixels.transpose(2, 0, 1) if colour else pixels[None]


def _show(shape: tuple[int, ...]) -> str:
    return f"{shape[2]}x{shape[1]}"
