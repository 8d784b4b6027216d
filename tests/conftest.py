"""Small federations that tests share."""

from __future__ import annotations

import numpy as np
import pytest

import udjfl


def make_federation(n_clients: int = 3, n: int = 24, features: int = 4, classes: int = 3, seed: int = 0) -> udjfl.Federation:
    """Random clients of unequal size: client i has n + 5i train examples. Labels follow the first features, noisily."""
    rng = np.random.default_rng(seed)

    def part(size: int, noise: float) -> tuple[np.ndarray, np.ndarray]:
        x = rng.normal(size=(size, features)).astype(np.float32)
        return x, (x[:, :classes] + noise * rng.normal(size=(size, classes))).argmax(axis=1)

    clients = {}
    for i in range(n_clients):
        clients[f"client-{i + 1}"] = (*part(n + 5 * i, 0.5 * i), *part(10 + i, 0.5 * i))
    return udjfl.Federation.from_arrays(clients, test=part(20, 0.0), class_names=[str(c) for c in range(classes)])


@pytest.fixture
def federation() -> udjfl.Federation:
    return make_federation()
