"""Optimisers, clipping, class weights, local steps and losses beyond the usual ones."""

from __future__ import annotations

import copy
import logging
from typing import Any

import pytest
import torch
from engine_cases import ADDRESS, CLOSE, NO_BUFFERS, make_clients, make_work, seeded, train
from small_runs import make_federation, train_briefly
from torch import Tensor, nn

import udjfl
from udjfl.engine import Demands, LocalTraining, MappedEngine, SerialEngine, TrainJob, make_engine
from udjfl.engine.batches import batch_order
from udjfl.engine.serial import example_weights
from udjfl.models import mlp, to_vector, trainable
from udjfl.settings import TrainingSettings
from udjfl.tasks import Criterion

OPTIMISERS: dict[str, tuple[dict[str, Any], Any]] = {
    "nesterov": (
        {"nesterov": True},
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    ),
    "decay": (
        {"weight_decay": 0.2},
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.2),
    ),
    "adamw": (
        {"optimiser": "adamw", "weight_decay": 0.2},
        lambda p: torch.optim.AdamW(p, lr=0.1, weight_decay=0.2),
    ),
}


def my_cross_entropy(outputs: Tensor, labels: Tensor) -> Tensor:
    return outputs.logsumexp(dim=1) - outputs.gather(1, labels[:, None])[:, 0]


def fresh() -> nn.Module:
    return seeded(lambda: mlp((3,), 3, hidden=4))


def by_hand(
    client: udjfl.Client,
    work: LocalTraining,
    make: Any,
    clip: float = 0.0,
    steps: int | None = None,
) -> Tensor:
    """Train one client with a plain loop; return its model."""
    network = fresh()
    optimiser = make(network.parameters())
    orders = batch_order(len(client.train), 9, ADDRESS, client.id)
    batches = [batch for order in orders for batch in order.split(work.batch_size)]
    for batch in batches[: work.count_steps(len(client.train)) if steps is None else steps]:
        optimiser.zero_grad()
        nn.functional.cross_entropy(
            network(client.train.x[batch]), client.train.y[batch]
        ).backward()
        if clip:
            nn.utils.clip_grad_norm_(network.parameters(), clip)
        optimiser.step()
    return to_vector(network)


@pytest.mark.parametrize("name", OPTIMISERS)
def test_optimisers_are_torchs(name: str) -> None:
    clients = make_clients((12, 7))
    changes, make = OPTIMISERS[name]
    work = make_work(**changes)
    result = train(SerialEngine, fresh(), work, clients)
    for row, client in enumerate(clients):
        expected = by_hand(client, work, make)
        torch.testing.assert_close(to_vector(fresh()) - result.deltas[row], expected, **CLOSE)


def test_gradients_are_clipped() -> None:
    (client,) = make_clients((12,))
    work = make_work(clip_norm=0.01, momentum=0.0)
    (delta,) = train(SerialEngine, fresh(), work, [client]).deltas
    expected = by_hand(client, work, lambda p: torch.optim.SGD(p, lr=0.1), clip=0.01)
    torch.testing.assert_close(to_vector(fresh()) - delta, expected, **CLOSE)
    assert float(delta.norm()) <= 0.1 * 0.01 * work.count_steps(12) * 1.001


def test_local_steps_are_taken_whatever_the_size() -> None:
    clients = make_clients((12, 7))
    work = make_work(steps=4, momentum=0.0)  # batches of 5: 3 and 2 in an epoch
    assert [work.count_epochs(size) for size in (12, 7)] == [2, 2]
    result = train(SerialEngine, fresh(), work, clients)
    assert result.steps.tolist() == [4.0, 4.0]
    for row, client in enumerate(clients):
        expected = by_hand(client, work, lambda p: torch.optim.SGD(p, lr=0.1), steps=4)
        torch.testing.assert_close(to_vector(fresh()) - result.deltas[row], expected, **CLOSE)


def test_class_weights_by_hand() -> None:
    labels = torch.tensor([0, 0, 0, 2])
    # Four examples, two classes: 4 / (2 * 3) and 4 / (2 * 1).
    weights = example_weights(labels, "balanced")
    assert weights is not None
    assert weights.tolist() == pytest.approx([2 / 3, 2 / 3, 2 / 3, 2.0])
    given = example_weights(labels, (1.0, 9.0, 5.0))
    assert given is not None
    assert given.tolist() == [1.0, 1.0, 1.0, 5.0]
    assert example_weights(labels, "none") is None


def test_equal_class_weights_change_nothing_and_losses_stay_unweighted() -> None:
    clients = make_clients((12, 7))
    plain = train(SerialEngine, fresh(), make_work(loss_at="running"), clients)
    ones = make_work(loss_at="running", class_weights=(1.0, 1.0, 1.0))
    same = train(SerialEngine, fresh(), ones, clients)
    torch.testing.assert_close(same.deltas, plain.deltas, **CLOSE)
    # Three times the weight is three times the rate.
    threes = make_work(class_weights=(3.0, 3.0, 3.0), momentum=0.0)
    faster = train(SerialEngine, fresh(), threes, clients)
    rate = train(SerialEngine, fresh(), make_work(lr=0.3, momentum=0.0), clients)
    torch.testing.assert_close(faster.deltas, rate.deltas, **CLOSE)
    torch.testing.assert_close(same.losses, plain.losses, **CLOSE)


@pytest.mark.parametrize("kind", [SerialEngine, MappedEngine])
def test_a_callable_cross_entropy_is_the_built_in_one(kind: Any) -> None:
    clients = make_clients((12, 7))
    own = Criterion("own", my_cross_entropy)
    engine = kind(fresh(), clients, criterion=own)
    start, indices = to_vector(fresh()), [0, 1]
    theirs = engine.train(TrainJob(start, NO_BUFFERS, indices, make_work(), ADDRESS))
    ours = train(kind, fresh(), make_work(), clients)
    torch.testing.assert_close(theirs.deltas, ours.deltas, **CLOSE)
    torch.testing.assert_close(theirs.losses, ours.losses, **CLOSE)


def test_a_run_with_a_callable_loss_gives_the_numbers_of_the_built_in_one() -> None:
    federation = make_federation(n=40)
    plain = train_briefly(federation, "rawls", engine="serial")
    own = train_briefly(federation, "rawls", engine="serial", loss=my_cross_entropy)
    assert own.client_scores == plain.client_scores
    assert own.uncertainty == pytest.approx(plain.uncertainty, rel=1e-3)
    torch.testing.assert_close(
        torch.cat([p.flatten() for p in trainable(own.model)]),
        torch.cat([p.flatten() for p in trainable(plain.model)]),
        rtol=1e-4,
        atol=1e-4,
    )


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"optimiser": "adamw"}, "the optimiser is adamw"),
        ({"nesterov": True}, "momentum is Nesterov's"),
        ({"weight_decay": 0.1}, "weights decay"),
        ({"clip_norm": 1.0}, "gradients are clipped"),
        ({"class_weights": "balanced"}, "classes are weighted"),
        ({"local_steps": 3}, "rounds have a number of local steps"),
    ],
)
def test_the_general_path_says_why(
    changes: dict[str, Any], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    demands = Demands.of(TrainingSettings(**changes))
    clients = make_clients((6, 6))
    with caplog.at_level(logging.WARNING, logger="udjfl"):
        for engine in ("auto", "mapped"):
            made = make_engine(copy.deepcopy(fresh()), clients, engine, demands=demands)
            assert type(made) is SerialEngine
            made.close()
    assert [record.getMessage().count(reason) for record in caplog.records] == [1, 1]


def test_plain_settings_keep_the_fast_path() -> None:
    for changes in ({}, {"optimiser": "adam"}, {"lr_schedule": "cosine"}, {"momentum": 0.0}):
        assert Demands.of(TrainingSettings(**changes)).stacking_reasons == ()
