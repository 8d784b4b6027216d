"""The files of traffic signs: an .npz archive, or folders of pictures as in GTSRB."""

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from udjfl.data.partition import IndexArray
from udjfl.data.source import OnProgress, Request, ignore_progress
from udjfl.data.sources._images import (
    SIZE,
    Pictures,
    find_distinct,
    number_pairs,
    open_npz,
    read_cached_pictures,
    resize,
)
from udjfl.errors import DataError

FRAME = re.compile(r"(\d+)_(\d+)\.(ppm|png|jpg|jpeg|bmp)", re.IGNORECASE)
PICTURE_SUFFIXES = (".ppm", ".png", ".jpg", ".jpeg", ".bmp")
# The folder of the class folders, below the folder that GTSRB's archives or torchvision unpack to.
GTSRB_FOLDERS = (
    "",
    "Final_Training/Images",
    "GTSRB/Final_Training/Images",
    "GTSRB/Training",
    "gtsrb/GTSRB/Training",
)
ARRAYS = ("x", "y", "track")
MIN_TRACKS = 3
HOW_TO_GET = (
    "Get GTSRB's training images from benchmark.ini.rub.de (the archive called "
    "GTSRB_Final_Training_Images or GTSRB-Training_fixed), unpack them, and name the folder with "
    "--data-root or UDJFL_DATA: it has a folder for each class with files TRACK_FRAME.ppm. Or name "
    "an .npz file, or a folder with one, that has x (uint8 [n, height, width, 3]), y and track "
    "(whole numbers [n]) and perhaps names"
)


@dataclass(frozen=True, eq=False)
class Signs:
    """Photographs before any is blurred.

    labels    class numbers, from 0 without gaps
    groups    a number for each pair of class and track
    copies    how many copies of other photographs were left out
    """

    pictures: Pictures
    labels: IndexArray
    groups: IndexArray
    class_names: tuple[str, ...]
    copies: int = 0

    @property
    def tracks(self) -> int:
        """The number of tracks."""
        return len(np.unique(self.groups))


def load_signs(
    request: Request, size: int = SIZE, on_progress: OnProgress = ignore_progress
) -> Signs:
    """Load the photographs, resized; of equal ones, only the first."""
    path = find_signs(request)
    signs = (
        _load_archive(path, size)
        if path.is_file()
        else _load_folders(path, size, request.cache, on_progress)
    )
    distinct = find_distinct(signs.pictures)
    copies = len(signs.labels) - len(distinct)
    if copies:
        columns = (signs.pictures[distinct], signs.labels[distinct], signs.groups[distinct])
        signs = Signs(*columns, signs.class_names, copies)
    classes = len(np.unique(signs.labels))
    if signs.tracks < MIN_TRACKS or classes < 2:
        raise DataError(
            f"{path} has {signs.tracks} tracks of {classes} classes: give at least {MIN_TRACKS} "
            "tracks and 2 classes, so that there are tracks to hold out, to blur and to leave as "
            "they are"
        )
    return signs


def find_signs(request: Request) -> Path:
    """Return the .npz file or the folder of class folders; a DataError if none or several exist."""
    if request.root is not None and request.root.is_file():
        _check_archive(request.root)
        return request.root
    roots = [] if request.root is None else [request.root]
    searches = [(root, search) for root in roots for search in (_find_named, _find_unnamed)]
    for place, search in [*searches, (request.cache, _find_named)]:
        candidates = search(place)
        if len(candidates) > 1:
            listed = ", ".join(str(path) for path in candidates)
            raise DataError(
                f"several places have traffic signs: {listed}. Name one of them as the data root"
            )
        if candidates:
            return candidates[0]
    raise request.not_found("photographs of traffic signs were", HOW_TO_GET)


def _find_named(place: Path) -> list[Path]:
    """Return candidates called signs, which come before others."""
    archive = place / "signs.npz"
    if archive.is_file():
        _check_archive(archive)
    return [*([archive] if archive.is_file() else []), *_find_unnamed(place / "signs")]


def _find_unnamed(place: Path) -> list[Path]:
    """Return archives with the three arrays, and folders in GTSRB's layout."""
    archives = [path for path in sorted(place.glob("*.npz")) if not _find_missing_arrays(path)]
    folders: list[Path] = []
    for below in GTSRB_FOLDERS:
        folder = place / below
        # On file systems that ignore case, two of the names can be one folder.
        if len(_find_class_folders(folder)) > 1 and not any(map(folder.samefile, folders)):
            folders.append(folder)
    return archives + folders


def _find_class_folders(place: Path) -> list[Path]:
    """Return the folders that contain frames, by number if all are numbers."""
    if not place.is_dir():
        return []
    folders = [path for path in place.iterdir() if path.is_dir() and not path.name.startswith(".")]
    classes = [
        folder for folder in folders if any(FRAME.fullmatch(file.name) for file in folder.iterdir())
    ]
    numbered = all(folder.name.isdecimal() for folder in classes)
    return sorted(classes, key=lambda folder: (int(folder.name) if numbered else 0, folder.name))


def _find_missing_arrays(path: Path) -> list[str]:
    """Return which of the three arrays a file lacks; only its directory is read."""
    try:
        with open_npz(path, "") as archive:
            return [name for name in ARRAYS if name not in archive.files]
    except DataError:
        return list(ARRAYS)


def _check_archive(path: Path) -> None:
    missing = _find_missing_arrays(path)
    if missing:
        raise DataError(
            f"{path} has no array {' and no array '.join(missing)}: give an .npz file with x "
            "(uint8 [n, height, width, 3]), y and track (whole numbers [n])"
        )


def _load_archive(path: Path, size: int) -> Signs:
    with open_npz(path, "write it again, without Python objects in it") as archive:
        pictures, labels, tracks = (archive[name] for name in ARRAYS)
        names = archive["names"] if "names" in archive.files else None
    shape = pictures.shape
    if pictures.dtype != np.uint8 or len(shape) != 4 or shape[3] != 3 or 0 in shape:
        raise DataError(
            f"{path}: x is {pictures.dtype} {list(shape)}: give uint8 [n, height, width, 3]"
        )
    for name, column in (("y", labels), ("track", tracks)):
        if column.shape != shape[:1] or column.dtype.kind not in "iu" or column.min() < 0:
            raise DataError(
                f"{path}: {name} is {column.dtype} {list(column.shape)}: give a whole number from "
                f"0 up for each of the {len(pictures)} pictures"
            )
    classes, numbers = np.unique(labels.astype(np.int64), return_inverse=True)
    if names is not None and (
        names.ndim != 1 or names.dtype.kind != "U" or len(names) <= classes[-1]
    ):
        raise DataError(
            f"{path}: names is {names.dtype} {list(names.shape)}: give a text for each label from "
            f"0 to {classes[-1]}"
        )
    class_names = classes.astype(str) if names is None else names[classes]
    groups = number_pairs(numbers, tracks.astype(np.int64))
    return Signs(resize(pictures, size), numbers, groups, tuple(class_names.tolist()))


def _load_folders(place: Path, size: int, cache: Path, on_progress: OnProgress) -> Signs:
    frames: list[tuple[Path, int, int]] = []
    folders = _find_class_folders(place)
    for label, folder in enumerate(folders):
        for file in sorted(folder.iterdir()):
            frame = FRAME.fullmatch(file.name)
            if frame:
                frames.append((file, label, int(frame[1])))
            elif file.suffix.lower() in PICTURE_SUFFIXES and not file.name.startswith("."):
                raise DataError(
                    f"{file}: its name does not contain its track; call pictures TRACK_FRAME, "
                    "as in 00003_00017.ppm"
                )
    files, *columns = zip(*frames, strict=True)
    pictures = read_cached_pictures(files, cache / "decoded-signs", "signs", size, on_progress)
    labels, tracks = (np.array(column, dtype=np.int64) for column in columns)
    names = tuple(folder.name for folder in folders)
    return Signs(pictures, labels, number_pairs(labels, tracks), names)
