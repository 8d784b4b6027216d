"""Traffic signs, sharp and out of focus: the paper's experiment on CURE-TSR, with photographs anyone can have.

CURE-TSR is given on request only. This source takes any photographs of traffic signs with labels and tracks, a track being
the frames a camera took of one sign in passing, and makes the ambiguous half itself by lens blur (`blur.py`). GTSRB's
training images are such photographs: Stallkamp, Schlipsing, Salmen, Igel, "Man vs. computer: Benchmarking machine learning
algorithms for traffic sign recognition", Neural Networks 32, 2012. What is measured here is not measured on CURE-TSR.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field

from udjfl.data.federation import Examples, Pools
from udjfl.data.partition import IndexArray
from udjfl.data.source import Preparation, Progress, Request, Source, not_found, silent
from udjfl.data.sources._images import (
    SIZE,
    UNREADABLE_ARCHIVE,
    Pictures,
    cached_pictures,
    channel_statistics,
    distinct,
    for_display,
    resized,
    standardised,
)
from udjfl.data.sources._lens_blur import blurred
from udjfl.data.split import stratified_sample
from udjfl.errors import DataError
from udjfl.seeds import numpy_stream
from udjfl.settings import Settings

FRAME = re.compile(r"(\d+)_(\d+)\.(ppm|png|jpg|jpeg|bmp)", re.IGNORECASE)
PICTURE_ENDINGS = (".ppm", ".png", ".jpg", ".jpeg", ".bmp")
# Where the class folders are below the folder that GTSRB's archives, or torchvision, unpack into.
GTSRB_FOLDERS = (
    "",
    "Final_Training/Images",
    "GTSRB/Final_Training/Images",
    "GTSRB/Training",
    "gtsrb/GTSRB/Training",
)
ARRAYS = ("x", "y", "track")
HELD_OUT = 10  # one track in so many is the server's
FEWEST_TRACKS = 3
VALIDATION, CLEAN, BLURRED = 0, 1, 2


class SignsOptions(Settings):
    """How much the ambiguous half is blurred, and how large pictures are."""

    level: Annotated[
        int,
        Field(
            ge=1, le=5, description="lens blur of the ambiguous half: 1, soft, to 5, hard to read"
        ),
    ] = 5
    size: Annotated[
        int, Field(ge=8, le=256, description="pictures are resized to so many pixels each way")
    ] = SIZE


@dataclass(frozen=True, eq=False)
class Signs:
    """Photographs as found: class numbers from 0 up without gaps, and `groups`, a number for each pair of class and track."""

    pictures: Pictures
    labels: IndexArray
    groups: IndexArray
    class_names: tuple[str, ...]
    copies: int = 0

    @property
    def tracks(self) -> int:
        """How many tracks there are."""
        return len(np.unique(self.groups))


def pools(request: Request) -> Pools:
    """Clean signs, blurred signs of other tracks, and a tenth of the tracks, clean, as the server's validation set.

    The seed draws the tracks. No photograph, nor another frame of its track, is in two of the three. The global test set
    are the clients' clean test parts, as the paper has it for CURE-TSR. Features are standardised for each channel by the
    mean and standard deviation of the validation photographs: those are in nobody's train or test part.
    """
    options = request.options or SignsOptions()
    signs = load_signs(request, options.size)
    role = roles(signs.labels, signs.groups, request.seed)
    validation, clean, sharp = (
        np.flatnonzero(role == which) for which in (VALIDATION, CLEAN, BLURRED)
    )
    unsharp = blurred(signs.pictures[sharp], options.level)
    kept = distinct(unsharp)  # blur can make two nearly plain pictures equal
    mean, std = channel_statistics(signs.pictures[validation])

    def examples(pictures: Pictures, rows: IndexArray) -> Examples:
        return Examples(
            torch.from_numpy(standardised(pictures, mean, std)),
            torch.from_numpy(signs.labels[rows]),
        )

    return Pools(
        clean=examples(signs.pictures[clean], clean),
        ambiguous=examples(unsharp[kept], sharp[kept]),
        test=None,
        class_names=signs.class_names,
        clean_groups=signs.groups[clean],
        ambiguous_groups=signs.groups[sharp[kept]],
        validation=examples(signs.pictures[validation], validation),
        whole_groups=True,
        title=f"signs (lens blur {options.level})",
    )


def roles(labels: IndexArray, groups: IndexArray, seed: int) -> IndexArray:
    """For each photograph VALIDATION, CLEAN or BLURRED: one for a whole track.

    A tenth of the tracks is for validation, each class by its share. Half of a class's other tracks are to be blurred; where
    their number is odd, the one left over is clean and blurred by turns, so that the halves stay equal.
    """
    _, first, track_of = np.unique(groups, return_index=True, return_inverse=True)
    classes = labels[first]
    held_out = stratified_sample(
        classes, max(1, len(classes) // HELD_OUT), numpy_stream(seed, "signs", "validation")
    )
    role = np.full(len(classes), CLEAN)
    role[held_out] = VALIDATION
    more_to_blur = False
    for label in np.unique(classes):
        tracks = np.flatnonzero((classes == label) & (role != VALIDATION))
        mixed = numpy_stream(seed, "signs", "halves", int(label)).permutation(tracks)
        half, odd = divmod(len(mixed), 2)
        role[mixed[: half + (odd if more_to_blur else 0)]] = BLURRED
        more_to_blur ^= bool(odd)
    return role[track_of].astype(np.int64)


# Finding and reading --------------------------------------------------------------------------------------------------


def load_signs(request: Request, size: int = SIZE, progress: Progress = silent) -> Signs:
    """The photographs in the data root or the cache, resized; of equal pictures, the first."""
    place = find_signs(request)
    signs = (
        _from_arrays(place, size)
        if place.is_file()
        else _from_folders(place, size, request.cache, progress)
    )
    kept = distinct(signs.pictures)
    copies = len(signs.labels) - len(kept)
    if copies:
        signs = Signs(
            signs.pictures[kept], signs.labels[kept], signs.groups[kept], signs.class_names, copies
        )
    if signs.tracks < FEWEST_TRACKS or len(np.unique(signs.labels)) < 2:
        raise DataError(
            f"{place} has {signs.tracks} tracks of {len(np.unique(signs.labels))} classes: give at least {FEWEST_TRACKS} "
            "tracks and 2 classes, so that there are tracks to hold out, to blur and to leave as they are"
        )
    return signs


def files(request: Request) -> list[Path]:
    """The one place the photographs are in."""
    return [find_signs(request)]


def find_signs(request: Request) -> Path:
    """The .npz file, or the folder with a folder for each class; a DataError if there is none, or more than one."""
    if request.root is not None and request.root.is_file():
        _check_archive(request.root)
        return request.root
    searches: list[tuple[Path | None, Callable[[Path], list[Path]]]] = [
        (request.root, _named_candidates),
        (request.root, _other_candidates),
        (request.cache, _named_candidates),
    ]
    for place, candidates in searches:
        found = candidates(place) if place is not None else []
        if len(found) > 1:
            listed = ", ".join(str(path) for path in found)
            raise DataError(
                f"several places have traffic signs: {listed}. Name one of them as the data root"
            )
        if found:
            return found[0]
    raise not_found("photographs of traffic signs were", request, SOURCE.how_to_get)


def _named_candidates(place: Path) -> list[Path]:
    """What is called signs: it is taken before anything else."""
    archive = place / "signs.npz"
    if archive.is_file():
        _check_archive(archive)
    return [*([archive] if archive.is_file() else []), *(_other_candidates(place / "signs"))]


def _other_candidates(place: Path) -> list[Path]:
    """Archives with the three arrays, and folders in GTSRB's layout."""
    archives = [path for path in sorted(place.glob("*.npz")) if not _missing_arrays(path)]
    layouts = [place / below for below in GTSRB_FOLDERS if len(_class_folders(place / below)) > 1]
    # Where upper and lower case are one, two of the names can be one folder.
    return archives + [
        path
        for at, path in enumerate(layouts)
        if not any(path.samefile(other) for other in layouts[:at])
    ]


def _class_folders(place: Path) -> list[Path]:
    """Folders that have frames in them, by number if they are numbers."""
    if not place.is_dir():
        return []
    folders = [path for path in place.iterdir() if path.is_dir() and not path.name.startswith(".")]
    classes = [
        folder for folder in folders if any(FRAME.fullmatch(file.name) for file in folder.iterdir())
    ]
    numbered = all(folder.name.isdecimal() for folder in classes)
    return sorted(classes, key=lambda folder: (int(folder.name) if numbered else 0, folder.name))


def _missing_arrays(path: Path) -> list[str]:
    """Which of the three arrays a file lacks; only its directory is read."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            return [name for name in ARRAYS if name not in archive.files]
    except (
        *UNREADABLE_ARCHIVE,
        TypeError,
        AttributeError,
    ):  # the last two: a lone array is no archive
        return list(ARRAYS)


def _check_archive(path: Path) -> None:
    missing = _missing_arrays(path)
    if missing:
        raise DataError(
            f"{path} has no array {' and no array '.join(missing)}: give an .npz file with x (uint8 [n, height, width, 3]), "
            "y and track (whole numbers [n])"
        )


def _from_arrays(path: Path, size: int) -> Signs:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            pictures, labels, tracks = (archive[name] for name in ARRAYS)
            names = archive["names"] if "names" in archive.files else None
    except UNREADABLE_ARCHIVE as error:
        raise DataError(
            f"{path} cannot be read ({error}): write it again, without Python objects in it"
        ) from None
    if (
        pictures.dtype != np.uint8
        or pictures.ndim != 4
        or pictures.shape[3] != 3
        or 0 in pictures.shape
    ):
        raise DataError(
            f"{path}: x is {pictures.dtype} {list(pictures.shape)}: give uint8 [n, height, width, 3]"
        )
    for name, column in (("y", labels), ("track", tracks)):
        if column.shape != pictures.shape[:1] or column.dtype.kind not in "iu" or column.min() < 0:
            raise DataError(
                f"{path}: {name} is {column.dtype} {list(column.shape)}: give a whole number from 0 up for each of the "
                f"{len(pictures)} pictures"
            )
    classes, numbers = np.unique(labels, return_inverse=True)
    class_names = _class_names(path, classes.astype(np.int64), names)
    return Signs(
        resized(pictures, size), numbers.astype(np.int64), _groups(numbers, tracks), class_names
    )


def _class_names(
    path: Path, classes: IndexArray, names: npt.NDArray[Any] | None
) -> tuple[str, ...]:
    if names is None:
        return tuple(str(label) for label in classes.tolist())
    if names.ndim != 1 or names.dtype.kind != "U" or len(names) <= classes[-1]:
        raise DataError(
            f"{path}: names is {names.dtype} {list(names.shape)}: give a text for each label from 0 to {classes[-1]}"
        )
    return tuple(str(name) for name in names[classes])


def _from_folders(place: Path, size: int, cache: Path, progress: Progress) -> Signs:
    files, labels, tracks = [], [], []
    folders = _class_folders(place)
    for label, folder in enumerate(folders):
        for file in sorted(folder.iterdir()):
            frame = FRAME.fullmatch(file.name)
            if frame:
                files.append(file)
                labels.append(label)
                tracks.append(int(frame[1]))
            elif file.suffix.lower() in PICTURE_ENDINGS and not file.name.startswith("."):
                raise DataError(
                    f"{file}: its name does not say its track; call pictures TRACK_FRAME, as in 00003_00017.ppm"
                )
    pictures = cached_pictures(files, cache / "decoded-signs", "signs", size, progress)
    numbers = np.array(labels, dtype=np.int64)
    return Signs(
        pictures,
        numbers,
        _groups(numbers, np.array(tracks, dtype=np.int64)),
        tuple(folder.name for folder in folders),
    )


def _groups(labels: npt.NDArray[Any], tracks: npt.NDArray[Any]) -> IndexArray:
    """A number for each pair of class and track: GTSRB counts its tracks anew in each class."""
    pairs = np.stack([labels.astype(np.int64), tracks.astype(np.int64)], axis=1)
    return np.unique(pairs, axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)


def prepare(preparation: Preparation) -> list[str]:
    """Say what was found; photographs in folders are decoded and kept in the cache."""
    options = preparation.request.options or SignsOptions()
    signs = load_signs(preparation.request, options.size, preparation.progress)
    counts = f"{len(signs.labels):,} photographs of {len(signs.class_names)} kinds of sign, in {signs.tracks:,} tracks"
    told = [f"signs: {find_signs(preparation.request)}", counts]
    return told + (
        [f"{signs.copies:,} copies of other photographs are left out"] if signs.copies else []
    )


SOURCE = Source(
    name="signs",
    line="traffic signs of your own (such as GTSRB), half of them made ambiguous by lens blur",
    how_to_get="Get GTSRB's training images from benchmark.ini.rub.de (the archive called GTSRB_Final_Training_Images or "
    "GTSRB-Training_fixed), unpack them, and name the folder with --data-root or UDJFL_DATA: it has a folder for each class "
    "with files TRACK_FRAME.ppm. Or name an .npz file, or a folder with one, that has x (uint8 [n, height, width, 3]), y and "
    "track (whole numbers [n]) and perhaps names",
    pools=pools,
    options=SignsOptions,
    partition="shards:size=60",
    files=files,
    prepare=prepare,
    to_pixels=for_display,
)
