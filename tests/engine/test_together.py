"""Several jobs at once, and work spread over cores, give each job the numbers it has alone."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import udjfl
from udjfl.engine import (
    EvaluationSet,
    LocalResult,
    LocalTraining,
    SerialEngine,
    StackedEngine,
    TrainJob,
    one_thread,
    stacked,
)
from udjfl.engine import _stacked_mlp as dense
from udjfl.models import logistic, mlp, to_vector
from udjfl.models.masked import adapt

NO_BUFFERS = torch.zeros(0, dtype=torch.float64)
ADDRESS = (1, "batches", 2)
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


def clients(sizes: list[int], features: int = 3, seed: int = 0) -> tuple[udjfl.Client, ...]:
    rng = np.random.default_rng(seed)

    def part(n: int) -> tuple[np.ndarray, np.ndarray]:
        return rng.normal(size=(n, features)), rng.integers(0, 3, size=n)

    made = {f"client-{i}": (*part(n), *part(2)) for i, n in enumerate(sizes)}
    return udjfl.Federation.from_arrays(made, test=part(2), class_names="xyz").clients


def models(features: int = 3, hidden: int = 4, count: int = 3) -> tuple[nn.Module, list[Tensor]]:
    found = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for _ in range(count):
            found.append(mlp((features,), 3, hidden=hidden))
    return found[0], [to_vector(module) for module in found]


def work(**changes: Any) -> LocalTraining:
    return LocalTraining(**{"lr": 0.1, "momentum": 0.9, "batch_size": 5, "epochs": 2, **changes})


def same(ours: LocalResult, theirs: LocalResult) -> bool:
    pairs = [(ours.deltas, theirs.deltas), (ours.losses, theirs.losses), (ours.steps, theirs.steps)]
    if ours.first_deltas is not None:
        pairs.append((ours.first_deltas, theirs.first_deltas))
    return all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("sizes", [[160] * 5, [96] * 15, [333, 200, 129, 77, 1]])
@pytest.mark.parametrize(("features", "weight_norm"), [(784, False), (784, True), (64, True)])
def test_company_changes_no_bit_of_our_models(
    sizes: list[int], features: int, weight_norm: bool
) -> None:
    with torch.random.fork_rng(devices=[]), one_thread():
        torch.manual_seed(0)
        found = [mlp((features,), 10, hidden=64, weight_norm=weight_norm) for _ in range(5)]
        engine = StackedEngine(found[0], clients(sizes, features))
        rows, how = (
            list(range(len(sizes))),
            work(batch_size=128, loss_at="running", first_step=True),
        )
        jobs = [TrainJob(to_vector(module), NO_BUFFERS, rows, how, ADDRESS) for module in found]
        for job, result in zip(jobs, engine.train_many(jobs), strict=True):
            assert same(engine.train_many([job])[0], result)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=5),
    features=st.sampled_from([1, 3, 8, 33, 64]),
    hidden=st.sampled_from([1, 3, 5, 16, 20]),
    batch_size=st.sampled_from([1, 4, 7, 32]),
    loss_at=st.sampled_from(["received", "running", "final"]),
)
def test_company_changes_no_more_than_the_last_digits(
    sizes: list[int], features: int, hidden: int, batch_size: int, loss_at: str
) -> None:
    """Where matrices lie across the boundaries of 64 bytes, a product may add up in another order."""
    module, starts = models(features, hidden)
    engine = StackedEngine(module, clients(sizes, features))
    how = work(lr=0.01, batch_size=batch_size, epochs=1, loss_at=loss_at, first_step=True)
    jobs = [TrainJob(start, NO_BUFFERS, list(range(len(sizes))), how, ADDRESS) for start in starts]
    for job, result in zip(jobs, engine.train_many(jobs), strict=True):
        alone = engine.train_many([job])[0]
        torch.testing.assert_close(alone.deltas, result.deltas, **CLOSE)
        torch.testing.assert_close(alone.first_deltas, result.first_deltas, **CLOSE)
        torch.testing.assert_close(alone.losses, result.losses, **CLOSE)


def test_settings_side_by_side_agree_with_serial() -> None:
    """Different learning rates and models of clients' own in one grid."""
    module, starts = models()
    data = clients([7, 12, 3])
    own = torch.stack([torch.stack([starts[1], starts[2], starts[0]]), torch.stack(starts)])
    serial, stack = (
        SerialEngine(copy.deepcopy(module), data),
        StackedEngine(copy.deepcopy(module), data),
    )
    jobs = [
        *(
            TrainJob(start, NO_BUFFERS, [0, 1, 2], work(lr=lr), ADDRESS)
            for start, lr in zip(starts, (0.1, 0.2, 0.05), strict=True)
        ),
        *(
            TrainJob(vectors, NO_BUFFERS, [0, 1, 2], work(lr=lr), ADDRESS)
            for vectors, lr in zip(own, (0.1, 0.3), strict=True)
        ),
        TrainJob(starts[0], NO_BUFFERS, [2, 0], work(), ADDRESS),
        TrainJob(starts[0], NO_BUFFERS, [0, 1, 2], work(momentum=0.0), ADDRESS),
    ]
    for one, other in zip(serial.train_many(jobs), stack.train_many(jobs), strict=True):
        torch.testing.assert_close(one.deltas, other.deltas, **CLOSE)
        torch.testing.assert_close(one.losses, other.losses, **CLOSE)
        assert torch.equal(one.steps, other.steps)


def test_masks_side_by_side_agree_with_serial() -> None:
    module, data = adapt(models()[0], 0.5, torch.Generator().manual_seed(0)), clients([7, 12])
    starts = [to_vector(module), to_vector(module).flip(0)]
    jobs = [TrainJob(start, NO_BUFFERS, [0, 1], work(), ADDRESS) for start in starts]
    serial, stack = (
        SerialEngine(copy.deepcopy(module), data),
        StackedEngine(copy.deepcopy(module), data),
    )
    for one, other in zip(serial.train_many(jobs), stack.train_many(jobs), strict=True):
        torch.testing.assert_close(one.deltas, other.deltas, **CLOSE)


def test_chunks_change_nothing_but_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    module, starts = models()
    data = clients([11, 40, 3, 25, 25, 8, 1])
    whole = StackedEngine(copy.deepcopy(module), data).train(
        starts[0], NO_BUFFERS, list(range(7)), work(), ADDRESS
    )
    monkeypatch.setattr(stacked, "CHUNK_BYTES", 1)
    single = StackedEngine(copy.deepcopy(module), data).train(
        starts[0], NO_BUFFERS, list(range(7)), work(), ADDRESS
    )
    torch.testing.assert_close(whole.deltas, single.deltas, **CLOSE)
    torch.testing.assert_close(whole.losses, single.losses, **CLOSE)


def test_the_chunk_bounds_memory_whatever_the_number_of_clients() -> None:
    module, _ = models(hidden=64, features=64)
    engine = StackedEngine(module, clients([48] * 3, 64))
    size = {
        n: engine._chunk_size([48] * n, work(batch_size=128), 1) for n in (100, 10_000, 100_000)
    }
    assert size[10_000] == size[100_000]
    assert size[10_000] * 4 * 3 * len(to_vector(module)) <= stacked.CHUNK_BYTES
    assert (
        engine._chunk_size([48] * 10_000, work(batch_size=128), 8) < size[10_000]
    )  # more settings, fewer clients


def test_models_are_evaluated_together() -> None:
    module, starts = models()
    data = clients([30, 7])
    engine, serial = (
        StackedEngine(copy.deepcopy(module), data),
        SerialEngine(copy.deepcopy(module), data),
    )
    pooled = EvaluationSet([client.train for client in data])
    together = engine.evaluate_many([(start, NO_BUFFERS) for start in starts], pooled)
    for start, (losses, accuracies) in zip(starts, together, strict=True):
        alone = serial.evaluate(start, NO_BUFFERS, pooled)
        torch.testing.assert_close(losses, alone[0], rtol=1e-6, atol=1e-7)
        assert torch.equal(accuracies, alone[1])
        assert torch.equal(engine.evaluate(start, NO_BUFFERS, pooled)[0], losses)


def test_written_out_gradients_are_autograds() -> None:
    """Each layer kind, three deep, against torch.autograd on one model: one step of lr 1 is the gradient."""
    from udjfl.models import WeightNormLinear

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        plain = nn.Sequential(
            nn.Flatten(),
            nn.Linear(3, 6),
            nn.ReLU(),
            WeightNormLinear(6, 5),
            nn.ReLU(),
            nn.Linear(5, 4),
            WeightNormLinear(4, 3),
        )
    (client,) = clients([20])
    loss = nn.functional.cross_entropy(plain(client.train.x), client.train.y)
    gradient = torch.cat(
        [g.reshape(-1) for g in torch.autograd.grad(loss, list(plain.parameters()))]
    )
    engine = StackedEngine(copy.deepcopy(plain), [client])
    result = engine.train(
        to_vector(plain), NO_BUFFERS, [0], work(lr=1.0, batch_size=20, epochs=1), ADDRESS
    )
    torch.testing.assert_close(result.deltas[0], gradient, rtol=1e-4, atol=1e-6)


def test_a_huge_loss_is_finite() -> None:
    """Logits of 1e4: the probability of the label is 0 in float32, its logarithm is not."""
    log_p, slope = dense.log_softmax_at(torch.tensor([[[1e4, 0.0, -1e4]]]), torch.tensor([[[2]]]))
    assert log_p.tolist() == [[[-2e4]]]
    assert slope.tolist() == [[[1.0, 0.0, -1.0]]]


def test_logistic_regression_has_its_gradient_from_the_first_layer() -> None:
    module, data = logistic((3,), 3), clients([9, 4])
    jobs = [
        TrainJob(to_vector(module) * scale, NO_BUFFERS, [0, 1], work(), ADDRESS)
        for scale in (1.0, -1.0)
    ]
    serial, stack = (
        SerialEngine(copy.deepcopy(module), data),
        StackedEngine(copy.deepcopy(module), data),
    )
    for one, other in zip(serial.train_many(jobs), stack.train_many(jobs), strict=True):
        torch.testing.assert_close(one.deltas, other.deltas, **CLOSE)
