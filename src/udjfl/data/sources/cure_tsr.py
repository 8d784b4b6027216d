"""CURE-TSR, the paper's second data set: traffic signs, as photographed and under a simulated challenge.

Temel, Kwon, Prabhushankar, AlRegib, "CURE-TSR: Challenging unreal and real environments for traffic sign recognition",
NeurIPS workshop on machine learning for intelligent transportation systems, 2017. The data set is given on request only.
The paper speaks of lens glare, which CURE-TSR does not have; the authors' code reads lens blur of level 5, the default here.

    Real_Train/ChallengeFree/01_06_00_00_0001.bmp     sequence type, sign type, challenge type, challenge level, index
    Real_Train/LensBlur-5/01_06_02_05_0001.bmp        the same photograph, blurred

The authors resize to 28x28 pixels, scale each picture to length 1, and then bring each of its channels to mean 0 and
standard deviation 1 by the picture's own pixels, which undoes the scaling before it. So here: resize, then standardise each
channel of each picture by itself. No number of one picture reaches another.

What differs: the authors split the pictures of a client at random, so a photograph can be trained on and tested on in its
two versions; here both carry one group number and stay on one side. A tenth of the photographs is held out for the server.
Neighbouring frames of a video are different photographs with nothing in their names that tells: like the authors, this
source cannot keep them together.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field

from udjfl.data.federation import Examples, Pools
from udjfl.data.partition import IndexArray, Mask
from udjfl.data.source import Preparation, Progress, Request, Source, not_found, silent
from udjfl.data.sources._images import (
    Features,
    cached_pictures,
    distinct,
    for_display,
    standardised_each,
)
from udjfl.data.split import stratified_sample
from udjfl.errors import DataError
from udjfl.seeds import numpy_stream
from udjfl.settings import Settings

SIGN_TYPES = (
    "speed_limit",
    "goods_vehicles",
    "no_overtaking",
    "no_stopping",
    "no_parking",
    "stop",
    "bicycle",
    "hump",
    "no_left",
    "no_right",
    "priority_to",
    "no_entry",
    "yield",
    "parking",
)
Challenge = Literal[
    "Decolorization",
    "LensBlur",
    "CodecError",
    "Darkening",
    "DirtyLens",
    "Exposure",
    "GaussianBlur",
    "Noise",
    "Rain",
    "Shadow",
    "Snow",
    "Haze",
]
# The numbers that stand for the challenges in file names.
CHALLENGE_TYPES = {
    "Decolorization": 1,
    "LensBlur": 2,
    "CodecError": 3,
    "Darkening": 4,
    "DirtyLens": 5,
    "Exposure": 6,
    "GaussianBlur": 7,
    "Noise": 8,
    "Rain": 9,
    "Shadow": 10,
    "Snow": 11,
    "Haze": 12,
}
CLEAN = "ChallengeFree"
REAL = 1
NAME = re.compile(r"(\d+)_(\d+)_(\d+)_(\d+)_(\d+)\.bmp", re.IGNORECASE)
NOT_DATA = ("thumbs.db", "desktop.ini")  # what file managers leave behind
HELD_OUT = 10  # one photograph in so many is the server's


class CureTsrOptions(Settings):
    """Which of CURE-TSR's challenges the ambiguous half is under."""

    challenge: Annotated[
        Challenge,
        Field(description="challenge of the ambiguous half, as CURE-TSR's folders call it"),
    ] = "LensBlur"
    level: Annotated[int, Field(ge=1, le=5, description="its level: 1, mild, to 5, severe")] = 5


@dataclass(frozen=True, eq=False)
class Folder:
    """The pictures of one folder, standardised: sign types from 0 up, and the index that tells photographs of a type apart."""

    features: Features
    labels: IndexArray
    indices: IndexArray

    def take(self, rows: IndexArray | Mask) -> Folder:
        """Some of them."""
        return Folder(self.features[rows], self.labels[rows], self.indices[rows])


def pools(request: Request) -> Pools:
    """Clean photographs and photographs under the challenge; a tenth of the photographs, clean, for the server's validation.

    The seed draws the tenth, each sign type by its share; neither version of those is in the pools. Any other photograph may
    be in both pools, as the paper draws them, under one group number. The global test set are the clients' clean test
    parts. Of pictures that are equal once they are standardised, the first counts.
    """
    options = request.options or CureTsrOptions()
    tree = find_tree(request)
    folders = [_read(folder, request, silent) for folder in _folders(tree, options)]
    clean, hard = (folder.take(distinct(folder.features)) for folder in folders)
    clean_groups, hard_groups = photographs(clean, hard)
    size = max(1, len(clean.labels) // HELD_OUT)
    held_out = stratified_sample(
        clean.labels, size, numpy_stream(request.seed, "cure-tsr", "validation")
    )
    spared = ~np.isin(clean_groups, clean_groups[held_out])
    hard_spared = ~np.isin(hard_groups, clean_groups[held_out])
    if not spared.any() or not hard_spared.any():
        raise DataError(
            f"{tree} has too few photographs to hold one in {HELD_OUT} out; unpack the data set again"
        )
    return Pools(
        clean=_examples(clean.take(spared)),
        ambiguous=_examples(hard.take(hard_spared)),
        test=None,
        class_names=SIGN_TYPES,
        clean_groups=clean_groups[spared],
        ambiguous_groups=hard_groups[hard_spared],
        validation=_examples(clean.take(held_out)),
        title=f"cure-tsr ({options.challenge} {options.level})",
    )


def photographs(clean: Folder, hard: Folder) -> tuple[IndexArray, IndexArray]:
    """A number for each photograph, the same for its two versions: those with the same sign type and index."""
    pairs = [np.stack([folder.labels, folder.indices], axis=1) for folder in (clean, hard)]
    numbers = (
        np.unique(np.concatenate(pairs), axis=0, return_inverse=True)[1]
        .reshape(-1)
        .astype(np.int64)
    )
    return numbers[: len(clean.labels)], numbers[len(clean.labels) :]


def find_tree(request: Request) -> Path:
    """The folder Real_Train."""
    for place in (request.root, request.cache):
        for below in ("", "CURE-TSR"):
            if place is not None and (place / below / "Real_Train").is_dir():
                return place / below / "Real_Train"
    raise not_found("CURE-TSR (a folder Real_Train) was", request, SOURCE.how_to_get)


def files(request: Request) -> list[Path]:
    """The folder Real_Train, if the two folders of it that would be read are there."""
    tree = find_tree(request)
    _folders(tree, request.options or CureTsrOptions())
    return [tree]


def _folders(tree: Path, options: CureTsrOptions) -> tuple[Path, Path]:
    """The clean folder and the challenge's."""
    wanted = tree / CLEAN, tree / f"{options.challenge}-{options.level}"
    missing = [folder.name for folder in wanted if not folder.is_dir()]
    if missing:
        there = ", ".join(sorted(path.name for path in tree.iterdir() if path.is_dir())) or "none"
        raise DataError(
            f"{tree} has no folder {' and no folder '.join(missing)}; the folders there are: {there}. Unpack what is missing, "
            "or choose a challenge and a level that are there, as in cure-tsr:challenge=Rain:level=2"
        )
    return wanted


def _read(folder: Path, request: Request, progress: Progress) -> Folder:
    names = sorted(path.name for path in folder.iterdir() if _is_data(path))
    if not names:
        raise DataError(f"{folder} is empty: unpack it again")
    parsed = np.array([_label_and_index(folder, name) for name in names], dtype=np.int64)
    pictures = cached_pictures(
        [folder / name for name in names],
        request.cache / "cure-tsr",
        folder.name,
        progress=progress,
    )
    return Folder(standardised_each(pictures), parsed[:, 0], parsed[:, 1])


def _is_data(path: Path) -> bool:
    return not path.name.startswith(".") and path.name.lower() not in NOT_DATA


def _label_and_index(folder: Path, name: str) -> tuple[int, int]:
    """What a file's name says, if it belongs where it is."""
    fits = NAME.fullmatch(name)
    if not fits:
        raise DataError(
            f"{folder / name}: the name is not sequenceType_signType_challengeType_challengeLevel_Index.bmp, as in "
            "01_06_02_05_0001.bmp; take the file out of the folder"
        )
    sequence, sign, challenge, level, index = (int(part) for part in fits.groups())
    if not 1 <= sign <= len(SIGN_TYPES):
        raise DataError(
            f"{folder / name}: sign type {sign} is not one of 1 to {len(SIGN_TYPES)}; unpack the data set again"
        )
    kind, _, at = folder.name.partition("-")
    expected = (REAL, 0, 0) if kind == CLEAN else (REAL, CHALLENGE_TYPES[kind], int(at))
    if (sequence, challenge, level) != expected:
        belongs = "{:02}_{:02}_{:02}_{:02}".format(expected[0], sign, *expected[1:])
        raise DataError(
            f"{folder / name} does not belong in {folder.name}, where names begin with {belongs}; move it away"
        )
    return sign - 1, index


def _examples(folder: Folder) -> Examples:
    return Examples(torch.from_numpy(folder.features), torch.from_numpy(folder.labels))


def prepare(preparation: Preparation) -> list[str]:
    """Decode the two folders, keep them in the cache, and say what is in them."""
    request = preparation.request
    told = []
    for folder in _folders(find_tree(request), request.options or CureTsrOptions()):
        read = _read(folder, request, preparation.progress)
        copies = len(read.labels) - len(distinct(read.features))
        left_out = f", of which {copies:,} are copies and left out" if copies else ""
        told.append(
            f"{folder}: {len(read.labels):,} pictures of {len(np.unique(read.labels))} sign types{left_out}"
        )
    return told


SOURCE = Source(
    name="cure-tsr",
    line="traffic signs, clean and under a challenge: the paper's second data set, given on request",
    how_to_get="CURE-TSR cannot be downloaded from here: ask the OLIVES lab at Georgia Tech for it, through the request form "
    "linked at github.com/olivesgatech/CURE-TSR, unpack Real_Train/ChallengeFree and Real_Train/LensBlur-5, and name the "
    "folder that has Real_Train (or CURE-TSR/Real_Train) with --data-root or UDJFL_DATA. Without it, the source signs is the "
    "same experiment on photographs anyone can have",
    pools=pools,
    options=CureTsrOptions,
    partition="shards:size=60",
    files=files,
    prepare=prepare,
    to_pixels=for_display,
)
