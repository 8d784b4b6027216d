"""Engines on a device that is not the CPU: all tensors are there, and no batch waits for it.

A GPU is not needed: torch's `meta` device has shapes without numbers. Here every operation on
tensors of two devices fails, as it would on a GPU; and reading from the device, for which a GPU
would have to finish its work, is counted and returns zeros.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from engine_cases import ENGINES
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import udjfl
from udjfl.engine import (
    Correction,
    Engine,
    EvaluationSet,
    LocalTraining,
    StackedEngine,
    TrainJob,
)
from udjfl.methods import METHODS
from udjfl.methods.base import THEORIES
from udjfl.models import WeightNormLinear, buffers_to_vector, cnn, to_vector
from udjfl.models.masked import MaskedLinear

ADDRESS = (0, "batches", 1)
aten = torch.ops.aten


class CountReads(TorchDispatchMode):
    """Counts reads from the device, and refuses operations on tensors of two devices."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        tensors = [value for value in tree_leaves((args, kwargs)) if isinstance(value, Tensor)]
        on_device = any(tensor.is_meta for tensor in tensors)
        if on_device and function is aten._local_scalar_dense.default:
            self.reads += 1
            return 0.0
        if (
            on_device
            and function is aten._to_copy.default
            and torch.device(kwargs.get("device") or "meta").type == "cpu"
        ):
            self.reads += 1
            return torch.zeros(args[0].shape, dtype=kwargs.get("dtype") or args[0].dtype)
        # A single number may be anywhere, and a copy moves a tensor to another device.
        if (
            function is not aten.copy_.default
            and len({tensor.device for tensor in tensors if tensor.ndim}) > 1
        ):
            raise RuntimeError(f"{function} of tensors on different devices")
        assert not (function is aten.copy_.default and args[1].is_meta and not args[0].is_meta), (
            "not counted"
        )
        return function(*args, **kwargs)


@pytest.fixture(autouse=True)
def no_generator(monkeypatch: pytest.MonkeyPatch) -> None:
    """The meta device has no generator."""
    monkeypatch.setattr(torch.random, "fork_rng", lambda **_: contextlib.nullcontext())


def federation(shape: tuple[int, ...] = (6,), examples: int = 40) -> udjfl.Federation:
    def part(n: int) -> tuple[Tensor, Tensor]:
        return torch.randn(n, *shape), torch.arange(n) % 3

    return udjfl.Federation.from_arrays(
        {i: (*part(examples + 2 * i), *part(9)) for i in range(3)},
        test=part(9),
        class_names=["a", "b", "c"],
    )


def mean_loss(
    losses: Tensor, weights: Tensor, groups: Tensor | None, multipliers: Tensor | None
) -> Tensor:
    means = (losses * weights).sum(dim=1)
    return means if multipliers is None else means * multipliers


def perceptron() -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))


def normalised() -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), WeightNormLinear(6, 5), nn.ReLU(), WeightNormLinear(5, 3))


def masked() -> nn.Sequential:
    drawn = torch.Generator().manual_seed(0)
    return nn.Sequential(
        nn.Flatten(), MaskedLinear(6, 5, 0.5, drawn), nn.ReLU(), MaskedLinear(5, 3, 0.5, drawn)
    )


def with_batch_norm() -> nn.Sequential:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3)
    )


def images() -> nn.Module:
    return cnn((1, 8, 8), 3)


CASES: list[tuple[str, Callable[[], nn.Module]]] = [
    *[("stacked", build) for build in (perceptron, normalised, masked)],
    *[("serial", build) for build in (perceptron, with_batch_norm, images)],
    *[("mapped", build) for build in (perceptron, with_batch_norm, images)],
]
WORKS = {
    "running": {"loss_at": "running"},
    "received": {"loss_at": "received"},
    "final": {"loss_at": "final"},
    "Adam": {"loss_at": "running", "optimiser": "adam"},
    "correction": {"loss_at": "running", "correction": Correction(0.75, 0.5)},
    "objective": {"loss_at": "running", "objective": mean_loss, "multipliers": torch.ones(3)},
    "first step": {"loss_at": "running", "first_step": True},
}


def make_on_device(name: str, module: nn.Module, examples: int = 40) -> tuple[Engine, TrainJob]:
    """An engine on the device, and a job whose tensors are on the CPU."""
    shape = (1, 8, 8) if any(isinstance(part, nn.Conv2d) for part in module.modules()) else (6,)
    vector, buffers = to_vector(module), buffers_to_vector(module)
    made = ENGINES[name](module, federation(shape, examples).clients, "meta")
    return made, TrainJob(vector, buffers, [0, 1, 2], LocalTraining(0.1, 0.9, 8, 2), ADDRESS)


def with_work(job: TrainJob, **changes: Any) -> TrainJob:
    """Return the job with other local training."""
    if "correction" in changes:
        rows = torch.ones(len(job.client_indices), len(job.vector))
        changes["correction"] = replace(changes["correction"], anchor=rows, shift=job.vector)
    return replace(job, work=replace(job.work, **changes))


@pytest.mark.parametrize("work_name", WORKS)
@pytest.mark.parametrize(("name", "build"), CASES)
def test_training_is_all_on_the_device(
    name: str, build: Callable[[], nn.Module], work_name: str
) -> None:
    engine, job = make_on_device(name, build())
    assert all(data.x.is_meta and data.y.is_meta for data in engine.train_data)
    with CountReads():
        result = engine.train(with_work(job, **WORKS[work_name]))
    assert result.deltas.is_meta
    assert result.deltas.shape == (3, len(job.vector))
    assert (result.first_deltas is not None) == (work_name == "first step")


@pytest.mark.parametrize("work_name", WORKS)
@pytest.mark.parametrize(("name", "build"), CASES)
def test_no_batch_waits_for_the_device(
    name: str, build: Callable[[], nn.Module], work_name: str
) -> None:
    """The number of reads does not depend on the number of batches."""
    reads = []
    for examples in (20, 200):
        engine, job = make_on_device(name, build(), examples)
        with CountReads() as mode:
            engine.train(with_work(job, **WORKS[work_name]))
        reads.append(mode.reads)
    assert reads[0] == reads[1]
    assert reads[0] <= 3 * len(job.client_indices)


def test_an_objective_that_reads_from_the_device_is_counted() -> None:
    """Without this the test above could not fail."""

    def read_losses(
        losses: Tensor, weights: Tensor, groups: Tensor | None, multipliers: Tensor | None
    ) -> Tensor:
        float(losses.detach().sum())
        return mean_loss(losses, weights, groups, multipliers)

    engine, job = make_on_device("serial", perceptron())
    with CountReads() as mode:
        engine.train(with_work(job, loss_at="running", objective=read_losses))
    assert mode.reads >= 3 * 2 * 5


def test_a_tensor_left_on_the_cpu_is_noticed() -> None:
    """Without this these tests could not fail."""
    engine, job = make_on_device("stacked", perceptron())
    assert isinstance(engine, StackedEngine)
    engine.y = engine.y.new_zeros(engine.y.shape, device="cpu")
    with CountReads(), pytest.raises(RuntimeError, match="different devices"):
        engine.train(with_work(job, loss_at="running"))


@pytest.mark.parametrize(("name", "build"), CASES)
def test_several_jobs_and_evaluation_are_on_the_device(
    name: str, build: Callable[[], nn.Module]
) -> None:
    engine, job = make_on_device(name, build())
    jobs = [with_work(job, loss_at=at) for at in ("running", "received")]
    shape = engine.train_data[0].x.shape[1:]
    tests = EvaluationSet(
        [client.test.on(engine.device) for client in federation(tuple(shape)).clients]
    )
    with CountReads():
        results = engine.train_many(jobs)
        (losses, accuracies), _ = engine.evaluate_many([(job.vector, job.buffers)] * 2, tests)
    assert [result.deltas.is_meta for result in results] == [True, True]
    assert losses.shape == accuracies.shape == (3,)
    assert losses.device.type == accuracies.device.type == "cpu"


@pytest.mark.parametrize("method", sorted({*METHODS, *THEORIES} - {"udj"}))
def test_a_run_finishes_on_the_device(method: str) -> None:
    """The server is on the CPU; what clients send is moved there, whatever the method."""
    with CountReads():
        result = udjfl.simulate(
            federation(),
            method,
            rounds=3,
            hidden=5,
            batch_size=8,
            device="meta",
            uncertainty={"0": 0.3, "1": 0.6, "2": 0.9},
        )
    assert len(result.client_scores) == 3


@pytest.mark.parametrize(("name", "build"), CASES)
def test_probabilities_come_from_the_device(name: str, build: Callable[[], nn.Module]) -> None:
    engine, job = make_on_device(name, build())
    with CountReads():
        probabilities = engine.probabilities(job.vector, job.buffers, 0)
    assert probabilities.shape == (40, 3)
