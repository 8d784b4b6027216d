"""The stacked engine: several jobs at once, in chunks, give each job the numbers it has alone."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import pytest
import torch
from engine_cases import (
    ADDRESS,
    NO_BUFFERS,
    assert_close_results,
    assert_equal_results,
    make_clients,
    make_work,
    seeded,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import udjfl
from udjfl.engine import (
    EvaluationSet,
    LocalResult,
    SerialEngine,
    StackedEngine,
    TrainJob,
    one_thread,
    stacked,
)
from udjfl.engine._grid import ChunkTask, Grid, spread_over_cores
from udjfl.engine._stacked_mlp import log_softmax_at
from udjfl.models import WeightNormLinear, logistic, mlp, to_vector
from udjfl.models.masked import adapt


def models(features: int = 3, hidden: int = 4, count: int = 3) -> tuple[nn.Module, list[Tensor]]:
    """A model, and the parameters of several of its shape."""
    found = [seeded(lambda: mlp((features,), 3, hidden=hidden), seed) for seed in range(count)]
    return found[0], [to_vector(module) for module in found]


def train_on_both(
    module: nn.Module, clients: Sequence[udjfl.Client], jobs: list[TrainJob]
) -> list[tuple[LocalResult, LocalResult]]:
    """The results of each job on the serial and on the stacked engine."""
    serial, stack = (
        kind(copy.deepcopy(module), clients).train_many(jobs)
        for kind in (SerialEngine, StackedEngine)
    )
    return list(zip(serial, stack, strict=True))


@pytest.mark.parametrize("sizes", [[160] * 5, [96] * 15, [333, 200, 129, 77, 1]])
@pytest.mark.parametrize(("features", "weight_norm"), [(784, False), (784, True), (64, True)])
def test_other_jobs_change_no_bit_of_the_default_models(
    sizes: list[int], features: int, weight_norm: bool
) -> None:
    modules = [
        seeded(lambda: mlp((features,), 10, hidden=64, weight_norm=weight_norm), seed)
        for seed in range(5)
    ]
    engine = StackedEngine(modules[0], make_clients(sizes, (features,)))
    indices = list(range(len(sizes)))
    work = make_work(batch_size=128, loss_at="running", first_step=True)
    jobs = [TrainJob(to_vector(module), NO_BUFFERS, indices, work, ADDRESS) for module in modules]
    with one_thread():
        for job, result in zip(jobs, engine.train_many(jobs), strict=True):
            assert_equal_results(engine.train_many([job])[0], result)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=5),
    features=st.sampled_from([1, 3, 8, 33, 64]),
    hidden=st.sampled_from([1, 3, 5, 16, 20]),
    batch_size=st.sampled_from([1, 4, 7, 32]),
    loss_at=st.sampled_from(["received", "running", "final"]),
)
def test_other_jobs_change_no_more_than_the_last_digits(
    sizes: list[int], features: int, hidden: int, batch_size: int, loss_at: str
) -> None:
    """Where a matrix does not begin at a multiple of 64 bytes, a product may add up differently."""
    module, starts = models(features, hidden)
    engine = StackedEngine(module, make_clients(sizes, (features,)))
    work = make_work(lr=0.01, batch_size=batch_size, epochs=1, loss_at=loss_at, first_step=True)
    jobs = [TrainJob(start, NO_BUFFERS, list(range(len(sizes))), work, ADDRESS) for start in starts]
    for job, result in zip(jobs, engine.train_many(jobs), strict=True):
        assert_close_results(engine.train_many([job])[0], result)


def test_settings_side_by_side_agree_with_serial() -> None:
    """Different learning rates, and own models of clients, in one grid."""
    module, starts = models()
    own = torch.stack([torch.stack([starts[1], starts[2], starts[0]]), torch.stack(starts)])
    jobs = [
        *(
            TrainJob(start, NO_BUFFERS, [0, 1, 2], make_work(lr=lr), ADDRESS)
            for start, lr in zip(starts, (0.1, 0.2, 0.05), strict=True)
        ),
        *(
            TrainJob(vectors, NO_BUFFERS, [0, 1, 2], make_work(lr=lr), ADDRESS)
            for vectors, lr in zip(own, (0.1, 0.3), strict=True)
        ),
        TrainJob(starts[0], NO_BUFFERS, [2, 0], make_work(), ADDRESS),
        TrainJob(starts[0], NO_BUFFERS, [0, 1, 2], make_work(momentum=0.0), ADDRESS),
    ]
    for one, other in train_on_both(module, make_clients([7, 12, 3]), jobs):
        assert_close_results(one, other)


def test_masks_side_by_side_agree_with_serial() -> None:
    module = adapt(models()[0], 0.5, torch.Generator().manual_seed(0))
    starts = [to_vector(module), to_vector(module).flip(0)]
    jobs = [TrainJob(start, NO_BUFFERS, [0, 1], make_work(), ADDRESS) for start in starts]
    for one, other in train_on_both(module, make_clients([7, 12]), jobs):
        assert_close_results(one, other)


def test_chunks_change_nothing_but_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    module, starts = models()
    engine = StackedEngine(module, make_clients([11, 40, 3, 25, 25, 8, 1]))
    job = TrainJob(starts[0], NO_BUFFERS, list(range(7)), make_work(), ADDRESS)
    whole = engine.train_many([job])[0]
    monkeypatch.setattr(stacked, "CHUNK_BYTES", 1)
    assert_close_results(whole, engine.train_many([job])[0])


@pytest.mark.parametrize("workers", [2, 3])
def test_settings_spread_over_cores_change_no_bit(
    workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("SHARED_FLOPS", 0), ("STEP_FLOPS", 1), ("CHUNK_BYTES", 1)):
        monkeypatch.setattr(stacked, name, value)  # one client is a chunk
    clients = make_clients([9] * 5, (16,))
    module = seeded(lambda: mlp((16,), 3, hidden=16))
    works = [
        make_work(lr=0.1, loss_at="running"),
        make_work(lr=0.1, objective=double_mean, multipliers=torch.arange(1.0, 6.0)),
        make_work(lr=0.2, loss_at="received", first_step=True),
        make_work(lr=0.3, loss_at="final"),
        make_work(lr=0.4, loss_at="running"),
    ]
    indices = list(range(5))
    jobs = [
        TrainJob(to_vector(module) * (1 + number / 9), NO_BUFFERS, indices, work, ADDRESS)
        for number, work in enumerate(works)
    ]
    alone = StackedEngine(copy.deepcopy(module), clients)
    together = StackedEngine(copy.deepcopy(module), clients, workers=workers)
    with one_thread():
        results = together.train_many(jobs)
        for ours, job in zip(results, jobs, strict=True):
            assert_equal_results(ours, alone.train(job))
    together.close()


def double_mean(
    losses: Tensor, weights: Tensor, groups: Tensor | None, multipliers: Tensor | None
) -> Tensor:
    assert multipliers is not None
    return 2 * multipliers * (losses * weights).sum(dim=1)


def test_only_tasks_that_are_left_over_are_split() -> None:
    """Five tasks of five settings: two cores have two each, and share the settings of the last."""
    clients = make_clients([9] * 5, (16,))
    module = seeded(lambda: mlp((16,), 3, hidden=16))
    jobs = [
        TrainJob(to_vector(module), NO_BUFFERS, list(range(5)), make_work(lr=lr), ADDRESS)
        for lr in (0.1, 0.2, 0.3, 0.4, 0.5)
    ]
    grid = Grid.of([jobs], torch.device("cpu"))
    tasks = [ChunkTask(grid, [row]) for row in range(len(clients))]

    def shares(n_tasks: int, n_cores: int) -> list[tuple[int, int]]:
        spread = spread_over_cores(tasks[:n_tasks], n_cores)
        return [(task.rows[0], len(task.works)) for task in spread]

    assert shares(5, 2) == [(0, 5), (1, 5), (2, 5), (3, 5), (4, 3), (4, 2)]
    assert shares(4, 2) == [(0, 5), (1, 5), (2, 5), (3, 5)]
    assert shares(1, 8) == [(0, 1)] * 5
    assert shares(5, 1) == [(row, 5) for row in range(5)]
    parts = spread_over_cores(tasks[:1], 2)
    assert [work.lr for task in parts for work in task.works] == [0.1, 0.2, 0.3, 0.4, 0.5]


def test_chunks_bound_memory_whatever_the_number_of_clients() -> None:
    module, _ = models(hidden=64, features=64)
    engine = StackedEngine(module, make_clients([48] * 3, (64,)))
    size = {
        n: engine._chunk_size([48] * n, make_work(batch_size=128), 1)
        for n in (100, 10_000, 100_000)
    }
    assert size[10_000] == size[100_000]
    assert size[10_000] * 4 * 3 * len(to_vector(module)) <= stacked.CHUNK_BYTES
    with_settings = engine._chunk_size([48] * 10_000, make_work(batch_size=128), 8)
    assert with_settings < size[10_000]


def test_models_are_evaluated_together() -> None:
    module, starts = models()
    clients = make_clients([30, 7])
    engine, serial = (
        kind(copy.deepcopy(module), clients) for kind in (StackedEngine, SerialEngine)
    )
    data = EvaluationSet([client.train for client in clients])
    together = engine.evaluate_many([(start, NO_BUFFERS) for start in starts], data)
    for start, (losses, accuracies) in zip(starts, together, strict=True):
        alone = serial.evaluate(start, NO_BUFFERS, data)
        torch.testing.assert_close(losses, alone[0], rtol=1e-6, atol=1e-7)
        assert torch.equal(accuracies, alone[1])
        assert torch.equal(engine.evaluate(start, NO_BUFFERS, data)[0], losses)


def test_written_out_gradients_are_autograds() -> None:
    """Each kind of layer against torch.autograd on one model: one step of lr 1 is the gradient."""
    plain = seeded(
        lambda: nn.Sequential(
            nn.Flatten(),
            nn.Linear(3, 6),
            nn.ReLU(),
            WeightNormLinear(6, 5),
            nn.ReLU(),
            nn.Linear(5, 4),
            WeightNormLinear(4, 3),
        )
    )
    (client,) = make_clients([20])
    loss = nn.functional.cross_entropy(plain(client.train.x), client.train.y)
    gradient = torch.cat(
        [g.reshape(-1) for g in torch.autograd.grad(loss, list(plain.parameters()))]
    )
    engine = StackedEngine(copy.deepcopy(plain), [client])
    result = engine.train(
        TrainJob(
            to_vector(plain), NO_BUFFERS, [0], make_work(lr=1.0, batch_size=20, epochs=1), ADDRESS
        )
    )
    torch.testing.assert_close(result.deltas[0], gradient, rtol=1e-4, atol=1e-6)


def test_a_huge_loss_is_finite() -> None:
    """Logits of 1e4: the probability of the label is 0 in float32, its logarithm is not."""
    log_p, gradient = log_softmax_at(torch.tensor([[[1e4, 0.0, -1e4]]]), torch.tensor([[[2]]]))
    assert log_p.tolist() == [[[-2e4]]]
    assert gradient.tolist() == [[[1.0, 0.0, -1.0]]]


def test_a_single_layer_is_both_first_and_last() -> None:
    module = logistic((3,), 3)
    jobs = [
        TrainJob(to_vector(module) * scale, NO_BUFFERS, [0, 1], make_work(), ADDRESS)
        for scale in (1.0, -1.0)
    ]
    for one, other in train_on_both(module, make_clients([9, 4]), jobs):
        assert_close_results(one, other)
