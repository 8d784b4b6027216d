"""Adam in all engines against arithmetic and against torch's own, and what it must not change."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_cases import ADDRESS, assert_equal_results, make_clients, seeded
from engine_cases import ENGINES as BY_NAME
from engine_cases import make_work as make_sgd_work
from engine_cases import train as train_clients
from torch import Tensor, nn

import udjfl
from udjfl.engine import (
    Correction,
    Engine,
    LocalResult,
    LocalTraining,
    MappedEngine,
    SerialEngine,
    StackedEngine,
    TrainJob,
    one_thread,
)
from udjfl.engine import serial as serial_module
from udjfl.engine import stacked as stacked_module
from udjfl.engine.batches import batch_order
from udjfl.errors import SettingsError, StorageError
from udjfl.models import WeightNormLinear, buffers_to_vector, build, cnn, logistic, mlp, to_vector
from udjfl.models.masked import adapt
from udjfl.settings import TrainingSettings, validate_settings
from udjfl.uncertainty import measure

# With batches of 5, clients take 3, 1, 2, 4 and 2 steps in an epoch: in the second epoch they are
# at different steps.
SIZES = [12, 1, 7, 20, 10]
ENGINES = pytest.mark.parametrize("kind", BY_NAME.values(), ids=BY_NAME)
# 12 steps of at most about 0.01 each, of numbers near 1 that float32 rounds to 6e-8. The ratio of
# mean and root is of the order of 1, with some 1e-6 of rounding: 12 * 0.01 * 1e-6 = 1e-7. Without
# bias correction a step is 3 times as long.
ROUNDING = {"rtol": 1e-5, "atol": 2e-6}

MODELS: dict[str, Callable[[], nn.Module]] = {
    "mlp": lambda: mlp((4,), 3, hidden=6),
    "mlp without weight norm": lambda: mlp((4,), 3, hidden=6, weight_norm=False),
    "logistic": lambda: logistic((4,), 3),
}


def clients(shape: tuple[int, ...] = (4,), scale: float = 1.0) -> tuple[udjfl.Client, ...]:
    return make_clients(SIZES, shape, scale=scale)


def make_work(**changes: Any) -> LocalTraining:
    adam = {"lr": 0.01, "epochs": 3, "loss_at": "running", "optimiser": "adam"}
    return make_sgd_work(**{**adam, **changes})


def train(
    kind: Callable[..., Engine],
    module: nn.Module,
    work: LocalTraining,
    data: Any = None,
    workers: int = 1,
) -> LocalResult:
    return train_clients(kind, module, work, clients() if data is None else data, workers=workers)


def plain_loop(
    module: nn.Module, client: udjfl.Client, work: LocalTraining
) -> tuple[Tensor, float]:
    """A client's delta and the mean loss of its batches, with torch's own optimisers."""
    model, losses = copy.deepcopy(module), []
    optimiser: torch.optim.Optimizer = torch.optim.Adam(model.parameters(), lr=work.lr)
    if work.optimiser == "sgd":
        optimiser = torch.optim.SGD(model.parameters(), lr=work.lr, momentum=work.momentum)
    for order in batch_order(len(client.train), work.epochs, ADDRESS, client.id):
        for batch in order.split(work.batch_size):
            optimiser.zero_grad()
            loss = nn.functional.cross_entropy(model(client.train.x[batch]), client.train.y[batch])
            loss.backward()
            optimiser.step()
            losses.append(loss.item())
    return to_vector(module) - to_vector(model), sum(losses) / len(losses)


def assert_as_plain_loop(
    result: LocalResult, module: nn.Module, work: LocalTraining, data: Any = None
) -> None:
    for row, client in enumerate(clients() if data is None else data):
        delta, loss = plain_loop(module, client, work)
        torch.testing.assert_close(result.deltas[row], delta, **ROUNDING)
        assert float(result.losses[row]) == pytest.approx(loss, rel=1e-5)


@ENGINES
def test_two_steps_worked_by_hand(kind: type[Engine]) -> None:
    """One example x = 2 of class 0, two classes, all parameters zero, lr 0.1.

    step 1  p = (1/2, 1/2); gradients (-1, 1) of the weights, (-1/2, 1/2) of the biases. Corrected,
            the mean is the gradient and the root its size: every parameter moves by 0.1. The scores
            are then 0.1 * 2 + 0.1 = 0.3 and -0.3
    step 2  p0 = 1 / (1 + e^-0.6) = 0.645656; gradient of the first weight 2 (p0 - 1) = -0.708687
            mean (0.9 * -0.1 + 0.1 * -0.708687) / (1 - 0.9^2) = -0.160869 / 0.19 = -0.846678
            square (0.999 * 0.001 + 0.001 * 0.502238) / (1 - 0.999^2) = 0.001501238 / 0.001999
            = 0.750994, its root 0.866599
            so it moves by 0.1 * 0.846678 / 0.866599 = 0.0977012; a bias too: half the mean, half
            the root
    """
    one = udjfl.Federation.from_arrays(
        {"a": ([[2.0]], [0], [[5.0]], [0])}, test=([[6.0]], [1])
    ).clients
    module = logistic((1,), 2)
    for p in module.parameters():
        nn.init.zeros_(p)
    result = train(kind, module, make_work(lr=0.1, epochs=2, first_step=True), one)
    assert result.first_deltas is not None
    assert result.first_deltas[0].tolist() == pytest.approx([-0.1, 0.1, -0.1, 0.1], abs=1e-6)
    assert result.deltas[0].tolist() == pytest.approx(
        [-0.1977012, 0.1977012, -0.1977012, 0.1977012], abs=1e-6
    )
    assert result.losses.tolist() == pytest.approx(
        [(math.log(2) + math.log(1 + math.exp(-0.6))) / 2]
    )


@ENGINES
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("batch_size", [5, 100])
def test_it_is_torchs_adam(kind: type[Engine], name: str, batch_size: int) -> None:
    module, work = seeded(MODELS[name]), make_work(batch_size=batch_size)
    assert_as_plain_loop(train(kind, module, work), module, work)


@pytest.mark.parametrize("kind", [SerialEngine, MappedEngine])
def test_it_is_torchs_adam_for_a_cnn(kind: type[Engine]) -> None:
    module, data, work = seeded(lambda: cnn((1, 8, 8), 3)), clients((1, 8, 8)), make_work(lr=0.001)
    assert_as_plain_loop(train(kind, module, work, data), module, work, data)


@ENGINES
@pytest.mark.parametrize("name", MODELS)
def test_sgd_is_what_it_was(kind: type[Engine], name: str) -> None:
    module, work = seeded(MODELS[name]), LocalTraining(0.01, 0.9, 5, 3, "running")
    assert work.optimiser == "sgd"
    result = train(kind, module, work)
    assert_as_plain_loop(result, module, work)
    assert not torch.allclose(result.deltas, train(kind, module, make_work()).deltas, rtol=0.1)


@ENGINES
def test_squares_that_overflow(kind: type[Engine]) -> None:
    """Squares of gradients of 1e22 are infinite in float32: such weights do not move."""
    module = seeded(lambda: nn.Sequential(nn.Linear(4, 5), nn.ReLU(), WeightNormLinear(5, 3)))
    data, work = clients(scale=1e22), make_work()
    result = train(kind, module, work, data)
    moved = 0
    for row, client in enumerate(data):
        delta, _ = plain_loop(module, client, work)
        assert torch.isfinite(delta).all()
        assert torch.equal(delta == 0, result.deltas[row] == 0)
        moved += int((delta != 0).sum())
    assert 0 < moved < result.deltas.numel()


@ENGINES
def test_momentum_is_sgds(kind: type[Engine]) -> None:
    module = seeded(MODELS["mlp"])
    assert torch.equal(
        train(kind, module, make_work(momentum=0.0)).deltas, train(kind, module, make_work()).deltas
    )


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (StackedEngine, "mlp"),
        (StackedEngine, "logistic"),
        (SerialEngine, "mlp"),
        (SerialEngine, "cnn"),
    ],
)
def test_the_number_of_workers_changes_no_bit(
    kind: type[Engine], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stacked_module, "CHUNK_FLOPS", 1)
    monkeypatch.setattr(stacked_module, "SHARED_FLOPS", 0)
    monkeypatch.setattr(serial_module, "SHARED_PRODUCTS", 0)
    shape = (1, 8, 8) if name == "cnn" else (4,)
    module, data = (
        seeded(lambda: cnn(shape, 3) if name == "cnn" else MODELS[name]()),
        clients(shape),
    )
    one, two = (
        train(kind, module, make_work(first_step=True), data, workers) for workers in (1, 2)
    )
    assert_equal_results(one, two)


@pytest.mark.parametrize("fits", [1, 2])
def test_chunks_change_nothing_but_rounding(fits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    module, work = seeded(MODELS["mlp"]), make_work()
    for kind in (StackedEngine, MappedEngine):
        monkeypatch.setattr(kind, "_chunk_size", lambda *_: fits)
        assert_as_plain_loop(train(kind, module, work), module, work)


def test_jobs_side_by_side_are_as_alone() -> None:
    """Adam and SGD, and two learning rates of Adam, for the same clients."""
    module = seeded(MODELS["mlp"])
    engine = StackedEngine(module, clients())
    start, buffers = to_vector(module), buffers_to_vector(module)
    changes = [{}, {"optimiser": "sgd"}, {"lr": 0.05}, {"optimiser": "sgd", "lr": 0.05}, {}]
    works = [make_work(**change) for change in changes]
    jobs = [TrainJob(start, buffers, range(5), work, ADDRESS) for work in works]
    with one_thread():
        together, alone = engine.train_many(jobs), [engine.train_many([job])[0] for job in jobs]
    for ours, theirs, work in zip(together, alone, works, strict=True):
        torch.testing.assert_close(ours.deltas, theirs.deltas, **ROUNDING)
        if work.optimiser == "adam":
            assert torch.equal(ours.deltas, theirs.deltas)
    assert not torch.allclose(together[0].deltas, together[2].deltas, rtol=0.1)


def squared(
    losses: Tensor, weights: Tensor, groups: Tensor | None, multipliers: Tensor | None
) -> Tensor:
    assert multipliers is not None
    return (losses.square() * weights).sum(dim=1) * multipliers + losses.mul(weights).sum(dim=1)


@pytest.mark.parametrize("kind", [StackedEngine, MappedEngine])
@pytest.mark.parametrize("option", ["objective", "correction", "own models", "masks"])
def test_engines_agree_on_all_other_options(kind: type[Engine], option: str) -> None:
    """No method uses Adam; if one did, its other options would still hold."""
    module, work = seeded(MODELS["mlp"]), make_work(first_step=True)
    if option == "masks":
        module = adapt(module, 0.5, torch.Generator().manual_seed(0))
    start = to_vector(module)
    if option == "objective":
        work = replace(work, objective=squared, multipliers=torch.arange(1.0, 6.0))
    if option == "correction":
        shift = torch.linspace(-1, 1, len(start))
        anchors = torch.stack([start * i for i in range(5)])
        work = replace(work, correction=Correction(0.7, 0.3, anchors, shift))
    if option == "own models":
        start = torch.stack([start * (1 + 0.1 * i) for i in range(5)])
    ours, theirs = (
        engine(copy.deepcopy(module), clients()).train(
            TrainJob(start, buffers_to_vector(module), range(5), work, ADDRESS)
        )
        for engine in (kind, SerialEngine)
    )
    assert ours.first_deltas is not None
    torch.testing.assert_close(ours.deltas, theirs.deltas, **ROUNDING)
    torch.testing.assert_close(ours.first_deltas, theirs.first_deltas, **ROUNDING)


def test_the_setting_has_two_values() -> None:
    assert TrainingSettings().uncertainty_optimiser == "sgd"
    assert (
        validate_settings(TrainingSettings, {"uncertainty_optimiser": "adam"}).uncertainty_optimiser
        == "adam"
    )
    with pytest.raises(SettingsError, match="uncertainty_optimiser: unknown value 'adamw'"):
        validate_settings(TrainingSettings, {"uncertainty_optimiser": "adamw"})


@ENGINES
def test_the_setting_reaches_the_measurement(
    kind: type[Engine], federation: udjfl.Federation
) -> None:
    """The uncertainty is the mean entropy of a model trained with torch's Adam."""
    changes: dict[str, Any] = {
        "hidden": 6,
        "uncertainty_epochs": 4,
        "uncertainty_lr": 0.02,
        "batch_size": 8,
    }
    settings = TrainingSettings(**changes, uncertainty="paper", uncertainty_optimiser="adam")
    measured = measure(
        federation, kind(build("mlp", (4,), 3, 0, hidden=6), federation.clients), settings, 0
    ).values
    for client in federation.clients:
        model = build("mlp", (4,), 3, 0, hidden=6, purpose="alone 0")
        optimiser = torch.optim.Adam(model.parameters(), lr=0.02)
        for order in batch_order(len(client.train), 4, (0, "alone", 0), client.id):
            for batch in order.split(8):
                optimiser.zero_grad()
                nn.functional.cross_entropy(
                    model(client.train.x[batch]), client.train.y[batch]
                ).backward()
                optimiser.step()
        p = model(client.train.x).detach().double().softmax(dim=1)
        assert measured[client.id] == pytest.approx(
            float(-(p * p.log()).sum(dim=1).mean()), rel=1e-4
        )


TINY: dict[str, Any] = {
    "model": "logistic",
    "rounds": 2,
    "uncertainty_epochs": 2,
    "uncertainty_lr": 0.05,
}


def test_a_run_stores_the_optimiser_and_is_resumed_with_it_only(
    tmp_path: Path, federation: udjfl.Federation
) -> None:
    result = udjfl.simulate(federation, "rawls", uncertainty_optimiser="adam", out=tmp_path, **TINY)
    stored = json.loads((tmp_path / "settings.json").read_text(encoding="utf-8"))
    assert stored["training"]["uncertainty_optimiser"] == "adam"
    with pytest.raises(StorageError, match="started with another uncertainty_optimiser"):
        udjfl.simulate(federation, "rawls", out=tmp_path, resume=True, **TINY)
    again = udjfl.simulate(
        federation, "rawls", uncertainty_optimiser="adam", out=tmp_path, resume=True, **TINY
    )
    assert again.uncertainty == result.uncertainty
    assert udjfl.simulate(federation, "rawls", **TINY).uncertainty != result.uncertainty


def test_the_setting_does_not_change_the_rounds(federation: udjfl.Federation) -> None:
    given = {name: 0.1 * (index + 1) for index, name in enumerate(federation.ids)}
    one, other = (
        udjfl.simulate(
            federation, "rawls", uncertainty=given, uncertainty_optimiser=name, **TINY
        ).model
        for name in ("sgd", "adam")
    )
    assert torch.equal(to_vector(one), to_vector(other))
