"""Folders of your own: images in client/class/image, and federations that `save` wrote.

`--data ./photos` and `--data ./kept` name these sources by the folder itself.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from udjfl.data.image_folders import has_image_folders, read_image_folders
from udjfl.data.source import Pools, Request, Source
from udjfl.data.split import TEST_SHARE
from udjfl.data.storage import DESCRIPTION, load_federation
from udjfl.data.tables.files import SUFFIXES
from udjfl.errors import DataError
from udjfl.settings import Settings

if TYPE_CHECKING:
    import torch

    from udjfl.data.federation import Federation

BRIGHTEST = 255
Folder = Annotated[str, Field(description="the folder, unless it is named in place of the data")]


class ImageOptions(Settings):
    """The folder of images, and their size."""

    folder: Folder = ""
    size: Annotated[
        int | None,
        Field(ge=1, description="height and width that images are resized to; default: their own"),
    ] = None
    colour: Annotated[bool, Field(description="red, green and blue, or one channel of grey")] = True
    test_share: Annotated[
        float | None,
        Field(gt=0, lt=1, description="share of a client's images in its test part; default: 0.2"),
    ] = None


class SavedOptions(Settings):
    """The folder of a saved federation."""

    folder: Folder = ""
    verify: Annotated[bool, Field(description="read everything once, to find damage")] = True


def load_pools(request: Request) -> Pools:
    """Decode the images of all clients."""
    options: ImageOptions = request.options
    root = _require_folder(options.folder, "./photos")
    share = options.test_share or TEST_SHARE
    pools = read_image_folders(root, options.size, options.colour, share)
    return replace(pools, title=root.resolve().name)


def load_saved(request: Request) -> Federation:
    """Open a saved federation; its data are read as they are used."""
    options: SavedOptions = request.options
    return load_federation(_require_folder(options.folder, "./kept"), options.verify)


def _require_folder(folder: str, example: str) -> Path:
    if not folder:
        raise DataError(f"folder: name it in place of the data, as in --data {example}")
    return Path(folder).expanduser()


def to_pixels(features: torch.Tensor) -> torch.Tensor:
    """Return pixels from 0 to 1."""
    return features / BRIGHTEST


def name_folder(text: str) -> Source | None:
    """Return the source of a folder with images or a saved federation; None if it is neither."""
    path = Path(text.partition(":")[0].strip()).expanduser()
    if not path.is_dir():
        return None
    if (path / DESCRIPTION).exists():
        return SAVED
    if any(file.suffix.lower() in SUFFIXES for file in path.iterdir()):
        return None  # tables
    return IMAGES if has_image_folders(path) else None


IMAGES = Source(
    name="images",
    summary="images of your own, in folders client/class/image, named in place of the data",
    how_to_get="They are yours.",
    load_pools=load_pools,
    options=ImageOptions,
    clients=None,
    partition="natural",
    to_pixels=to_pixels,
)
SAVED = Source(
    name="saved",
    summary="a federation that `Federation.save` wrote, named by its folder in place of the data",
    how_to_get="It is yours.",
    load_federation=load_saved,
    options=SavedOptions,
    clients=None,
    partition="natural",
)
