"""Lens blur: the disc, and what it does to pictures."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch

from udjfl.data.sources import _lens_blur as blur
from udjfl.data.sources._lens_blur import LEVELS, blurred, disc, radius_of
from udjfl.errors import SettingsError


@pytest.mark.parametrize("radius", [0.001, 0.3, 0.5, 1.0, 1.5, 2.2, 3.0, 4.0, 9.7])
def test_the_disc_sums_to_1_and_looks_the_same_from_all_sides(radius):
    kernel = disc(radius)
    assert kernel.dtype == torch.float64
    assert float(kernel.sum()) == pytest.approx(1, abs=1e-12)
    assert torch.equal(kernel, kernel.T)
    assert torch.equal(kernel, kernel.flip(0))
    assert torch.equal(kernel, kernel.flip(1))
    assert float(kernel.min()) >= 0


def test_a_disc_of_radius_1_by_hand():
    # Its area is pi. The centre pixel lies inside: 1. A corner pixel begins at (1/2, 1/2); the arc y = sqrt(1 - x^2) cuts
    # off the integral of y - 1/2 for x from 1/2 to sqrt(3)/2, which is pi/12 - (sqrt(3) - 1)/4. The four sides share the rest.
    corner = math.pi / 12 - (math.sqrt(3) - 1) / 4
    side = (math.pi - 1 - 4 * corner) / 4
    expected = (
        torch.tensor(
            [[corner, side, corner], [side, 1, side], [corner, side, corner]], dtype=torch.float64
        )
        / math.pi
    )
    assert torch.allclose(disc(1.0), expected, atol=1e-3)


def test_a_disc_within_one_pixel_changes_nothing():
    assert disc(0.5).tolist() == [[1.0]]


def test_radii_between_whole_numbers_count():
    # The centre pixel's weight is its area, 1, over the disc's.
    for radius in (1.0, 1.1, 1.5, 2.2, 4.0):
        kernel = disc(radius)
        assert float(kernel[len(kernel) // 2, len(kernel) // 2]) == pytest.approx(
            1 / (math.pi * radius**2), rel=2e-3
        )


@pytest.mark.parametrize("radius", [0, -1, math.nan, math.inf])
def test_a_disc_needs_a_radius(radius):
    with pytest.raises(SettingsError, match="radius"):
        disc(radius)


@pytest.mark.parametrize("level", LEVELS)
def test_a_picture_of_one_colour_stays_as_it_is(level):
    plain = np.empty((2, 28, 28, 3), dtype=np.uint8)
    plain[:] = [0, 131, 255]
    assert np.array_equal(blurred(plain, level), plain)


def test_one_bright_pixel_becomes_the_disc():
    # Level 1, radius 1: 255/pi = 81 stays, the sides get 37 each (0.1452 of 255), the corners 6 (0.0251).
    one = np.zeros((1, 28, 28, 3), dtype=np.uint8)
    one[0, 10, 20, 1] = 255
    after = blurred(one, 1)
    assert after[0, 9:12, 19:22, 1].tolist() == [[6, 37, 6], [37, 81, 37], [6, 37, 6]]
    after[0, 9:12, 19:22, 1] = 0
    assert not after.any(), "nothing reaches other pixels or channels"


def test_edges_go_on_beyond_the_picture():
    # A bright first column at level 1: the column beyond it is as bright, so it loses only what its right side takes.
    edge = np.zeros((1, 28, 28, 3), dtype=np.uint8)
    edge[0, :, 0] = 255
    kernel = disc(1.0)
    after = blurred(edge, 1)
    assert after[0, 5, 0, 0] == round(255 * float(kernel[:, :2].sum()))
    assert after[0, 5, 1, 0] == round(255 * float(kernel[:, 0].sum()))
    assert after[0, 0, 0, 0] == after[0, 5, 0, 0]


def test_each_level_blurs_more():
    images = np.random.default_rng(0).integers(0, 256, (8, 28, 28, 3), dtype=np.uint8)
    contrast = [images.std(), *(blurred(images, level).std() for level in LEVELS)]
    assert all(later < 0.9 * earlier for earlier, later in pairwise(contrast))
    means = [blurred(images, level).mean() for level in LEVELS]
    assert means == pytest.approx([images.mean()] * 5, rel=0.02), (
        "blur moves light, and loses none but at the edges"
    )


def test_a_picture_does_not_depend_on_its_batch(monkeypatch):
    images = np.random.default_rng(1).integers(0, 256, (7, 28, 28, 3), dtype=np.uint8)
    together = blurred(images, 3)
    monkeypatch.setattr(blur, "PICTURES_AT_ONCE", 3)
    assert np.array_equal(blurred(images, 3), together)
    assert np.array_equal(blurred(images[4:5], 3)[0], together[4])


def test_radii_grow_with_the_picture():
    assert [radius_of(level) for level in LEVELS] == [1.0, 1.5, 2.2, 3.0, 4.0]
    assert radius_of(5, 56) == 8.0
    small = np.zeros((1, 8, 8, 3), dtype=np.uint8)
    assert blurred(small, 5).shape == small.shape


@pytest.mark.parametrize("level", [0, 6, -1, 2.5])
def test_other_levels_are_refused(level):
    with pytest.raises(SettingsError, match=r"level is .*: give a whole number from 1 to 5"):
        blurred(np.zeros((1, 28, 28, 3), dtype=np.uint8), level)


def test_the_pictures_given_are_left_alone():
    images = np.random.default_rng(2).integers(0, 256, (2, 28, 28, 3), dtype=np.uint8)
    images.flags.writeable = False
    before = images.copy()
    blurred(images, 5)
    assert np.array_equal(images, before)
