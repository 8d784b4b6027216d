"""Small federations that tests share."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import udjfl
from udjfl.data import SOURCES, Examples, Pools, Source
from udjfl.data.source import Request


def make_federation(
    n_clients: int = 3, n: int = 24, features: int = 4, classes: int = 3, seed: int = 0
) -> udjfl.Federation:
    """Random clients of unequal size: client i has n + 5i train examples. Labels follow the first features, noisily."""
    rng = np.random.default_rng(seed)

    def part(size: int, noise: float) -> tuple[np.ndarray, np.ndarray]:
        x = rng.normal(size=(size, features)).astype(np.float32)
        return x, (x[:, :classes] + noise * rng.normal(size=(size, classes))).argmax(axis=1)

    clients = {}
    for i in range(n_clients):
        clients[f"client-{i + 1}"] = (*part(n + 5 * i, 0.5 * i), *part(10 + i, 0.5 * i))
    return udjfl.Federation.from_arrays(
        clients, test=part(20, 0.0), class_names=[str(c) for c in range(classes)]
    )


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    """Tests run side by side; torch's threads would only wait for each other."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def _no_data_of_the_users() -> None:
    """Tests bring their own data, whatever data the user of this machine works with."""
    os.environ.pop("UDJFL_DATA", None)


@pytest.fixture
def federation() -> udjfl.Federation:
    return make_federation()


def tiny_pools(request: Request) -> Pools:
    """A data source in the shape of dirty-digits: 100 clean and 100 ambiguous examples, 30 for testing."""
    rng = np.random.default_rng(request.seed)

    def part(size: int, noise: float) -> Examples:
        x = rng.normal(size=(size, 4)).astype(np.float32)
        y = (x[:, :3] + noise * rng.normal(size=(size, 3))).argmax(axis=1)
        return Examples(torch.from_numpy(x), torch.from_numpy(y))

    return Pools(
        part(100, 0.0),
        part(100, 1.0),
        part(30, 0.0),
        ("a", "b", "c"),
        np.arange(100),
        np.arange(100, 200),
    )


@pytest.fixture
def tiny_source(monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a small data source, for tests of what the command line does with any source."""
    monkeypatch.setitem(SOURCES, "tiny", Source("tiny", "for tests", "It is made up.", tiny_pools))
    return "tiny"


def unstackable() -> nn.Module:
    """A model that has to be trained one client at a time."""
    return nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.0))


def few_rounds(
    federation: udjfl.Federation, method: Any = "fedavg", **changes: Any
) -> udjfl.Result:
    """Three rounds with a small model."""
    return udjfl.simulate(
        federation, method, **{"rounds": 3, "hidden": 5, "uncertainty_epochs": 2, **changes}
    )


def client_arrays(n: int, scale: float = 1.0, labels: list[int] | None = None) -> tuple[Any, ...]:
    """Train and test arrays of one client with n train examples of three classes; only the train part is scaled."""
    rng = np.random.default_rng(n)
    y = rng.integers(0, 3, n) if labels is None else labels
    return scale * rng.normal(size=(n, 4)), y, rng.normal(size=(4, 4)), [0, 1, 2, 0]


def federation_of(**clients: tuple[Any, ...]) -> udjfl.Federation:
    """A federation of the given clients' arrays."""
    test = np.random.default_rng(99).normal(size=(6, 4))
    return udjfl.Federation.from_arrays(clients, test=(test, [0, 1, 2, 0, 1, 2]), class_names="xyz")


def rising(federation: udjfl.Federation) -> dict[str, float]:
    """Uncertainties 0.1, 0.2, ... in client order."""
    return {name: 0.1 * (place + 1) for place, name in enumerate(federation.ids)}
