"""On a device that is not the CPU: everything is where it has to be, and nobody waits for the device in every batch.

There need not be a GPU: torch's `meta` device has shapes and no numbers. Here every operation on tensors of which some were
left on the CPU fails, as it would on a GPU; and what is read back from the device, for which a GPU would have to finish what it
was given, is counted, and is zero.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import udjfl
from udjfl.engine import Engine, LocalTraining, MappedEngine, SerialEngine, StackedEngine, TrainJob
from udjfl.engine.base import EvaluationSet
from udjfl.methods import METHODS
from udjfl.methods.base import THEORIES
from udjfl.models import WeightNormLinear, buffers_to_vector, cnn, to_vector
from udjfl.models.masked import MaskedLinear

ENGINES = {"serial": SerialEngine, "stacked": StackedEngine, "mapped": MappedEngine}
ADDRESS = (0, "batches", 1)
aten = torch.ops.aten


class ReadBack(TorchDispatchMode):
    """Counts how often something is read from the device, and refuses operations on tensors here and there."""

    def __init__(self) -> None:
        super().__init__()
        self.times = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        tensors = [value for value in tree_leaves((args, kwargs)) if isinstance(value, Tensor)]
        away = any(tensor.is_meta for tensor in tensors)
        if away and function is aten._local_scalar_dense.default:
            self.times += 1
            return 0.0
        if (
            away
            and function is aten._to_copy.default
            and torch.device(kwargs.get("device") or "meta").type == "cpu"
        ):
            self.times += 1
            return torch.zeros(args[0].shape, dtype=kwargs.get("dtype") or args[0].dtype)
        # A single number may be anywhere, and copying is what brings things from here to there.
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
    """A device without numbers has no random ones."""
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
    found = (losses * weights).sum(dim=1)
    return found if multipliers is None else found * multipliers


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


KINDS: list[tuple[str, Callable[[], nn.Module]]] = [
    *[("stacked", build) for build in (perceptron, normalised, masked)],
    *[("serial", build) for build in (perceptron, with_batch_norm, images)],
    *[("mapped", build) for build in (perceptron, with_batch_norm, images)],
]
WORKS = {
    "running": {"loss_at": "running"},
    "received": {"loss_at": "received"},
    "final": {"loss_at": "final"},
    "Adam": {"loss_at": "running", "optimiser": "adam"},
    "pull": {"loss_at": "running", "pull": "a vector", "pull_share": 0.25},
    "objective": {"loss_at": "running", "objective": mean_loss, "multipliers": torch.ones(3)},
    "first step": {"loss_at": "running", "first_step": True},
}


def on_the_device(engine: str, module: nn.Module, examples: int = 40) -> tuple[Engine, TrainJob]:
    """An engine there, and something for its clients to do, which comes from here."""
    shape = (1, 8, 8) if any(isinstance(part, nn.Conv2d) for part in module.modules()) else (6,)
    vector, buffers = to_vector(module), buffers_to_vector(module)
    found = ENGINES[engine](module, federation(shape, examples).clients, "meta")
    return found, TrainJob(vector, buffers, [0, 1, 2], LocalTraining(0.1, 0.9, 8, 2), ADDRESS)


def work(job: TrainJob, **kwargs: Any) -> LocalTraining:
    if "pull" in kwargs:
        kwargs["pull"] = torch.ones_like(job.vector)
    return LocalTraining(0.1, 0.9, 8, 2, **kwargs)


@pytest.mark.parametrize("asked", WORKS)
@pytest.mark.parametrize(("engine", "build"), KINDS)
def test_training_is_all_on_the_device(
    engine: str, build: Callable[[], nn.Module], asked: str
) -> None:
    there, job = on_the_device(engine, build())
    assert all(data.x.is_meta and data.y.is_meta for data in there.train_data)
    with ReadBack():
        result = there.train(job.vector, job.buffers, job.rows, work(job, **WORKS[asked]), ADDRESS)
    assert result.deltas.is_meta
    assert result.deltas.shape == (3, len(job.vector))
    assert (result.first_deltas is not None) == (asked == "first step")


@pytest.mark.parametrize("asked", WORKS)
@pytest.mark.parametrize(("engine", "build"), KINDS)
def test_nobody_waits_for_the_device_in_every_batch(
    engine: str, build: Callable[[], nn.Module], asked: str
) -> None:
    """However many batches there are, the device is read as often."""
    times = []
    for examples in (20, 200):
        there, job = on_the_device(engine, build(), examples)
        with ReadBack() as read:
            there.train(job.vector, job.buffers, job.rows, work(job, **WORKS[asked]), ADDRESS)
        times.append(read.times)
    assert times[0] == times[1]
    assert times[0] <= 3 * len(job.rows)


def test_what_reads_the_device_in_every_batch_is_counted() -> None:
    """Or the test above could not fail."""

    def waiting(
        losses: Tensor, weights: Tensor, groups: Tensor | None, multipliers: Tensor | None
    ) -> Tensor:
        float(losses.detach().sum())
        return mean_loss(losses, weights, groups, multipliers)

    there, job = on_the_device("serial", perceptron())
    with ReadBack() as read:
        there.train(
            job.vector,
            job.buffers,
            job.rows,
            work(job, loss_at="running", objective=waiting),
            ADDRESS,
        )
    assert read.times >= 3 * 2 * 5


def test_what_was_left_on_the_cpu_is_found() -> None:
    """Or these tests could not fail."""
    there, job = on_the_device("stacked", perceptron())
    there.y = there.y.new_zeros(there.y.shape, device="cpu")
    with ReadBack(), pytest.raises(RuntimeError, match="different devices"):
        there.train(job.vector, job.buffers, job.rows, work(job, loss_at="running"), ADDRESS)


@pytest.mark.parametrize(("engine", "build"), KINDS)
def test_several_jobs_and_evaluation_are_on_the_device(
    engine: str, build: Callable[[], nn.Module]
) -> None:
    there, job = on_the_device(engine, build())
    jobs = [
        TrainJob(job.vector, job.buffers, job.rows, work(job, loss_at=at), ADDRESS)
        for at in ("running", "received")
    ]
    shape = there.train_data[0].x.shape[1:]
    tests = EvaluationSet(
        [client.test.on(there.device) for client in federation(tuple(shape)).clients]
    )
    with ReadBack():
        results = there.train_many(jobs)
        (losses, accuracies), _ = there.evaluate_many([(job.vector, job.buffers)] * 2, tests)
    assert [result.deltas.is_meta for result in results] == [True, True]
    assert losses.shape == accuracies.shape == (3,)
    assert losses.device.type == accuracies.device.type == "cpu"


@pytest.mark.parametrize("method", sorted({*METHODS, *THEORIES} - {"udj"}))
def test_a_run_goes_through_on_the_device(method: str) -> None:
    """The server is on the CPU; what clients send is brought there, whatever the method does with it."""
    with ReadBack():
        result = udjfl.simulate(
            federation(),
            method,
            rounds=3,
            hidden=5,
            batch_size=8,
            device="meta",
            uncertainty={"0": 0.3, "1": 0.6, "2": 0.9},
        )
    assert len(result.client_accuracy) == 3


@pytest.mark.parametrize(("engine", "build"), KINDS)
def test_what_uncertainty_is_made_of_comes_from_the_device(
    engine: str, build: Callable[[], nn.Module]
) -> None:
    there, job = on_the_device(engine, build())
    with ReadBack():
        found = there.probabilities(job.vector, job.buffers, 0)
    assert found.shape == (40, 3)
