"""Models with other layers than linear ones: on Flower as in the simulator."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

pytest.importorskip("flwr")

from in_process_grid import InProcessGrid, run_strategy, simulate_small
from layer_models import MODELS

import udjfl


def make_clients(shape: tuple[int, ...], are_indices: bool) -> udjfl.Federation:
    rng = np.random.default_rng(0)

    def part(n: int) -> tuple[np.ndarray, np.ndarray]:
        x = rng.integers(0, 7, (n, *shape)) if are_indices else rng.normal(size=(n, *shape))
        return x if are_indices else x.astype(np.float32), rng.integers(0, 3, n)

    # Batches of 8, and folds of two thirds: no batch of one example, which batch norm refuses.
    arrays = {f"client-{i}": (*part(n), *part(6)) for i, n in enumerate((24, 16))}
    return udjfl.Federation.from_arrays(
        arrays, test=part(6), class_names="xyz", allow_duplicates=True
    )


@pytest.mark.parametrize("name", MODELS)
def test_the_model_is_that_of_the_simulator(name: str) -> None:
    make: Callable[[], nn.Module]
    make, shape, are_indices = MODELS[name]
    federation = make_clients(shape, are_indices)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="enable_nested_tensor")
        here = simulate_small(federation, "rawls", model=make)
        grid = InProcessGrid(federation, make)
        there = run_strategy(federation, "rawls", grid, model=make).result
    assert there is not None
    for mine, theirs in zip(
        there.model.state_dict().values(), here.model.state_dict().values(), strict=True
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
    assert there.uncertainty == pytest.approx(here.uncertainty, rel=1e-4)
    assert there.client_scores == pytest.approx(here.client_scores)
