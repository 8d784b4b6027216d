"""Dirty digits: a small stand-in for Dirty-MNIST that comes with the package, so nothing is downloaded.

The clean images are scikit-learn's 8x8 handwritten digits. The ambiguous ones are mixtures of some of those digits, the
sources, made once (`ambiguous.py` has the recipe and its citation) and stored with ten labels each, drawn from how an
ensemble reads them. Sources are never clean examples, so nobody is tested on a parent of what somebody trained on.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from udjfl.data.federation import Examples, Pools
from udjfl.data.partition import Labels
from udjfl.data.source import Request, Source
from udjfl.data.split import stratified_sample
from udjfl.errors import DataError
from udjfl.seeds import numpy_stream

STORED = "dirty_digits.npz"
TEST_SIZE = 300
BRIGHTEST = 16  # scikit-learn's digits have whole-number pixels from 0 to 16


def pools(request: Request) -> Pools:
    """1,000 clean digits, the ambiguous ones with one of their ten labels each, and 300 other clean digits for testing.

    The 497 sources of the mixtures, being in nobody's data themselves, are the server's validation set.
    The seed decides which digits are held out for testing and which label each ambiguous image gets. Features are
    [1, 8, 8] images, standardised by the mean and standard deviation of all pixels of the sources.
    """
    seed, stored = request.seed, _stored()
    images, labels = _handwritten()
    sources = stored["sources"].astype(np.int64)
    mean, std = (images[sources] / BRIGHTEST).mean(), (images[sources] / BRIGHTEST).std()

    def examples(pixels: npt.NDArray[Any], answers: Labels) -> Examples:
        x = ((pixels / BRIGHTEST - mean) / std).astype(np.float32)[:, None]
        return Examples(torch.from_numpy(x), torch.from_numpy(answers.astype(np.int64)))

    clean = np.setdiff1d(np.arange(len(images)), sources)
    held_out = clean[
        stratified_sample(labels[clean], TEST_SIZE, numpy_stream(seed, "dirty-digits", "test"))
    ]
    clean = np.setdiff1d(clean, held_out)
    vague = stored["images"]
    drawn = numpy_stream(seed, "dirty-digits", "labels").integers(
        stored["labels"].shape[1], size=len(vague)
    )
    return Pools(
        clean=examples(images[clean], labels[clean]),
        ambiguous=examples(vague, stored["labels"][np.arange(len(vague)), drawn]),
        test=examples(images[held_out], labels[held_out]),
        class_names=tuple(str(digit) for digit in range(10)),
        clean_groups=clean,
        ambiguous_groups=len(images) + np.arange(len(vague)),
        validation=examples(images[sources], labels[sources]),
    )


@cache
def _stored() -> dict[str, npt.NDArray[Any]]:
    file = files("udjfl.data.sources").joinpath(STORED)
    if not file.is_file():
        raise DataError(f"the package's file data/sources/{STORED} is missing: install udjfl again")
    with file.open("rb") as opened, np.load(opened) as arrays:
        return dict(arrays)


@cache
def _handwritten() -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    # Imported here because scikit-learn takes a second to import and only this source needs it.
    from sklearn.datasets import load_digits

    digits = load_digits()
    return digits.images, digits.target


def to_pixels(features: torch.Tensor) -> torch.Tensor:
    """Brightness from 0 to 1, as in the files."""
    images, _ = _handwritten()
    sources = images[_stored()["sources"].astype(np.int64)] / BRIGHTEST
    return (features * float(sources.std()) + float(sources.mean())).clamp(0, 1)


SOURCE = Source(
    name="dirty-digits",
    line="8x8 handwritten digits and ambiguous ones made from them",
    how_to_get="It comes with the package.",
    pools=pools,
    to_pixels=to_pixels,
)
