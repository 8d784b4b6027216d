"""Clients with a known share of exchanged labels, and the measurement of their uncertainty."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import udjfl
from udjfl.engine import make_engine, one_thread
from udjfl.models import build
from udjfl.seeds import numpy_stream
from udjfl.settings import TrainingSettings
from udjfl.uncertainty import Uncertainty, measure

SHARES = {"clean": 0.0, "tenth": 0.1, "third": 1 / 3, "coin": 0.5}


def binary_entropy(share: float) -> float:
    return sum(-p * math.log(p) for p in (share, 1 - share) if p > 0)


def make_noisy(sizes: dict[str, int], seed: int = 0, shares: Any = None) -> udjfl.Federation:
    """Make clients with two well separated classes, and a known share of labels exchanged."""
    clients = {}
    for name, n in sizes.items():
        stream = numpy_stream(seed, "noisy", name)
        y = stream.permutation(np.arange(n) % 2)
        x = stream.normal(size=(n, 4)) + 6 * (2 * y[:, None] - 1) * np.array([1, 0, 0, 0])
        wrong = stream.random(n) < (shares or SHARES)[name]
        clients[name] = (x, np.where(wrong, 1 - y, y), np.full((1, 4), 99.0 + len(name)), [0])
    return udjfl.Federation.from_arrays(
        clients, test=(np.full((1, 4), 98.0), [0]), class_names="ab"
    )


def measure_in(
    federation: udjfl.Federation, seed: int = 0, model: Any = "mlp", **changes: Any
) -> Uncertainty:
    settings = TrainingSettings(**{"hidden": 8, "uncertainty": "crossfit", **changes})
    module = build(
        model, federation.input_shape, federation.n_classes, seed, hidden=settings.hidden
    )
    engine = make_engine(module, federation.clients, settings.engine)
    with one_thread():
        return measure(federation, engine, settings, seed, model)
