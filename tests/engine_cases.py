"""Clients, models and jobs that the tests of the engines share."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import udjfl
from udjfl.engine import (
    Engine,
    LocalResult,
    LocalTraining,
    MappedEngine,
    SerialEngine,
    StackedEngine,
    TrainJob,
    one_thread,
)
from udjfl.models import buffers_to_vector, to_vector

ADDRESS = (7, "batches", 3)
NO_BUFFERS = torch.zeros(0, dtype=torch.float64)
# float32 rounds to 6e-8 of a number near 1. Tests take about ten steps, and momentum 0.9 adds up
# ten of them: 10 * 10 * 6e-8 = 6e-6. A wrong batch, weight or velocity shows in the second digit.
CLOSE = {"rtol": 1e-5, "atol": 1e-5}
ENGINES: dict[str, type[Engine]] = {
    "serial": SerialEngine,
    "stacked": StackedEngine,
    "mapped": MappedEngine,
}
COLUMNS = ("deltas", "losses", "steps", "buffers", "first_deltas")


def make_clients(
    sizes: Sequence[int] | Mapping[str, int],
    shape: tuple[int, ...] = (3,),
    groups: bool = False,
    scale: float = 1.0,
) -> tuple[udjfl.Client, ...]:
    """Clients with random examples of three classes, client-0, client-1, ... unless named."""
    rng = np.random.default_rng(0)
    if not isinstance(sizes, Mapping):
        sizes = {f"client-{i}": n for i, n in enumerate(sizes)}

    def part(n: int) -> tuple[np.ndarray, np.ndarray]:
        return scale * rng.normal(size=(n, *shape)), rng.integers(0, 3, size=n)

    arrays = {name: (*part(n), *part(2)) for name, n in sizes.items()}
    attribute = {name: rng.integers(0, 2, size=n) for name, n in sizes.items()} if groups else None
    return udjfl.Federation.from_arrays(
        arrays, test=part(2), class_names="xyz", sensitive=attribute
    ).clients


def seeded(make: Callable[[], nn.Module], seed: int = 0) -> nn.Module:
    """A model whose random numbers come from this seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make()


def make_work(**changes: Any) -> LocalTraining:
    return LocalTraining(**{"lr": 0.1, "momentum": 0.9, "batch_size": 5, "epochs": 2, **changes})


def train(
    make: Callable[..., Engine],
    module: nn.Module,
    work: LocalTraining,
    clients: Sequence[udjfl.Client],
    client_indices: Sequence[int] | None = None,
    vector: Tensor | None = None,
    address: tuple[int, str, int] = ADDRESS,
    workers: int = 1,
) -> LocalResult:
    """Train clients, all unless named, from the module's parameters unless others are given.

    The engine gets a copy of the module, since it overwrites the parameters.
    """
    engine = make(copy.deepcopy(module), clients, workers=workers)
    vector = to_vector(module) if vector is None else vector
    indices = list(range(len(clients))) if client_indices is None else list(client_indices)
    with one_thread():
        result = engine.train(TrainJob(vector, buffers_to_vector(module), indices, work, address))
    engine.close()
    return result


def assert_close_results(
    ours: LocalResult, theirs: LocalResult, tolerance: Mapping[str, float] = CLOSE
) -> None:
    """All columns of two results agree up to rounding."""
    for name in COLUMNS:
        one, other = getattr(ours, name), getattr(theirs, name)
        if other is None:
            assert one is None
        else:
            torch.testing.assert_close(
                one, other, **tolerance, msg=lambda text, name=name: f"{name}: {text}"
            )


def assert_equal_results(ours: LocalResult, theirs: LocalResult) -> None:
    """All columns of two results have the same bits."""
    for name in COLUMNS:
        one, other = getattr(ours, name), getattr(theirs, name)
        assert (one is None and other is None) or torch.equal(one, other), name
