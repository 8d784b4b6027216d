"""Layers beyond linear ones: every engine that claims a model agrees with plain torch."""

from __future__ import annotations

import copy
import warnings

import numpy as np
import pytest
import torch
from engine_cases import ADDRESS, CLOSE, make_work, seeded
from layer_models import MODELS
from torch import nn

import udjfl
from udjfl.engine import Engine, MappedEngine, SerialEngine, TrainJob, make_engine, one_thread
from udjfl.engine import mapped as mapped_engine
from udjfl.engine.batches import batch_order
from udjfl.models import buffers_to_vector, to_inputs, to_vector

SIZES = (12, 8)  # batches of 4: no batch of one example, which batch norm refuses


NAMES = pytest.mark.parametrize("name", MODELS)


def make_clients(shape: tuple[int, ...], are_indices: bool) -> tuple[udjfl.Client, ...]:
    rng = np.random.default_rng(0)

    def part(n: int) -> tuple[np.ndarray, np.ndarray]:
        x = rng.integers(0, 7, (n, *shape)) if are_indices else rng.normal(size=(n, *shape))
        return x if are_indices else x.astype(np.float32), rng.integers(0, 3, n)

    arrays = {f"client-{i}": (*part(n), *part(4)) for i, n in enumerate(SIZES)}
    return udjfl.Federation.from_arrays(
        arrays, test=part(4), class_names="xyz", allow_duplicates=True
    ).clients


def train_plainly(module: nn.Module, client: udjfl.Client) -> nn.Module:
    """Train one client in a plain loop: two epochs of batches of four."""
    network = copy.deepcopy(module).train()
    optimiser = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    for order in batch_order(len(client.train), 2, ADDRESS, client.id):
        for batch in order.split(4):
            optimiser.zero_grad()
            outputs = network(to_inputs(client.train.x[batch], network))
            nn.functional.cross_entropy(outputs, client.train.y[batch]).backward()
            optimiser.step()
    return network


def check(engine: Engine, module: nn.Module, clients: tuple[udjfl.Client, ...]) -> None:
    work = make_work(batch_size=4)
    with one_thread():
        start, buffers = to_vector(module), buffers_to_vector(module)
        result = engine.train(TrainJob(start, buffers, [0, 1], work, ADDRESS))
    for row, client in enumerate(clients):
        network = train_plainly(module, client)
        torch.testing.assert_close(start - result.deltas[row], to_vector(network), **CLOSE)
        torch.testing.assert_close(result.buffers[row], buffers_to_vector(network), **CLOSE)
    engine.close()


@NAMES
def test_the_serial_engine_trains_it_as_torch_does(name: str) -> None:
    make, shape, are_indices = MODELS[name]
    clients, module = make_clients(shape, are_indices), seeded(make)
    check(SerialEngine(copy.deepcopy(module), clients), module, clients)


@NAMES
def test_the_mapped_engine_agrees_or_says_why_it_cannot(name: str) -> None:
    make, shape, are_indices = MODELS[name]
    clients, module = make_clients(shape, are_indices), seeded(make)
    example = to_inputs(clients[0].train.x[:1], module)
    reason = mapped_engine.unsupported_reason(module, example)
    if reason is None:
        check(MappedEngine(copy.deepcopy(module), clients), module, clients)
    else:
        assert name in ("lstm", "encoder"), reason  # vmap has no rules for their kernels
        made = make_engine(copy.deepcopy(module), clients, "mapped")
        assert type(made) is SerialEngine
        made.close()


@NAMES
def test_a_whole_run_with_it(name: str) -> None:
    make, shape, are_indices = MODELS[name]
    clients = make_clients(shape, are_indices)
    federation = udjfl.Federation(
        "layers", clients, clients[0].test, ("x", "y", "z"), allow_duplicates=True
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="enable_nested_tensor")
        result = udjfl.simulate(
            federation, "rawls", make, rounds=2, uncertainty_epochs=2, batch_size=4
        )
    assert all(0 <= value <= 100 for value in result.client_scores.values())
    assert all(value > 0 for value in result.uncertainty.values())
