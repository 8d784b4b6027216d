"""Lens blur: what a lens that is out of focus does to a picture, in five levels.

A point becomes a disc, so each pixel becomes the mean of a disc around it. The disc has an exact radius, not a whole
number of pixels: a pixel on its rim counts by the part of it that the disc covers.

    level                          1      2      3      4      5
    radius in pixels at 28x28      1.0    1.5    2.2    3.0    4.0

At level 1 signs only look soft; at level 5 a sign of 28x28 pixels keeps its outline and colours, and hardly anything of
what stands on it. For larger or smaller pictures radii grow and shrink with the side, so a level looks the same.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from udjfl.data.sources._images import BRIGHTEST, SIZE, Pictures
from udjfl.errors import SettingsError

RADII = (1.0, 1.5, 2.2, 3.0, 4.0)  # of levels 1 to 5, in pixels of a picture of 28x28
LEVELS = range(1, len(RADII) + 1)
SUBPIXELS = 64  # a pixel's coverage is counted on a grid of so many points each way
PICTURES_AT_ONCE = 512


def radius_of(level: int, size: int = SIZE) -> float:
    """The radius of the disc in pixels, for pictures with sides of so many pixels."""
    if level not in LEVELS:
        raise SettingsError(
            f"level is {level!r}: give a whole number from {LEVELS[0]} to {LEVELS[-1]}"
        )
    return RADII[level - 1] * size / SIZE


def disc(radius: float) -> Tensor:
    """A square of odd side with the weights of a disc around its centre, in float64; they sum to 1."""
    if not 0 < radius < math.inf:
        raise SettingsError(f"radius is {radius}: give a number above 0")
    reach = max(0, math.ceil(radius - 0.5))  # pixel k lies between k - 1/2 and k + 1/2
    points = (torch.arange((2 * reach + 1) * SUBPIXELS, dtype=torch.float64) + 0.5) / SUBPIXELS - (
        reach + 0.5
    )
    inside = (points[:, None] ** 2 + points[None, :] ** 2 <= radius**2).double()
    covered = functional.avg_pool2d(inside[None], SUBPIXELS)[0]
    if not covered.any():  # a disc too small for the grid
        covered[reach, reach] = 1.0
    return covered / covered.sum()


def blurred(pictures: Pictures, level: int) -> Pictures:
    """The same pictures out of focus. Beyond a picture's edge, its outermost pixels go on."""
    kernel = disc(radius_of(level, min(pictures.shape[1:3])))
    reach = len(kernel) // 2
    weights = kernel.expand(3, 1, -1, -1)
    results = np.empty_like(pictures)
    for start in range(0, len(pictures), PICTURES_AT_ONCE):
        batch = torch.from_numpy(pictures[start : start + PICTURES_AT_ONCE].copy()).permute(
            0, 3, 1, 2
        )
        # float64: rounded to whole numbers, the result then does not depend on the order of the sums.
        edged = functional.pad(batch.double(), (reach,) * 4, mode="replicate")
        means = functional.conv2d(edged, weights, groups=3)
        rounded = means.round().clamp(0, BRIGHTEST).to(torch.uint8)
        results[start : start + PICTURES_AT_ONCE] = rounded.permute(0, 2, 3, 1).numpy()
    return results
