"""Several federations in one engine: each has the bits that it has in an engine of its own."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from engine_cases import (
    NO_BUFFERS,
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
    Correction,
    Engine,
    EnginePart,
    EvaluationJob,
    EvaluationSet,
    LocalTraining,
    SerialEngine,
    StackedEngine,
    TrainJob,
    evaluate_together,
    make_engines,
    one_thread,
    probe,
    stacked,
    train_together,
)
from udjfl.models import logistic, mlp, to_vector

EQUAL = [[40] * 3, [40] * 3]
UNEQUAL = [[33, 20, 1], [64, 7, 40], [5, 100, 18]]


def make_module(seed: int, features: int = 16, hidden: int = 16, weight_norm: bool = True) -> Any:
    return seeded(lambda: mlp((features,), 3, hidden=hidden, weight_norm=weight_norm), seed)


class Seeds:
    """Federations with a model each: all in one engine, and each in one of its own."""

    def __init__(self, sizes: Sequence[Sequence[int]], workers: int = 1, **shape: Any) -> None:
        self.modules = [make_module(seed, **shape) for seed in range(len(sizes))]
        features = shape.get("features", 16)
        self.clients = [make_clients(own, (features,), groups=True) for own in sizes]
        self.starts = [to_vector(module) for module in self.modules]
        self.together = make_engines(
            [copy.deepcopy(module) for module in self.modules], self.clients, workers=workers
        )
        pairs = zip(self.modules, self.clients, strict=True)
        self.alone = [StackedEngine(copy.deepcopy(module), own) for module, own in pairs]

    def __len__(self) -> int:
        return len(self.modules)

    def address(self, seed: int) -> tuple[int, str, int]:
        return (seed, "batches", 3)

    def assert_equal(self, jobs: Sequence[tuple[int, TrainJob]]) -> None:
        """Jobs of several seeds, by seed, have the bits that each has alone."""
        with one_thread():
            results = train_together([(self.together[seed], job) for seed, job in jobs])
            for (seed, job), result in zip(jobs, results, strict=True):
                assert_equal_results(self.alone[seed].train_many([job])[0], result)

    def make_jobs(
        self, works: Sequence[LocalTraining], absent: Sequence[int] = ()
    ) -> list[tuple[int, TrainJob]]:
        """A job for each setting and seed; the client `absent[seed]` does not take part."""
        jobs = []
        for seed, start in enumerate(self.starts):
            indices = list(range(len(self.clients[seed])))
            if absent:
                indices.remove(absent[seed])
            for number, work in enumerate(works):
                vector = start * (1 + 0.1 * number)
                jobs.append((seed, TrainJob(vector, NO_BUFFERS, indices, work, self.address(seed))))
        return jobs


def squared_mean(
    losses: Tensor, weights: Tensor, groups: Tensor | None, multipliers: Tensor | None
) -> Tensor:
    assert groups is not None
    factors = 1.0 if multipliers is None else multipliers
    return factors * (losses * weights * (1 + groups)).sum(dim=1).square()


@pytest.mark.parametrize("sizes", [EQUAL, UNEQUAL])
@pytest.mark.parametrize("loss_at", ["received", "running", "final"])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("batch_size", [8, 32, 300])
def test_other_seeds_change_no_bit(
    sizes: list[list[int]], loss_at: Any, momentum: float, batch_size: int
) -> None:
    work = make_work(
        loss_at=loss_at, momentum=momentum, batch_size=batch_size, first_step=True, epochs=2
    )
    seeds = Seeds(sizes)
    seeds.assert_equal(seeds.make_jobs([work, replace(work, lr=0.2), replace(work, lr=0.05)]))


@pytest.mark.parametrize("sizes", [EQUAL, UNEQUAL])
def test_objectives_and_their_multipliers_stay_with_their_seed(sizes: list[list[int]]) -> None:
    seeds = Seeds(sizes)
    plain = make_work(objective=squared_mean, batch_size=32)
    jobs = seeds.make_jobs([make_work(batch_size=32), plain, plain])
    for number, (seed, job) in enumerate(jobs):
        if number % 3 == 2:
            factors = torch.tensor([1.0, 2.0, 0.5]) * (seed + 1)
            jobs[number] = (seed, replace(job, work=replace(plain, multipliers=factors)))
    seeds.assert_equal(jobs)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("axes", [1, 2])
def test_a_correction_stays_with_its_seed(momentum: float, axes: int) -> None:
    seeds = Seeds(UNEQUAL)
    work = make_work(momentum=momentum)
    jobs = seeds.make_jobs([work])
    corrected = []
    for seed, job in jobs:
        tensor = seeds.starts[seed] * (seed + 1)
        if axes == 2:
            tensor = tensor * torch.arange(1.0, 1 + len(job.client_indices))[:, None]
        correction = Correction(0.7, 0.1, anchor=tensor, shift=0.1 * tensor)
        corrected.append((seed, replace(job, work=replace(work, correction=correction))))
    seeds.assert_equal([*corrected, *jobs])


def test_adam_and_several_jobs_of_one_seed_with_other_batches() -> None:
    """As an ensemble: the same clients, several addresses."""
    seeds = Seeds(UNEQUAL)
    jobs = [
        (seed, replace(job, address=(seed, "alone", number)))
        for seed, job in seeds.make_jobs([make_work(optimiser="adam", batch_size=16)])
        for number in range(3)
    ]
    seeds.assert_equal(jobs)


def test_the_seeds_may_have_different_clients_present() -> None:
    seeds = Seeds(UNEQUAL)
    seeds.assert_equal(seeds.make_jobs([make_work(), make_work(lr=0.3)], absent=(2, 0, 1)))
    only = [
        (seed, replace(job, client_indices=[seed])) for seed, job in seeds.make_jobs([make_work()])
    ]
    seeds.assert_equal(only)


def test_clients_may_start_from_models_of_their_own() -> None:
    seeds = Seeds(UNEQUAL)
    jobs = [
        (seed, replace(job, vector=torch.stack([job.vector * scale for scale in (1.0, 0.9, 1.1)])))
        for seed, job in seeds.make_jobs([make_work(), make_work(lr=0.3)])
    ]
    seeds.assert_equal(jobs)


def test_a_seed_without_one_of_the_methods_changes_no_other() -> None:
    seeds = Seeds(UNEQUAL)
    jobs = seeds.make_jobs([make_work(), make_work(momentum=0.0), make_work(lr=0.3)])
    seeds.assert_equal(jobs[:4] + jobs[5:])


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    sizes=st.lists(st.lists(st.integers(1, 90), min_size=1, max_size=4), min_size=2, max_size=4),
    features=st.sampled_from([16, 48, 64]),
    hidden=st.sampled_from([16, 32, 64]),
    weight_norm=st.booleans(),
    batch_size=st.sampled_from([1, 7, 32, 128]),
    chunk_bytes=st.sampled_from([1, 200_000, 16_000_000]),
)
def test_neither_sizes_nor_chunks_nor_padding_change_a_bit(
    sizes: list[list[int]],
    features: int,
    hidden: int,
    weight_norm: bool,
    batch_size: int,
    chunk_bytes: int,
) -> None:
    seeds = Seeds(sizes, features=features, hidden=hidden, weight_norm=weight_norm)
    works = [make_work(batch_size=batch_size, epochs=1, lr=lr) for lr in (0.01, 0.02)]
    jobs = seeds.make_jobs(works)
    with pytest.MonkeyPatch.context() as patch, one_thread():
        expected = [seeds.alone[seed].train_many([job])[0] for seed, job in jobs]
        patch.setattr(stacked, "CHUNK_BYTES", chunk_bytes)
        results = train_together([(seeds.together[seed], job) for seed, job in jobs])
    for ours, theirs in zip(results, expected, strict=True):
        assert_equal_results(ours, theirs)


def test_worker_processes_change_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacked, "SHARED_FLOPS", 0)
    monkeypatch.setattr(stacked, "STEP_FLOPS", 1)
    seeds = Seeds(UNEQUAL, workers=2)
    works = [
        make_work(),
        make_work(correction=Correction(0.5, 0.1, shift=seeds.starts[0])),
        make_work(objective=squared_mean, batch_size=32),
    ]
    seeds.assert_equal(seeds.make_jobs(works))
    seeds.together[0].whole.close()


def evaluate(
    engines: Sequence[Engine], models: Sequence[Sequence[Tensor]], sets: Sequence[EvaluationSet]
) -> list[list[tuple[Tensor, Tensor]]]:
    jobs = [
        (engine, EvaluationJob([(vector, NO_BUFFERS) for vector in own], data))
        for engine, own, data in zip(engines, models, sets, strict=True)
    ]
    with one_thread():
        return evaluate_together(jobs, training_follows=False)()


@pytest.mark.parametrize("sizes", [[[700, 330], [400, 630], [1030, 1], [5, 7]], [[9, 9]] * 4])
@pytest.mark.parametrize("features", [16, 64])
def test_models_of_several_seeds_are_evaluated_together(
    sizes: list[list[int]], features: int
) -> None:
    """Three sets have 1,030 examples, in parts of other sizes; one has others, and fewer models."""
    seeds = Seeds(sizes, features=features, hidden=64)
    sets = [EvaluationSet([c.train for c in own], is_kept=True) for own in seeds.clients]
    models = [[start, start * 1.1, start * 0.9] for start in seeds.starts]
    models[3] = models[3][:1]
    for _ in range(2):  # what is kept is used the second time
        together = evaluate(seeds.together, models, sets)
        for engine, own, data, scores in zip(seeds.alone, models, sets, together, strict=True):
            (expected,) = evaluate([engine], [own], [data])
            for ours, theirs in zip(scores, expected, strict=True):
                assert torch.equal(ours[0], theirs[0])
                assert torch.equal(ours[1], theirs[1])


def test_ties_and_models_that_are_no_numbers_are_scored_as_argmax_does() -> None:
    """All logits of a zero model are equal: class 0 is its answer. NaN is no answer at all."""
    seeds = Seeds([[50, 30]], weight_norm=False)
    data = EvaluationSet([client.train for client in seeds.clients[0]])
    zero = torch.zeros_like(seeds.starts[0])
    (losses, accuracies), (_, nowhere) = evaluate(
        [seeds.alone[0]], [[zero, zero * torch.nan]], [data]
    )[0]
    classes = [client.train.y for client in seeds.clients[0]]
    assert accuracies.tolist() == [float((y == 0).double().mean()) for y in classes]
    torch.testing.assert_close(losses, torch.full((2,), 3.0, dtype=torch.float64).log())
    assert nowhere.tolist() == accuracies.tolist()  # argmax of NaN is the first class too


def test_a_part_is_an_engine_for_its_federation() -> None:
    seeds = Seeds(UNEQUAL)
    start, part, own = seeds.starts[1], seeds.together[1], seeds.alone[1]
    assert isinstance(part, EnginePart)
    assert part.clients == own.clients
    names = ("losses", "gradients", "accuracies", "group_gaps")
    ours, theirs = (probe(e, start, NO_BUFFERS, [0, 2], names) for e in (part, own))
    for name in names:
        assert torch.equal(ours[name], theirs[name])
    assert torch.equal(
        part.probabilities(start, NO_BUFFERS, 2), own.probabilities(start, NO_BUFFERS, 2)
    )
    assert torch.equal(
        part.train_losses(start, NO_BUFFERS, [1, 2]), own.train_losses(start, NO_BUFFERS, [1, 2])
    )
    data = EvaluationSet([client.test for client in own.clients])
    for one, other in zip(
        part.evaluate(start, NO_BUFFERS, data), own.evaluate(start, NO_BUFFERS, data), strict=True
    ):
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("make", "engine"),
    [
        (lambda: mlp((16,), 3, hidden=5), "auto"),  # matrices at any address
        (lambda: logistic((16,), 5), "serial"),
        (lambda: nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 3)), "auto"),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_models_whose_bits_could_depend_on_others_have_engines_of_their_own(
    make: Any, engine: Any
) -> None:
    modules = [seeded(make, seed) for seed in range(2)]
    engines = make_engines(modules, [make_clients([9], (16,))] * 2, engine)
    assert all(e.whole is e for e in engines)
    assert engines[0] is not engines[1]


def test_models_or_data_of_other_shapes_are_not_joined() -> None:
    other_models = [make_module(0), make_module(1, hidden=32)]
    odd_examples = [make_module(seed, features=13) for seed in range(2)]
    for modules, features in ((other_models, 16), (odd_examples, 13)):
        engines = make_engines(modules, [make_clients([9], (features,))] * 2)
        assert all(e.whole is e for e in engines)


def test_engines_of_any_kind_can_be_given_jobs_together() -> None:
    seeds = Seeds([[9, 12], [7, 8]])
    pairs = zip(seeds.modules, seeds.clients, strict=True)
    serial = [SerialEngine(copy.deepcopy(module), own) for module, own in pairs]
    jobs = seeds.make_jobs([make_work()])
    results = train_together([(serial[seed], job) for seed, job in jobs])
    for (seed, job), result in zip(jobs, results, strict=True):
        assert_equal_results(result, serial[seed].train_many([job])[0])


def test_what_is_prepared_for_a_set_is_kept_only_if_it_is_used_again() -> None:
    seeds = Seeds([[20, 20]] * 2)
    whole = seeds.together[0].whole
    assert isinstance(whole, StackedEngine)
    models = [[start] for start in seeds.starts]
    for is_kept, count in ((False, 0), (True, 1)):
        sets = [EvaluationSet([c.train for c in own], is_kept) for own in seeds.clients]
        evaluate(seeds.together, models, sets)
        evaluate(seeds.together, models, sets)
        assert whole._make_evaluation_batch.cache_info().currsize == count


def test_clients_of_a_seed_are_found_by_their_number_there() -> None:
    first = make_clients([4, 5], (16,))
    second = make_clients({"a": 6, "b": 7}, (16,))
    clients: list[tuple[udjfl.Client, ...]] = [first, second]
    engines = make_engines([make_module(0), make_module(1)], clients)
    assert [[c.id for c in e.clients] for e in engines] == [["client-0", "client-1"], ["a", "b"]]
    assert engines[1].sizes == [6, 7]
    job = TrainJob(torch.zeros(1), NO_BUFFERS, [1], make_work(), (0, "batches", 1))
    assert engines[1].in_whole(job).client_indices == [3]
