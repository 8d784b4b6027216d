"""Digits as scanners of falling quality read them: hospitals with unequal equipment.

The paper's motivating case: one hospital has good machines, others poorer ones, so their data
differ in quality although their patients do not. Here every client reads scikit-learn's 8x8
handwritten digits with a scanner of its own. Client 1's scanner reads them as they are. From it to
the last client quality falls in equal steps: scanner k of N (k from 0 to N - 1) rotates by
`rotation` * k / (N - 1) degrees (its tilt, the same for every digit), blurs by a Gaussian of
standard deviation `blur` * k / (N - 1) pixels, and adds to every pixel of every digit its own
normal noise of standard deviation `noise` * k / (N - 1). Labels are always right: what differs is
how well a digit can be read.

The paper runs no experiment on such data; the sizes of the effects are a choice of this package.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field

from udjfl.data.federation import Examples
from udjfl.data.partition import IndexArray, Labels
from udjfl.data.source import Pools, Request, Source
from udjfl.data.sources._images import scale_for_display
from udjfl.data.sources.dirty_digits import BRIGHTEST, load_handwritten
from udjfl.data.split import stratified_sample
from udjfl.errors import DataError
from udjfl.seeds import numpy_stream
from udjfl.settings import Settings

Pixels: TypeAlias = npt.NDArray[np.float64]

CLIENTS = 5
VALIDATION = 50
MIN_TEST = 100  # of the global test set


class ScannersOptions(Settings):
    """The worst scanner, and the number of digits each scanner reads."""

    rotation: Annotated[
        float, Field(ge=0, le=180, description="tilt of the last client's scanner in degrees")
    ] = 120.0
    blur: Annotated[
        float,
        Field(ge=0, le=8, description="its Gaussian blur: standard deviation in pixels"),
    ] = 0.55
    noise: Annotated[
        float,
        Field(ge=0, le=1, description="its noise: standard deviation, with pixels from 0 to 1"),
    ] = 0.14
    train: Annotated[int, Field(ge=1, description="digits that each client trains on")] = 180
    test: Annotated[int, Field(ge=1, description="digits that each client is tested on")] = 120


def load_pools(request: Request) -> Pools:
    """Return each client's digits as its scanner reads them, and clean ones for the server.

    Every digit is in one place. The seed draws 50 for the server's validation set, then each
    client's in turn, each class by its share; the rest is the global test set. So the digits of a
    client do not depend on how many clients come after it. Features are [1, 8, 8] images,
    standardised by the mean and standard deviation of all pixels of the validation set.
    """
    options = request.options or ScannersOptions()
    clients = request.clients or CLIENTS
    images, labels = load_handwritten()
    pixels = images / BRIGHTEST
    validation, holdings, test = _deal_digits(labels, clients, options, request.seed)
    mean, std = float(pixels[validation].mean()), float(pixels[validation].std())

    def examples(pictures: Pixels, indices: IndexArray) -> Examples:
        x = ((pictures - mean) / std).astype(np.float32)[:, None]
        return Examples(torch.from_numpy(x), torch.from_numpy(labels[indices].astype(np.int64)))

    read = [
        _scan(pixels[held], number, clients, options, request.seed)
        for number, held in enumerate(holdings)
    ]
    held = np.concatenate(holdings)
    return Pools(
        clean=examples(np.concatenate(read), held),
        ambiguous=None,
        test=examples(pixels[test], test),
        class_names=tuple(str(digit) for digit in range(10)),
        clean_groups=held,
        ambiguous_groups=np.empty(0, dtype=np.int64),
        validation=examples(pixels[validation], validation),
        owners=[f"client-{number + 1}" for number, own in enumerate(holdings) for _ in own],
        title=_make_title(options),
        test_share=options.test / (options.train + options.test),
        originals=examples(pixels[held], held),
    )


def _deal_digits(
    labels: Labels, clients: int, options: ScannersOptions, seed: int
) -> tuple[IndexArray, list[IndexArray], IndexArray]:
    """Return the digits of the validation set, of each client, and of the global test set."""
    size = options.train + options.test
    available = len(labels) - VALIDATION - MIN_TEST
    if clients * size > available:
        fewer = available // clients
        train = fewer * options.train // size
        mistake = (
            f"scanners: {clients} clients with {options.train} + {options.test} digits need "
            f"{clients * size:,}; there are {available:,}, besides the server's: "
        )
        remedies = [f"use at most {available // size} clients"] if size <= available else []
        if 0 < train < fewer:
            remedies.append(f"give each fewer, scanners:train={train}:test={fewer - train}")
        raise DataError(mistake + (", or ".join(remedies) or "use fewer clients"))
    stream = numpy_stream(seed, "scanners", "digits")
    left = np.arange(len(labels))
    dealt = []
    for count in (VALIDATION, *[size] * clients):
        dealt.append(left[stratified_sample(labels[left], count, stream)])
        left = np.setdiff1d(left, dealt[-1])
    return dealt[0], dealt[1:], left


def _scan(pixels: Pixels, number: int, clients: int, options: ScannersOptions, seed: int) -> Pixels:
    """Return digits [n, 8, 8] as scanner `number`, from 0, reads them; pixels from 0 to 1."""
    level = number / max(1, clients - 1)
    noise = numpy_stream(seed, "scanners", "noise", number).standard_normal(pixels.shape)
    return degrade(
        pixels, level * options.rotation, level * options.blur, level * options.noise * noise
    )


def degrade(pixels: Pixels, rotation: float, blur: float, noise: Any = 0.0) -> Pixels:
    """Rotate digits [n, 8, 8] about their centre, blur them, add the noise, and clip to 0 to 1.

    Rotation is in degrees, anticlockwise; what comes in from outside is background. At 0, 0, 0
    nothing changes.
    """
    # Imported here, as in dirty_digits.py: only this source needs it.
    from scipy import ndimage

    rotated = pixels
    if rotation:  # by 0 degrees, interpolation would change the last digits
        # Cubic splines: linear interpolation would blur too, at 30 degrees but not at 90.
        rotated = ndimage.rotate(pixels, rotation, axes=(1, 2), reshape=False, order=3)
    blurred = ndimage.gaussian_filter(rotated, sigma=(0, blur, blur), mode="constant")
    clipped: Pixels = np.clip(blurred + noise, 0.0, 1.0)
    return clipped


def _make_title(options: ScannersOptions) -> str | None:
    """Return a title that states the degradation, None for the default one."""
    usual = ScannersOptions()
    names = ("rotation", "blur", "noise")
    if all(getattr(options, name) == getattr(usual, name) for name in names):
        return None
    return f"scanners ({', '.join(f'{name} {getattr(options, name):g}' for name in names)})"


SOURCE = Source(
    name="scanners",
    summary="8x8 handwritten digits as scanners of falling quality read them",
    how_to_get="It comes with the package.",
    load_pools=load_pools,
    options=ScannersOptions,
    clients=CLIENTS,
    partition="natural",
    to_pixels=scale_for_display,
)
