"""Traffic signs, sharp and out of focus: the paper's experiment on CURE-TSR, on other photographs.

CURE-TSR is given on request only. This source takes any photographs of traffic signs with labels
and tracks (the frames that a camera took of one sign in passing) and makes the ambiguous half by
lens blur (`_lens_blur.py`). GTSRB's training images are such photographs: Stallkamp, Schlipsing,
Salmen, Igel, "Man vs. computer: Benchmarking machine learning algorithms for traffic sign
recognition", Neural Networks 32, 2012. Results on this source are not results on CURE-TSR.
"""

from pathlib import Path
from typing import Annotated

import numpy as np
import torch
from pydantic import Field

from udjfl.data.federation import Examples
from udjfl.data.partition import IndexArray
from udjfl.data.source import Pools, Preparation, Request, Source
from udjfl.data.sources._images import (
    SIZE,
    Pictures,
    channel_statistics,
    find_distinct,
    scale_for_display,
    standardise,
)
from udjfl.data.sources._lens_blur import blur
from udjfl.data.sources._sign_files import HOW_TO_GET, find_signs, load_signs
from udjfl.data.split import stratified_sample
from udjfl.seeds import numpy_stream
from udjfl.settings import Settings

HELD_OUT = 10  # one track in this many is the server's
VALIDATION, CLEAN, BLURRED = 0, 1, 2


class SignsOptions(Settings):
    """The blur of the ambiguous half, and the size of pictures."""

    level: Annotated[
        int,
        Field(
            ge=1, le=5, description="lens blur of the ambiguous half: 1, soft, to 5, hard to read"
        ),
    ] = 5
    size: Annotated[
        int,
        Field(ge=8, le=256, description="width and height of pictures in pixels, after resizing"),
    ] = SIZE


def load_pools(request: Request) -> Pools:
    """Return clean signs, blurred signs of other tracks, and a clean validation set.

    The seed draws the tracks, a tenth of them for validation. No photograph, nor another frame of
    its track, is in two of the three. The global test set is the clients' clean test parts, as the
    paper has it for CURE-TSR. Features are standardised per channel by mean and standard deviation
    of the validation photographs, which are in no train or test part.
    """
    options = request.options
    signs = load_signs(request, options.size)
    role = assign_roles(signs.labels, signs.groups, request.seed)
    validation, clean, sharp = (
        np.flatnonzero(role == number) for number in (VALIDATION, CLEAN, BLURRED)
    )
    blurred = blur(signs.pictures[sharp], options.level)
    distinct = find_distinct(blurred)  # blur can make two nearly plain pictures equal
    mean, std = channel_statistics(signs.pictures[validation])

    def examples(pictures: Pictures, indices: IndexArray) -> Examples:
        features = torch.from_numpy(standardise(pictures, mean, std))
        return Examples(features, torch.from_numpy(signs.labels[indices]))

    return Pools(
        clean=examples(signs.pictures[clean], clean),
        ambiguous=examples(blurred[distinct], sharp[distinct]),
        test=None,
        class_names=signs.class_names,
        clean_groups=signs.groups[clean],
        ambiguous_groups=signs.groups[sharp[distinct]],
        validation=examples(signs.pictures[validation], validation),
        whole_groups=True,
        title=f"signs (lens blur {options.level})",
    )


def assign_roles(labels: IndexArray, groups: IndexArray, seed: int) -> IndexArray:
    """Return VALIDATION, CLEAN or BLURRED for each photograph, the same for a whole track.

    A tenth of the tracks is for validation, each class by its share. Half of a class's other tracks
    are blurred; where their number is odd, the one left over is clean and blurred by turns, so that
    the halves stay equal.
    """
    _, first, track_of = np.unique(groups, return_index=True, return_inverse=True)
    classes = labels[first]
    stream = numpy_stream(seed, "signs", "validation")
    held_out = stratified_sample(classes, max(1, len(classes) // HELD_OUT), stream)
    role = np.full(len(classes), CLEAN)
    role[held_out] = VALIDATION
    blur_odd_track = False
    for label in np.unique(classes):
        tracks = np.flatnonzero((classes == label) & (role != VALIDATION))
        shuffled = numpy_stream(seed, "signs", "halves", int(label)).permutation(tracks)
        half, odd = divmod(len(shuffled), 2)
        role[shuffled[: half + (odd if blur_odd_track else 0)]] = BLURRED
        blur_odd_track ^= bool(odd)
    return role[track_of].astype(np.int64)


def find_files(request: Request) -> list[Path]:
    """Return the path of the photographs."""
    return [find_signs(request)]


def prepare(preparation: Preparation) -> list[str]:
    """Decode photographs in folders into the cache, and return lines that report what was found."""
    request = preparation.request
    signs = load_signs(request, request.options.size, preparation.on_progress)
    lines = [
        f"signs: {find_signs(request)}",
        f"{len(signs.labels):,} photographs of {len(signs.class_names)} kinds of sign, in "
        f"{signs.tracks:,} tracks",
    ]
    if signs.copies:
        lines.append(f"{signs.copies:,} copies of other photographs are left out")
    return lines


SOURCE = Source(
    name="signs",
    summary="traffic signs of your own (such as GTSRB), half of them made ambiguous by lens blur",
    how_to_get=HOW_TO_GET,
    load_pools=load_pools,
    options=SignsOptions,
    partition="shards:size=60",
    find_files=find_files,
    prepare=prepare,
    to_pixels=scale_for_display,
)
