"""Dirty digits: a small stand-in for Dirty-MNIST that comes with the package.

The clean images are scikit-learn's 8x8 handwritten digits. The ambiguous ones are mixtures of some
of those digits, the sources, generated once (`_ambiguous_digits.py` has the recipe and its
citation) and stored with ten labels each, drawn from the predictions of an ensemble. Sources are
never clean examples, so no client is tested on a parent of what another one trained on.
"""

from dataclasses import replace
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from udjfl.data._label_probabilities import normalise
from udjfl.data.federation import Examples
from udjfl.data.partition import Labels
from udjfl.data.source import Pools, Request, Source
from udjfl.data.split import stratified_sample
from udjfl.errors import DataError
from udjfl.seeds import numpy_stream

STORED = "dirty_digits.npz"
TEST_SIZE = 300
CLASSES = 10
BRIGHTEST = 16  # scikit-learn's digits have whole-number pixels from 0 to 16


def load_pools(request: Request) -> Pools:
    """Return 1,000 clean digits, the ambiguous ones with one label each, and 300 for testing.

    The validation set is the 497 sources of the mixtures, which are in no client's data. The seed
    decides which digits are held out for testing and which of its ten labels each ambiguous image
    gets. Features are [1, 8, 8] images, standardised by the mean and standard deviation of all
    pixels of the sources. The label probabilities of ambiguous images are the ensemble's, which
    the ten labels were drawn from; the others' labels are certain.
    """
    seed, stored = request.seed, load_stored()
    images, labels = load_handwritten()
    sources = stored["sources"].astype(np.int64)
    mean, std = _pixel_statistics()

    def examples(pixels: npt.NDArray[Any], answers: Labels) -> Examples:
        x = ((pixels / BRIGHTEST - mean) / std).astype(np.float32)[:, None]
        y = torch.from_numpy(answers.astype(np.int64))
        return Examples(torch.from_numpy(x), y).with_certain_labels(CLASSES)

    clean = np.setdiff1d(np.arange(len(images)), sources)
    test_stream = numpy_stream(seed, "dirty-digits", "test")
    test = clean[stratified_sample(labels[clean], TEST_SIZE, test_stream)]
    clean = np.setdiff1d(clean, test)
    count, labels_per_image = stored["labels"].shape
    drawn = numpy_stream(seed, "dirty-digits", "labels").integers(labels_per_image, size=count)
    ambiguous = examples(stored["images"], stored["labels"][np.arange(count), drawn])
    return Pools(
        clean=examples(images[clean], labels[clean]),
        ambiguous=replace(ambiguous, label_probabilities=normalise(stored["probabilities"])),
        test=examples(images[test], labels[test]),
        class_names=tuple(str(digit) for digit in range(CLASSES)),
        clean_groups=clean,
        ambiguous_groups=len(images) + np.arange(count),
        validation=examples(images[sources], labels[sources]),
    )


@cache
def load_stored() -> dict[str, npt.NDArray[Any]]:
    """Load the arrays of the package's file; `scripts/make_dirty_digits.py` describes them."""
    file = files("udjfl.data.sources").joinpath(STORED)
    if not file.is_file():
        raise DataError(f"the package's file data/sources/{STORED} is missing: install udjfl again")
    with file.open("rb") as opened, np.load(opened) as arrays:
        return dict(arrays)


@cache
def load_handwritten() -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Load scikit-learn's digits: images [1797, 8, 8] and labels."""
    # Imported here because scikit-learn takes a second to import and only this source needs it.
    from sklearn.datasets import load_digits

    digits = load_digits()
    return digits.images, digits.target


def _pixel_statistics() -> tuple[float, float]:
    """Return mean and standard deviation of the sources' pixels, scaled to 0 to 1."""
    images, _ = load_handwritten()
    pixels = images[load_stored()["sources"].astype(np.int64)] / BRIGHTEST
    return float(pixels.mean()), float(pixels.std())


def to_pixels(features: torch.Tensor) -> torch.Tensor:
    """Return brightness from 0 to 1."""
    mean, std = _pixel_statistics()
    return (features * std + mean).clamp(0, 1)


SOURCE = Source(
    name="dirty-digits",
    summary="8x8 handwritten digits and ambiguous ones made from them",
    how_to_get="It comes with the package.",
    load_pools=load_pools,
    to_pixels=to_pixels,
)
