"""Federations for measure_uncertainty.py: generated ones with known label entropies, and real ones.

Generated clients differ in how far their features decide the label. The entropy of the label given
the features is known for every example, hence its mean over a client's train part is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

import udjfl
from udjfl.errors import DataError
from udjfl.seeds import numpy_stream
from udjfl.uncertainty import entropy

Floats = npt.NDArray[np.float64]
N_TEST = 10  # not used, but a federation has test parts


@dataclass(frozen=True)
class Measured:
    """A federation, its clients' true mean label entropies, and their true order, if known."""

    federation: udjfl.Federation
    truth: Floats | None = None
    order: Floats | None = None


@dataclass(frozen=True)
class Dataset:
    """Federations by seed; `is_large` leaves out the slowest estimators."""

    name: str
    make: Callable[[int], Measured]
    what: str
    is_large: bool = False


def softmax(logits: Floats) -> Floats:
    exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
    return exponentials / exponentials.sum(axis=1, keepdims=True)


def mean_entropy(probabilities: Floats) -> float:
    return float(entropy(torch.from_numpy(probabilities)).mean())


def logistic(
    seed: int,
    sizes: Sequence[int],
    n_features: int = 10,
    prior: Sequence[float] = (1 / 3, 1 / 3, 1 / 3),
) -> Measured:
    """Draw labels from a linear softmax of normal features; clients differ in its steepness."""
    stream = numpy_stream(seed, "logistic", n_features, *sizes)
    weights = stream.normal(size=(n_features, len(prior))) * np.sqrt(2 / n_features)

    def draw(steepness: float, n: int) -> tuple[Floats, npt.NDArray[np.int64], Floats]:
        x = stream.normal(size=(n, n_features))
        p = softmax(steepness * x @ weights + np.log(prior))
        y = (p.cumsum(axis=1) < stream.random((n, 1))).sum(axis=1).clip(max=len(prior) - 1)
        return x, y, p

    return _federate([draw(s, n + N_TEST) for s, n in zip((8, 4, 2, 1, 0.5), sizes, strict=True)])


def mixture(seed: int, sizes: Sequence[int], n_features: int = 10, n_classes: int = 4) -> Measured:
    """Draw normal features around the centre of their class; clients differ in its distance."""
    stream = numpy_stream(seed, "mixture", n_features, *sizes)
    centres = stream.normal(size=(n_classes, n_features))
    centres /= np.linalg.norm(centres, axis=1, keepdims=True)

    def draw(distance: float, n: int) -> tuple[Floats, npt.NDArray[np.int64], Floats]:
        y = stream.integers(n_classes, size=n)
        x = distance * centres[y] + stream.normal(size=(n, n_features))
        squares = ((x[:, None] - distance * centres) ** 2).sum(axis=2)
        return x, y, softmax(-squares / 2)

    return _federate([draw(d, n + N_TEST) for d, n in zip((6, 4, 3, 2, 1), sizes, strict=True)])


def _federate(drawn: Sequence[tuple[Floats, npt.NDArray[np.int64], Floats]]) -> Measured:
    clients = {
        f"client-{number}": (x[N_TEST:], y[N_TEST:], x[:N_TEST], y[:N_TEST])
        for number, (x, y, _) in enumerate(drawn, start=1)
    }
    first = drawn[0][0]
    names = [str(number) for number in range(drawn[0][2].shape[1])]
    federation = udjfl.Federation.from_arrays(
        clients, test=(first[:N_TEST] + 99, np.zeros(N_TEST, dtype=int)), class_names=names
    )
    return Measured(federation, np.array([mean_entropy(p[N_TEST:]) for _, _, p in drawn]))


def known_labels(name: str, root: str | None, seed: int) -> Measured:
    """Load data whose label distributions are known."""
    federation = udjfl.load(name, seed=seed, root=root)
    tables = [client.train.label_probabilities for client in federation.clients]
    if any(table is None for table in tables):
        raise DataError(f"{name}: the label distributions of these data are not known")
    return Measured(
        federation, np.array([mean_entropy(table.numpy().astype(np.float64)) for table in tables])
    )


def datasets(root: str | None) -> list[Dataset]:
    """Return all data; files are searched for in `root`, then as `udjfl.load` does."""
    sizes = {f"{n} each": (n,) * 5 for n in (40, 200, 1000)}
    generated = [
        Dataset(
            f"{function.__name__}, {label}",
            lambda seed, function=function, n=n: function(seed, n),
            what,
        )
        for function, what in (
            (logistic, "normal features, three classes by a linear softmax of them"),
            (mixture, "four classes, normal features around the centre of each"),
        )
        for label, n in sizes.items()
    ]
    return [
        Dataset(
            "dirty-digits",
            lambda seed: known_labels("dirty-digits", root, seed),
            "handwritten digits and ambiguous ones with known label distributions, 320 examples "
            "a client",
        ),
        *generated,
        Dataset(
            "logistic, 50 features",
            lambda seed: logistic(seed, (200,) * 5, n_features=50),
            "as logistic, 200 each, with five times as many features",
        ),
        Dataset(
            "logistic, imbalanced",
            lambda seed: logistic(seed, (200,) * 5, prior=(0.8, 0.15, 0.05)),
            "as logistic, 200 each, with classes of 80, 15 and 5%",
        ),
        Dataset(
            "logistic, unequal sizes",
            lambda seed: logistic(seed, (40, 1000, 100, 400, 60)),
            "as logistic, with 40, 1000, 100, 400 and 60 examples",
        ),
        Dataset(
            "scanners",
            lambda seed: Measured(udjfl.load("scanners", seed=seed), order=np.arange(5.0)),
            "digits through scanners of falling quality, 180 a client: the order is known, the "
            "entropies are not",
        ),
        Dataset(
            "heart",
            lambda seed: Measured(udjfl.load("heart", seed=seed, root=root)),
            "four hospitals; nothing is known, so only the stability of the order is measured",
        ),
        Dataset(
            "dirty-mnist",
            lambda seed: known_labels("dirty-mnist", root, seed),
            "MNIST and regenerated ambiguous digits, 4800 examples a client; entropies of ten "
            "labels an image, which are a little below the true ones",
            is_large=True,
        ),
    ]
