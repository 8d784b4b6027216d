"""Adam in all engines: against arithmetic, against torch's own, and what it must leave alone."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
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
from udjfl.engine import serial as serial_module
from udjfl.engine import stacked as stacked_module
from udjfl.engine.base import batch_order
from udjfl.errors import SettingsError, StorageError
from udjfl.models import WeightNormLinear, buffers_to_vector, build, cnn, logistic, mlp, to_vector
from udjfl.models.masked import adapt
from udjfl.settings import TrainingSettings, checked
from udjfl.uncertainty import measure

ADDRESS = (7, "alone", 3)
# With batches of 5, clients take 3, 1, 2, 4 and 2 steps an epoch: in the second epoch they are at different steps.
SIZES = [12, 1, 7, 20, 10]
KINDS = [SerialEngine, StackedEngine, MappedEngine]
ENGINES = pytest.mark.parametrize("kind", KINDS, ids=["serial", "stacked", "mapped"])
# 12 steps of at most about 0.01 each, of numbers near 1 that float32 rounds to 6e-8. The ratio of mean and root is of the order
# of 1, with some 1e-6 of rounding: 12 * 0.01 * 1e-6 = 1e-7. Without bias correction a step is 3 times as long.
ROUNDING = {"rtol": 1e-5, "atol": 2e-6}

MODELS: dict[str, Callable[[], nn.Module]] = {
    "mlp": lambda: mlp((4,), 3, hidden=6),
    "mlp without weight norm": lambda: mlp((4,), 3, hidden=6, weight_norm=False),
    "logistic": lambda: logistic((4,), 3),
}


def clients(shape: tuple[int, ...] = (4,), scale: float = 1.0) -> tuple[udjfl.Client, ...]:
    rng = np.random.default_rng(0)

    def part(n: int) -> tuple[np.ndarray, np.ndarray]:
        return scale * rng.normal(size=(n, *shape)), rng.integers(0, 3, size=n)

    made = {f"client-{i}": (*part(n), *part(2)) for i, n in enumerate(SIZES)}
    return udjfl.Federation.from_arrays(made, test=part(2), class_names="xyz").clients


def work(**changes: Any) -> LocalTraining:
    chosen = {
        "lr": 0.01,
        "momentum": 0.9,
        "batch_size": 5,
        "epochs": 3,
        "loss_at": "running",
        "optimiser": "adam",
        **changes,
    }
    return LocalTraining(**chosen)


def seeded(make: Callable[[], nn.Module]) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return make()


def trained(
    kind: Callable[..., Engine],
    module: nn.Module,
    how: LocalTraining,
    data: Any = None,
    workers: int = 1,
) -> LocalResult:
    """All clients, from the module's numbers."""
    data = clients() if data is None else data
    engine = kind(copy.deepcopy(module), data, workers=workers)
    with one_thread():
        found = engine.train(
            to_vector(module), buffers_to_vector(module), range(len(data)), how, ADDRESS
        )
    engine.close()
    return found


def plain_loop(module: nn.Module, client: udjfl.Client, how: LocalTraining) -> tuple[Tensor, float]:
    """What a client should do, with torch's own optimisers: delta, and the mean of the batches' losses."""
    model, losses = copy.deepcopy(module), []
    optimiser: torch.optim.Optimizer = torch.optim.Adam(model.parameters(), lr=how.lr)
    if how.optimiser == "sgd":
        optimiser = torch.optim.SGD(model.parameters(), lr=how.lr, momentum=how.momentum)
    for order in batch_order(len(client.train), how.epochs, ADDRESS, client.id):
        for batch in order.split(how.batch_size):
            optimiser.zero_grad()
            loss = nn.functional.cross_entropy(model(client.train.x[batch]), client.train.y[batch])
            loss.backward()
            optimiser.step()
            losses.append(loss.item())
    return to_vector(module) - to_vector(model), sum(losses) / len(losses)


def assert_plain(
    found: LocalResult, module: nn.Module, how: LocalTraining, data: Any = None
) -> None:
    for row, client in enumerate(clients() if data is None else data):
        delta, loss = plain_loop(module, client, how)
        torch.testing.assert_close(found.deltas[row], delta, **ROUNDING)
        assert float(found.losses[row]) == pytest.approx(loss, rel=1e-5)


@ENGINES
def test_two_steps_worked_by_hand(kind: type[Engine]) -> None:
    """One example x = 2 of class 0, two classes, all numbers zero, lr 0.1.

    step 1  p = (1/2, 1/2); gradients (-1, 1) of the weights, (-1/2, 1/2) of the biases. Corrected, the mean is the gradient and
            the root its size: every number moves by 0.1. The scores are then 0.1 * 2 + 0.1 = 0.3 and -0.3
    step 2  p0 = 1 / (1 + e^-0.6) = 0.645656; gradient of the first weight 2 (p0 - 1) = -0.708687
            mean (0.9 * -0.1 + 0.1 * -0.708687) / (1 - 0.9^2) = -0.160869 / 0.19 = -0.846678
            square (0.999 * 0.001 + 0.001 * 0.502238) / (1 - 0.999^2) = 0.001501238 / 0.001999 = 0.750994, its root 0.866599
            so it moves by 0.1 * 0.846678 / 0.866599 = 0.0977012; a bias too: half the mean, half the root
    """
    one = udjfl.Federation.from_arrays(
        {"a": ([[2.0]], [0], [[5.0]], [0])}, test=([[6.0]], [1])
    ).clients
    module = logistic((1,), 2)
    for p in module.parameters():
        nn.init.zeros_(p)
    found = trained(kind, module, work(lr=0.1, epochs=2, first_step=True), one)
    assert found.first_deltas is not None
    assert found.first_deltas[0].tolist() == pytest.approx([-0.1, 0.1, -0.1, 0.1], abs=1e-6)
    assert found.deltas[0].tolist() == pytest.approx(
        [-0.1977012, 0.1977012, -0.1977012, 0.1977012], abs=1e-6
    )
    assert found.losses.tolist() == pytest.approx(
        [(math.log(2) + math.log(1 + math.exp(-0.6))) / 2]
    )


@ENGINES
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("batch_size", [5, 100])
def test_it_is_torchs_adam(kind: type[Engine], name: str, batch_size: int) -> None:
    module, how = seeded(MODELS[name]), work(batch_size=batch_size)
    assert_plain(trained(kind, module, how), module, how)


@pytest.mark.parametrize("kind", [SerialEngine, MappedEngine])
def test_it_is_torchs_adam_for_a_cnn(kind: type[Engine]) -> None:
    module, data, how = seeded(lambda: cnn((1, 8, 8), 3)), clients((1, 8, 8)), work(lr=0.001)
    assert_plain(trained(kind, module, how, data), module, how, data)


@ENGINES
@pytest.mark.parametrize("name", MODELS)
def test_sgd_is_what_it_was(kind: type[Engine], name: str) -> None:
    module, how = seeded(MODELS[name]), LocalTraining(0.01, 0.9, 5, 3, "running")
    assert how.optimiser == "sgd"
    found = trained(kind, module, how)
    assert_plain(found, module, how)
    assert not torch.allclose(found.deltas, trained(kind, module, work()).deltas, rtol=0.1)


@ENGINES
def test_squares_that_overflow(kind: type[Engine]) -> None:
    """Gradients of 1e22, whose squares float32 does not have: torch divides by infinity, and those weights stand still."""
    module = seeded(lambda: nn.Sequential(nn.Linear(4, 5), nn.ReLU(), WeightNormLinear(5, 3)))
    data, how = clients(scale=1e22), work()
    found = trained(kind, module, how, data)
    moved = 0
    for row, client in enumerate(data):
        delta, _ = plain_loop(module, client, how)
        assert torch.isfinite(delta).all()
        assert torch.equal(delta == 0, found.deltas[row] == 0)
        moved += int((delta != 0).sum())
    assert 0 < moved < found.deltas.numel()


@ENGINES
def test_momentum_is_sgds(kind: type[Engine]) -> None:
    module = seeded(MODELS["mlp"])
    assert torch.equal(
        trained(kind, module, work(momentum=0.0)).deltas, trained(kind, module, work()).deltas
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
    monkeypatch.setattr(stacked_module, "WORTH_SHARING", 0)
    monkeypatch.setattr(serial_module, "WORTH_SHARING", 0)
    shape = (1, 8, 8) if name == "cnn" else (4,)
    module, data = (
        seeded(lambda: cnn(shape, 3) if name == "cnn" else MODELS[name]()),
        clients(shape),
    )
    one, two = (trained(kind, module, work(first_step=True), data, workers) for workers in (1, 2))
    for column in ("deltas", "losses", "steps", "first_deltas"):
        assert torch.equal(getattr(one, column), getattr(two, column)), column


@pytest.mark.parametrize("fits", [1, 2])
def test_chunks_change_nothing_but_rounding(fits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    module, how = seeded(MODELS["mlp"]), work()
    for kind in (StackedEngine, MappedEngine):
        monkeypatch.setattr(kind, "_chunk_size", lambda *_: fits)
        assert_plain(trained(kind, module, how), module, how)


def test_jobs_side_by_side_are_as_alone() -> None:
    """Adam and SGD, and two learning rates of Adam, of the same clients in one question."""
    module = seeded(MODELS["mlp"])
    engine = StackedEngine(module, clients())
    start, buffers = to_vector(module), buffers_to_vector(module)
    works = [work(), work(optimiser="sgd"), work(lr=0.05), work(optimiser="sgd", lr=0.05), work()]
    jobs = [TrainJob(start, buffers, range(5), how, ADDRESS) for how in works]
    with one_thread():
        together, alone = engine.train_many(jobs), [engine.train_many([job])[0] for job in jobs]
    for ours, theirs, how in zip(together, alone, works, strict=True):
        torch.testing.assert_close(ours.deltas, theirs.deltas, **ROUNDING)
        if how.optimiser == "adam":
            assert torch.equal(ours.deltas, theirs.deltas)
    assert not torch.allclose(together[0].deltas, together[2].deltas, rtol=0.1)


def squared(
    losses: Tensor, weights: Tensor, groups: Tensor | None, multipliers: Tensor | None
) -> Tensor:
    assert multipliers is not None
    return (losses.square() * weights).sum(dim=1) * multipliers + losses.mul(weights).sum(dim=1)


@pytest.mark.parametrize("kind", [StackedEngine, MappedEngine])
@pytest.mark.parametrize("what", ["objective", "pull", "own models", "masks"])
def test_whatever_work_there_is_agrees_with_serial(kind: type[Engine], what: str) -> None:
    """No method asks for Adam; if one did, everything else it may ask for would still hold."""
    module, how = seeded(MODELS["mlp"]), work(first_step=True)
    if what == "masks":
        module = adapt(module, 0.5, torch.Generator().manual_seed(0))
    start = to_vector(module)
    if what == "objective":
        how = replace(how, objective=squared, multipliers=torch.arange(1.0, 6.0))
    if what == "pull":
        how = replace(how, pull=torch.linspace(-1, 1, len(start)), pull_share=0.3)
    if what == "own models":
        start = torch.stack([start * (1 + 0.1 * i) for i in range(5)])
    ours, theirs = (
        engine(copy.deepcopy(module), clients()).train(
            start, buffers_to_vector(module), range(5), how, ADDRESS
        )
        for engine in (kind, SerialEngine)
    )
    assert ours.first_deltas is not None
    torch.testing.assert_close(ours.deltas, theirs.deltas, **ROUNDING)
    torch.testing.assert_close(ours.first_deltas, theirs.first_deltas, **ROUNDING)


# --- the setting -------------------------------------------------------------------------------------------------


def test_the_setting_has_two_values() -> None:
    assert TrainingSettings().uncertainty_optimiser == "sgd"
    assert (
        checked(TrainingSettings, {"uncertainty_optimiser": "adam"}).uncertainty_optimiser == "adam"
    )
    with pytest.raises(SettingsError, match="uncertainty_optimiser: unknown value 'adamw'"):
        checked(TrainingSettings, {"uncertainty_optimiser": "adamw"})


@pytest.mark.parametrize("kind", KINDS)
def test_the_setting_reaches_the_measurement(
    kind: type[Engine], federation: udjfl.Federation
) -> None:
    """The uncertainty is the mean entropy of a model that torch's Adam trained."""
    how: dict[str, Any] = {
        "hidden": 6,
        "uncertainty_epochs": 4,
        "uncertainty_lr": 0.02,
        "batch_size": 8,
    }
    settings = TrainingSettings(**how, uncertainty_optimiser="adam")
    found = measure(
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
        assert found[client.id] == pytest.approx(float(-(p * p.log()).sum(dim=1).mean()), rel=1e-4)


TINY: dict[str, Any] = {
    "model": "logistic",
    "rounds": 2,
    "uncertainty_epochs": 2,
    "uncertainty_lr": 0.05,
}


def test_a_run_keeps_it_and_is_resumed_with_the_same(
    tmp_path: Path, federation: udjfl.Federation
) -> None:
    result = udjfl.simulate(federation, "rawls", uncertainty_optimiser="adam", out=tmp_path, **TINY)
    kept = json.loads((tmp_path / "settings.json").read_text(encoding="utf-8"))
    assert kept["training"]["uncertainty_optimiser"] == "adam"
    with pytest.raises(StorageError, match="started with another uncertainty_optimiser"):
        udjfl.simulate(federation, "rawls", out=tmp_path, resume=True, **TINY)
    again = udjfl.simulate(
        federation, "rawls", uncertainty_optimiser="adam", out=tmp_path, resume=True, **TINY
    )
    assert again.uncertainty == result.uncertainty
    assert udjfl.simulate(federation, "rawls", **TINY).uncertainty != result.uncertainty


def test_the_rounds_stay_sgd(federation: udjfl.Federation) -> None:
    given = {name: 0.1 * (place + 1) for place, name in enumerate(federation.ids)}
    one, other = (
        udjfl.simulate(
            federation, "rawls", uncertainty=given, uncertainty_optimiser=name, **TINY
        ).model
        for name in ("sgd", "adam")
    )
    assert torch.equal(to_vector(one), to_vector(other))
