"""Lens blur: the disc, and its effect on pictures."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch

from udjfl.data.sources import _lens_blur as lens_blur
from udjfl.data.sources._lens_blur import LEVELS, blur, disc_radius, make_disc
from udjfl.errors import SettingsError


@pytest.mark.parametrize("radius", [0.001, 0.3, 0.5, 1.0, 1.5, 2.2, 3.0, 4.0, 9.7])
def test_disc_sums_to_1_and_is_symmetric(radius) -> None:
    kernel = make_disc(radius)
    assert kernel.dtype == torch.float64
    assert float(kernel.sum()) == pytest.approx(1, abs=1e-12)
    assert torch.equal(kernel, kernel.T)
    assert torch.equal(kernel, kernel.flip(0))
    assert torch.equal(kernel, kernel.flip(1))
    assert float(kernel.min()) >= 0


def test_disc_of_radius_1_by_hand() -> None:
    # Its area is pi. The centre pixel lies inside: 1. A corner pixel begins at (1/2, 1/2); the arc
    # y = sqrt(1 - x^2) cuts off the integral of y - 1/2 for x from 1/2 to sqrt(3)/2, which is pi/12
    # - (sqrt(3) - 1)/4. The four sides share the rest.
    corner = math.pi / 12 - (math.sqrt(3) - 1) / 4
    side = (math.pi - 1 - 4 * corner) / 4
    expected = (
        torch.tensor(
            [[corner, side, corner], [side, 1, side], [corner, side, corner]], dtype=torch.float64
        )
        / math.pi
    )
    assert torch.allclose(make_disc(1.0), expected, atol=1e-3)


def test_disc_within_one_pixel_changes_nothing() -> None:
    assert make_disc(0.5).tolist() == [[1.0]]


def test_weight_of_the_centre_depends_on_the_exact_radius() -> None:
    # The centre pixel's weight is its area, 1, over the disc's.
    for radius in (1.0, 1.1, 1.5, 2.2, 4.0):
        kernel = make_disc(radius)
        assert float(kernel[len(kernel) // 2, len(kernel) // 2]) == pytest.approx(
            1 / (math.pi * radius**2), rel=2e-3
        )


@pytest.mark.parametrize("radius", [0, -1, math.nan, math.inf])
def test_radius_must_be_positive_and_finite(radius) -> None:
    with pytest.raises(SettingsError, match="radius"):
        make_disc(radius)


@pytest.mark.parametrize("level", LEVELS)
def test_picture_of_one_colour_is_not_changed(level) -> None:
    plain = np.empty((2, 28, 28, 3), dtype=np.uint8)
    plain[:] = [0, 131, 255]
    assert np.array_equal(blur(plain, level), plain)


def test_one_bright_pixel_becomes_the_disc() -> None:
    # Level 1, radius 1: 255/pi = 81 stays, the sides get 37 each (0.1452 of 255), the corners 6
    # (0.0251).
    one = np.zeros((1, 28, 28, 3), dtype=np.uint8)
    one[0, 10, 20, 1] = 255
    after = blur(one, 1)
    assert after[0, 9:12, 19:22, 1].tolist() == [[6, 37, 6], [37, 81, 37], [6, 37, 6]]
    after[0, 9:12, 19:22, 1] = 0
    assert not after.any(), "nothing reaches other pixels or channels"


def test_edges_are_padded_with_the_outermost_pixels() -> None:
    # A bright first column at level 1: the column beyond it is as bright, so it loses only what its
    # right side takes.
    edge = np.zeros((1, 28, 28, 3), dtype=np.uint8)
    edge[0, :, 0] = 255
    kernel = make_disc(1.0)
    after = blur(edge, 1)
    assert after[0, 5, 0, 0] == round(255 * float(kernel[:, :2].sum()))
    assert after[0, 5, 1, 0] == round(255 * float(kernel[:, 0].sum()))
    assert after[0, 0, 0, 0] == after[0, 5, 0, 0]


def test_each_level_blurs_more() -> None:
    images = np.random.default_rng(0).integers(0, 256, (8, 28, 28, 3), dtype=np.uint8)
    contrast = [images.std(), *(blur(images, level).std() for level in LEVELS)]
    assert all(later < 0.9 * earlier for earlier, later in pairwise(contrast))
    means = [blur(images, level).mean() for level in LEVELS]
    assert means == pytest.approx([images.mean()] * 5, rel=0.02), (
        "blur moves light, and loses none but at the edges"
    )


def test_result_does_not_depend_on_the_batch(monkeypatch) -> None:
    images = np.random.default_rng(1).integers(0, 256, (7, 28, 28, 3), dtype=np.uint8)
    together = blur(images, 3)
    monkeypatch.setattr(lens_blur, "PICTURES_AT_ONCE", 3)
    assert np.array_equal(blur(images, 3), together)
    assert np.array_equal(blur(images[4:5], 3)[0], together[4])


def test_radii_scale_with_the_picture() -> None:
    assert [disc_radius(level) for level in LEVELS] == [1.0, 1.5, 2.2, 3.0, 4.0]
    assert disc_radius(5, 56) == 8.0
    small = np.zeros((1, 8, 8, 3), dtype=np.uint8)
    assert blur(small, 5).shape == small.shape


@pytest.mark.parametrize("level", [0, 6, -1, 2.5])
def test_other_levels_are_refused(level) -> None:
    with pytest.raises(SettingsError, match=r"level is .*: give a whole number from 1 to 5"):
        blur(np.zeros((1, 28, 28, 3), dtype=np.uint8), level)


def test_input_is_not_changed() -> None:
    images = np.random.default_rng(2).integers(0, 256, (2, 28, 28, 3), dtype=np.uint8)
    images.flags.writeable = False
    before = images.copy()
    blur(images, 5)
    assert np.array_equal(images, before)
