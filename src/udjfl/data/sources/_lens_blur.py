"""Lens blur, the effect of a lens that is out of focus, in five levels.

A point becomes a disc, so each pixel becomes the mean of a disc around it. The radius need not be a
whole number of pixels: a pixel on the rim is weighted by the part of it that the disc covers.

    level                          1      2      3      4      5
    radius in pixels at 28x28      1.0    1.5    2.2    3.0    4.0

At level 1 signs only look soft; at level 5 a sign of 28x28 pixels keeps its outline and colours,
but hardly any of its symbol. Radii scale with the size of the pictures, so a level always looks the
same.
"""

import math

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from udjfl.data.sources._images import BRIGHTEST, SIZE, Pictures
from udjfl.errors import SettingsError

RADII = (1.0, 1.5, 2.2, 3.0, 4.0)  # of levels 1 to 5, in pixels of a picture of 28x28
LEVELS = range(1, len(RADII) + 1)
SUBPIXELS = 64  # points per axis at which the coverage of a pixel is sampled
PICTURES_AT_ONCE = 512


def disc_radius(level: int, size: int = SIZE) -> float:
    """Return the radius of the disc in pixels, for pictures with sides of `size` pixels."""
    if level not in LEVELS:
        raise SettingsError(
            f"level is {level!r}: give a whole number from {LEVELS[0]} to {LEVELS[-1]}"
        )
    return RADII[level - 1] * size / SIZE


def make_disc(radius: float) -> Tensor:
    """Return the weights of a disc, a float64 square of odd side that sums to 1."""
    if not 0 < radius < math.inf:
        raise SettingsError(f"radius is {radius}: give a number above 0")
    reach = max(0, math.ceil(radius - 0.5))  # pixel k lies between k - 1/2 and k + 1/2
    steps = torch.arange((2 * reach + 1) * SUBPIXELS, dtype=torch.float64) + 0.5
    points = steps / SUBPIXELS - (reach + 0.5)
    inside = (points[:, None] ** 2 + points[None, :] ** 2 <= radius**2).double()
    covered = functional.avg_pool2d(inside[None], SUBPIXELS)[0]
    if not covered.any():  # a disc too small for the grid
        covered[reach, reach] = 1.0
    return covered / covered.sum()


def blur(pictures: Pictures, level: int) -> Pictures:
    """Blur pictures. Edges are padded with the outermost pixels."""
    kernel = make_disc(disc_radius(level, min(pictures.shape[1:3])))
    reach = len(kernel) // 2
    weights = kernel.expand(3, 1, -1, -1)
    results = np.empty_like(pictures)
    for start in range(0, len(pictures), PICTURES_AT_ONCE):
        batch = torch.from_numpy(pictures[start : start + PICTURES_AT_ONCE].copy())
        # In float64, so that the order of the sums, which depends on torch and the machine, hardly
        # matters: only a mean halfway between two levels, a few in a million, may be rounded up by
        # one order and down by another.
        padded = functional.pad(batch.permute(0, 3, 1, 2).double(), (reach,) * 4, mode="replicate")
        means = functional.conv2d(padded, weights, groups=3).round().clamp(0, BRIGHTEST)
        results[start : start + PICTURES_AT_ONCE] = (
            means.permute(0, 2, 3, 1).to(torch.uint8).numpy()
        )
    return results
