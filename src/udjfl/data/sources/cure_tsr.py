"""CURE-TSR, the paper's second data set: traffic signs, clean and under a simulated challenge.

Temel, Kwon, Prabhushankar, AlRegib, "CURE-TSR: Challenging unreal and real environments for traffic
sign recognition", NeurIPS workshop on machine learning for intelligent transportation systems,
2017. The data set is given on request only. The paper names lens glare, which CURE-TSR does not
have; the authors' code reads lens blur of level 5, the default here.

    Real_Train/ChallengeFree/01_06_00_00_0001.bmp     sequence type, sign type, challenge type,
                                                      challenge level, index
    Real_Train/LensBlur-5/01_06_02_05_0001.bmp        the same photograph, blurred

The authors resize to 28x28 pixels, scale each picture to length 1, and then standardise each of its
channels by the picture's own pixels, which undoes the scaling. So here: resize, then standardise
each channel of each picture by itself. No statistics are shared between pictures.

Differences: the authors split a client's pictures at random, so a photograph can be trained on and
tested on in its two versions; here both have one group number and stay on one side. A tenth of the
photographs is held out for the server. The names do not identify neighbouring frames of a video, so
this source, like the authors, cannot keep them together.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, get_args

import numpy as np
import torch
from pydantic import Field

from udjfl.data.federation import Examples
from udjfl.data.partition import IndexArray, Mask
from udjfl.data.source import (
    OnProgress,
    Pools,
    Preparation,
    Request,
    Source,
    ignore_progress,
)
from udjfl.data.sources._images import (
    Features,
    find_distinct,
    number_pairs,
    read_cached_pictures,
    scale_for_display,
    standardise_each,
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
# In the order of their numbers, from 1, in file names.
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
CHALLENGES: tuple[str, ...] = get_args(Challenge)
CLEAN = "ChallengeFree"
REAL = 1
NAME = re.compile(r"(\d+)_(\d+)_(\d+)_(\d+)_(\d+)\.bmp", re.IGNORECASE)
NOT_DATA = ("thumbs.db", "desktop.ini")  # written by file managers
HELD_OUT = 10  # one photograph in this many is the server's


class CureTsrOptions(Settings):
    """The challenge of the ambiguous half."""

    challenge: Annotated[
        Challenge,
        Field(description="challenge of the ambiguous half, as CURE-TSR's folders call it"),
    ] = "LensBlur"
    level: Annotated[int, Field(ge=1, le=5, description="its level: 1, mild, to 5, severe")] = 5


@dataclass(frozen=True, eq=False)
class Folder:
    """The pictures of one folder.

    features    standardised
    labels      sign types, numbered from 0
    indices     tell photographs of one sign type apart
    """

    features: Features
    labels: IndexArray
    indices: IndexArray

    def take(self, chosen: IndexArray | Mask) -> "Folder":
        """Return some of the pictures."""
        return Folder(self.features[chosen], self.labels[chosen], self.indices[chosen])

    def to_examples(self) -> Examples:
        """Return the pictures as examples."""
        return Examples(torch.from_numpy(self.features), torch.from_numpy(self.labels))


def load_pools(request: Request) -> Pools:
    """Return clean photographs, photographs under the challenge, and a clean validation set.

    The seed draws a tenth of the photographs for validation, each sign type by its share; neither
    version of those is in the pools. Any other photograph may be in both pools, as in the paper,
    with one group number. The global test set is the clients' clean test parts. Of pictures that
    are equal once standardised, only the first is used.
    """
    options = request.options
    tree = find_tree(request)
    folders = [_read_folder(path, request) for path in _find_folders(tree, options)]
    clean, hard = (folder.take(find_distinct(folder.features)) for folder in folders)
    # Both versions of a photograph have one number: same sign type and index.
    columns = zip((clean.labels, clean.indices), (hard.labels, hard.indices), strict=True)
    groups = number_pairs(*(np.concatenate(column) for column in columns))
    clean_groups, hard_groups = np.split(groups, [len(clean.labels)])
    size = max(1, len(clean.labels) // HELD_OUT)
    stream = numpy_stream(request.seed, "cure-tsr", "validation")
    held_out = stratified_sample(clean.labels, size, stream)
    clean_rest = ~np.isin(clean_groups, clean_groups[held_out])
    hard_rest = ~np.isin(hard_groups, clean_groups[held_out])
    if not clean_rest.any() or not hard_rest.any():
        raise DataError(
            f"{tree} has too few photographs to hold one in {HELD_OUT} out; "
            "unpack the data set again"
        )
    return Pools(
        clean=clean.take(clean_rest).to_examples(),
        ambiguous=hard.take(hard_rest).to_examples(),
        test=None,
        class_names=SIGN_TYPES,
        clean_groups=clean_groups[clean_rest],
        ambiguous_groups=hard_groups[hard_rest],
        validation=clean.take(held_out).to_examples(),
        title=f"cure-tsr ({options.challenge} {options.level})",
    )


def find_tree(request: Request) -> Path:
    """Return the folder Real_Train."""
    for place in request.places:
        for below in ("", "CURE-TSR"):
            if (place / below / "Real_Train").is_dir():
                return place / below / "Real_Train"
    raise request.not_found("CURE-TSR (a folder Real_Train) was", SOURCE.how_to_get)


def find_files(request: Request) -> list[Path]:
    """Return the folder Real_Train if it has the two folders that the options need."""
    tree = find_tree(request)
    _find_folders(tree, request.options)
    return [tree]


def _find_folders(tree: Path, options: CureTsrOptions) -> tuple[Path, Path]:
    """Return the clean folder and the challenge's."""
    wanted = tree / CLEAN, tree / f"{options.challenge}-{options.level}"
    missing = [folder.name for folder in wanted if not folder.is_dir()]
    if missing:
        existing = ", ".join(sorted(path.name for path in tree.iterdir() if path.is_dir()))
        raise DataError(
            f"{tree} has no folder {' and no folder '.join(missing)}; the folders there are: "
            f"{existing or 'none'}. Unpack what is missing, or choose a challenge and a level that "
            "are there, as in cure-tsr:challenge=Rain:level=2"
        )
    return wanted


def _read_folder(
    folder: Path, request: Request, on_progress: OnProgress = ignore_progress
) -> Folder:
    files = sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))
    names = [name for name in files if name.lower() not in NOT_DATA]
    if not names:
        raise DataError(f"{folder} is empty: unpack it again")
    parsed = np.array([_parse_name(folder, name) for name in names], dtype=np.int64)
    paths, cache = [folder / name for name in names], request.cache / "cure-tsr"
    pictures = read_cached_pictures(paths, cache, folder.name, on_progress=on_progress)
    return Folder(standardise_each(pictures), parsed[:, 0], parsed[:, 1])


def _parse_name(folder: Path, name: str) -> tuple[int, int]:
    """Return label and index from a file's name, after checking that it belongs in its folder."""
    match = NAME.fullmatch(name)
    if not match:
        raise DataError(
            f"{folder / name}: the name is not sequenceType_signType_challengeType_challengeLevel_"
            "Index.bmp, as in 01_06_02_05_0001.bmp; remove the file from the folder"
        )
    sequence, sign, challenge, level, index = (int(part) for part in match.groups())
    if not 1 <= sign <= len(SIGN_TYPES):
        raise DataError(
            f"{folder / name}: sign type {sign} is not one of 1 to {len(SIGN_TYPES)}; "
            "unpack the data set again"
        )
    title, _, title_level = folder.name.partition("-")
    kind = (0, 0) if title == CLEAN else (1 + CHALLENGES.index(title), int(title_level))
    if (sequence, challenge, level) != (REAL, *kind):
        prefix = "{:02}_{:02}_{:02}_{:02}".format(REAL, sign, *kind)
        raise DataError(
            f"{folder / name} does not belong in {folder.name}, where names begin with {prefix}; "
            "move it away"
        )
    return sign - 1, index


def prepare(preparation: Preparation) -> list[str]:
    """Decode the two folders into the cache and return a line for each."""
    request = preparation.request
    lines = []
    for path in _find_folders(find_tree(request), request.options):
        folder = _read_folder(path, request, preparation.on_progress)
        copies = len(folder.labels) - len(find_distinct(folder.features))
        left_out = f", of which {copies:,} are copies and left out" if copies else ""
        lines.append(
            f"{path}: {len(folder.labels):,} pictures of {len(np.unique(folder.labels))} sign "
            f"types{left_out}"
        )
    return lines


SOURCE = Source(
    name="cure-tsr",
    summary="traffic signs, clean and under a challenge: the paper's second data set, on request",
    how_to_get="CURE-TSR cannot be downloaded from here: ask the OLIVES lab at Georgia Tech for "
    "it, through the request form linked at github.com/olivesgatech/CURE-TSR, unpack "
    "Real_Train/ChallengeFree and Real_Train/LensBlur-5, and name the folder that has Real_Train "
    "(or CURE-TSR/Real_Train) with --data-root or UDJFL_DATA. Without it, the source signs is the "
    "same experiment on photographs that are freely available",
    load_pools=load_pools,
    options=CureTsrOptions,
    partition="shards:size=60",
    find_files=find_files,
    prepare=prepare,
    to_pixels=scale_for_display,
)
