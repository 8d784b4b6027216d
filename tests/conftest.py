"""Small federations that tests share."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import udjfl
from udjfl.data import SOURCES, Examples, Pools


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


def tiny_pools(seed: int, folder: Path | None = None) -> Pools:
    """A data source in the shape of dirty-digits: 100 clean and 100 ambiguous examples, 30 for testing."""
    rng = np.random.default_rng(seed)

    def part(size: int, noise: float) -> Examples:
        x = rng.normal(size=(size, 4)).astype(np.float32)
        y = (x[:, :3] + noise * rng.normal(size=(size, 3))).argmax(axis=1)
        return Examples(torch.from_numpy(x), torch.from_numpy(y))

    return Pools(part(100, 0.0), part(100, 1.0), part(30, 0.0), ("a", "b", "c"), np.arange(100), np.arange(100, 200))


@pytest.fixture
def tiny_source(monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a small data source, for tests of what the command line does with any source."""
    monkeypatch.setitem(SOURCES, "tiny", tiny_pools)
    return "tiny"
