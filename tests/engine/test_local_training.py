"""What methods may change in local training: objective, first step, own models, masks."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from engine_cases import ADDRESS, CLOSE, NO_BUFFERS, make_clients, make_work, seeded
from engine_cases import ENGINES as BY_NAME
from torch import Tensor, nn

import udjfl
from udjfl.engine import (
    Engine,
    LocalResult,
    LocalTraining,
    SerialEngine,
    StackedEngine,
    TrainJob,
    unsupported_reason,
)
from udjfl.engine.batches import batch_order
from udjfl.models import logistic, mlp, to_vector
from udjfl.models.masked import adapt

ENGINES = pytest.mark.parametrize("kind", BY_NAME.values(), ids=BY_NAME)
SIZES = (7, 12)


def fresh(make: Any = lambda: mlp((3,), 3, hidden=4), seed: int = 0) -> nn.Module:
    return seeded(make, seed)


def engine_of(kind: type[Engine], module: nn.Module, clients: Any = None) -> Engine:
    return kind(copy.deepcopy(module), clients or make_clients(SIZES))


def train(
    engine: Engine, vector: Tensor, work: LocalTraining, client_indices: tuple[int, ...] = (0, 1)
) -> LocalResult:
    return engine.train(TrainJob(vector, NO_BUFFERS, list(client_indices), work, ADDRESS))


def doubled(
    losses: Tensor, weights: Tensor, groups: Tensor | None, multipliers: Tensor | None
) -> Tensor:
    return 2 * (losses * weights).sum(dim=1)


def scaled(
    losses: Tensor, weights: Tensor, groups: Tensor | None, multipliers: Tensor | None
) -> Tensor:
    assert multipliers is not None
    return multipliers * (losses * weights).sum(dim=1)


def of_group_one(
    losses: Tensor, weights: Tensor, groups: Tensor | None, multipliers: Tensor | None
) -> Tensor:
    assert groups is not None
    return (losses * weights * (groups == 1)).sum(dim=1)


@ENGINES
def test_twice_the_loss_at_half_the_rate_gives_the_same_model(kind: type[Engine]) -> None:
    module = fresh()
    plain = train(engine_of(kind, module), to_vector(module), make_work())
    twice = train(engine_of(kind, module), to_vector(module), make_work(lr=0.05, objective=doubled))
    torch.testing.assert_close(twice.deltas, plain.deltas, **CLOSE)
    assert torch.equal(twice.losses, plain.losses)


@ENGINES
def test_each_client_has_its_own_multiplier(kind: type[Engine]) -> None:
    module = fresh()
    work = make_work(objective=scaled, multipliers=torch.tensor([0.0, 1.0], dtype=torch.float64))
    plain, changed = (
        train(engine_of(kind, module), to_vector(module), w) for w in (make_work(), work)
    )
    # Nothing to minimise, no update.
    assert torch.equal(changed.deltas[0], torch.zeros_like(changed.deltas[0]))
    torch.testing.assert_close(changed.deltas[1], plain.deltas[1], **CLOSE)


@pytest.mark.parametrize("loss_at", ["received", "running", "final"])
def test_reported_losses_do_not_depend_on_the_objective(loss_at: str) -> None:
    """A client that minimises twice its loss at half the rate reports the same losses."""
    module = fresh()
    works = [make_work(loss_at=loss_at), make_work(loss_at=loss_at, lr=0.05, objective=doubled)]
    for kind in (SerialEngine, StackedEngine):
        plain, changed = (train(engine_of(kind, module), to_vector(module), w) for w in works)
        torch.testing.assert_close(plain.losses, changed.losses, **CLOSE)


def test_groups_reach_the_objective_in_the_order_of_the_batch() -> None:
    """With batches of one, an objective of group 1 alone is training on the examples of group 1."""
    module, clients = fresh(), make_clients(SIZES, groups=True)
    work = make_work(objective=of_group_one, batch_size=1, momentum=0.0, epochs=1)
    serial, stacked = (
        train(engine_of(k, module, clients), to_vector(module), work)
        for k in (SerialEngine, StackedEngine)
    )
    torch.testing.assert_close(serial.deltas, stacked.deltas, **CLOSE)
    by_hand = copy.deepcopy(module)
    client = clients[0]
    for example in batch_order(len(client.train), 1, ADDRESS, client.id)[0].tolist():
        if client.train.group[example] == 1:
            loss = nn.functional.cross_entropy(
                by_hand(client.train.x[[example]]), client.train.y[[example]]
            )
            gradients = torch.autograd.grad(loss, list(by_hand.parameters()))
            with torch.no_grad():
                for p, g in zip(by_hand.parameters(), gradients, strict=True):
                    p.sub_(0.1 * g)
    torch.testing.assert_close(serial.deltas[0], to_vector(module) - to_vector(by_hand), **CLOSE)


@ENGINES
def test_the_first_step_is_that_of_training_with_one_step(kind: type[Engine]) -> None:
    """A batch of 100 holds all examples, so one epoch is one step."""
    module = fresh()
    result = train(
        engine_of(kind, module),
        to_vector(module),
        make_work(batch_size=100, epochs=3, first_step=True),
    )
    one_step = train(
        engine_of(kind, module), to_vector(module), make_work(batch_size=100, epochs=1)
    )
    torch.testing.assert_close(result.first_deltas, one_step.deltas, **CLOSE)
    assert train(engine_of(kind, module), to_vector(module), make_work()).first_deltas is None


@ENGINES
def test_clients_may_start_from_their_own_models(kind: type[Engine]) -> None:
    """Each row is that client's training from that model alone; a client may occur twice."""
    one, two = to_vector(fresh()), to_vector(fresh(seed=1))
    indices, starts = (1, 0, 1), torch.stack([one, one, two])
    together = train(engine_of(kind, fresh()), starts, make_work(), indices)
    for row, (index, start) in enumerate(zip(indices, starts, strict=True)):
        alone = train(engine_of(kind, fresh()), start, make_work(), (index,))
        torch.testing.assert_close(together.deltas[row], alone.deltas[0], **CLOSE)
        torch.testing.assert_close(together.losses[row], alone.losses[0], **CLOSE)
    assert together.deltas.shape == (3, len(one))


@pytest.mark.parametrize("loss_at", ["received", "running", "final"])
def test_engines_agree_on_own_models(loss_at: str) -> None:
    starts = torch.stack([to_vector(fresh(seed=s)) for s in (0, 1)])
    serial, stacked = (
        train(engine_of(k, fresh()), starts, make_work(loss_at=loss_at))
        for k in (SerialEngine, StackedEngine)
    )
    torch.testing.assert_close(serial.deltas, stacked.deltas, **CLOSE)
    torch.testing.assert_close(serial.losses, stacked.losses, **CLOSE)


def test_masks_are_stacked_and_agree_with_serial() -> None:
    module = adapt(fresh(), 0.5, torch.Generator().manual_seed(0))
    assert unsupported_reason(module) is None
    start = to_vector(module)
    # Scores of two layers, no weights and no biases.
    assert len(start) == 3 * 4 + 4 * 3
    serial, stacked = (
        train(engine_of(k, module), start, make_work()) for k in (SerialEngine, StackedEngine)
    )
    torch.testing.assert_close(serial.deltas, stacked.deltas, **CLOSE)
    assert float(serial.deltas.abs().max()) > 0.01
    engine = engine_of(StackedEngine, module)
    before = [p.clone() for p in engine.module.parameters() if not p.requires_grad]
    train(engine, start, make_work())
    after = [p for p in engine.module.parameters() if not p.requires_grad]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_a_frozen_layer_keeps_a_model_from_being_stacked() -> None:
    module = fresh(lambda: nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 3)))
    module[0].weight.requires_grad_(False)
    assert unsupported_reason(module) == "some of its parameters are frozen"


def test_a_mixture_of_models_mixes_probabilities() -> None:
    """Two models with biases only: softmax (1/2, 1/4, 1/4) and (1/10, 8/10, 1/10), mixed 3 to 1.

    p = (0.75 * 0.5 + 0.25 * 0.1, 0.75 * 0.25 + 0.25 * 0.8, ...) = (0.4, 0.3875, 0.2125): class 0 is
    predicted for all examples.
    """
    engine = SerialEngine(logistic((3,), 3), make_clients(SIZES))
    vectors = torch.zeros(2, 12)
    vectors[:, 9:] = torch.tensor([[0.5, 0.25, 0.25], [0.1, 0.8, 0.1]]).log()
    examples = udjfl.Examples(
        torch.randn(4, 3, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 0, 1, 2])
    )
    loss, accuracy = engine.evaluate_mixture(
        vectors, torch.tensor([0.75, 0.25]), NO_BUFFERS, examples
    )
    assert accuracy == 0.5
    assert loss == pytest.approx(-float(np.mean(np.log([0.4, 0.4, 0.3875, 0.2125]))), rel=1e-6)
    alone = engine.evaluate_mixture(vectors, torch.tensor([0.0, 1.0]), NO_BUFFERS, examples)
    assert alone == (pytest.approx(-float(np.mean(np.log([0.1, 0.1, 0.8, 0.1]))), rel=1e-6), 0.25)
