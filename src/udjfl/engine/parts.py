"""One engine for the clients of several federations, and the part of it that is one federation.

A part is an engine like any other. What several parts of one engine have to do at the same time,
`train_together` and `evaluate_together` hand over to it in one call, so that it is one program.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from torch import Tensor

from udjfl.data.federation import Examples
from udjfl.engine.base import (
    Engine,
    EvaluationJob,
    EvaluationSet,
    LocalResult,
    Scores,
    TrainJob,
)

Job = TypeVar("Job", TrainJob, EvaluationJob)


class EnginePart(Engine):
    """The clients from number `first` on of an engine, numbered from 0."""

    def __init__(self, whole: Engine, first: int, n_clients: int) -> None:
        self._whole, self.first = whole, first
        self.name, self.device, self.module = whole.name, whole.device, whole.module
        self.criterion = whole.criterion
        self.workers, self.batch_size = whole.workers, whole.batch_size
        own = slice(first, first + n_clients)
        self.clients, self.sizes = whole.clients[own], whole.sizes[own]
        # Where the federation has them: products depend on where a client's data begin in memory.
        self.train_data = Examples.lay_out([c.train.on(self.device) for c in self.clients])
        self._score_sets = {}

    @property
    def whole(self) -> Engine:
        return self._whole

    def in_whole(self, job: TrainJob) -> TrainJob:
        indices = [self.first + index for index in job.client_indices]
        return replace(job, client_indices=indices)

    def train_many(self, jobs: Sequence[TrainJob]) -> list[LocalResult]:
        return self._whole.train_many([self.in_whole(job) for job in jobs])

    def evaluate(self, vector: Tensor, buffers: Tensor, data: EvaluationSet) -> Scores:
        return self._whole.evaluate(vector, buffers, data)

    def evaluate_jobs(self, jobs: Sequence[EvaluationJob]) -> list[list[Scores]]:
        return self._whole.evaluate_jobs(jobs)

    def evaluate_async(
        self, jobs: Sequence[EvaluationJob], training_follows: bool
    ) -> Callable[[], list[list[Scores]]]:
        return self._whole.evaluate_async(jobs, training_follows)


def train_together(jobs: Sequence[tuple[Engine, TrainJob]]) -> list[LocalResult]:
    """Do training jobs of several engines; those of parts of one engine share work."""
    results: dict[int, LocalResult] = {}
    for engine, numbers in _by_engine(jobs):
        own = [jobs[n][0].in_whole(jobs[n][1]) for n in numbers]
        results |= zip(numbers, engine.train_many(own), strict=True)
    return [results[number] for number in range(len(jobs))]


def evaluate_together(
    jobs: Sequence[tuple[Engine, EvaluationJob]], training_follows: bool
) -> Callable[[], list[list[Scores]]]:
    """Begin evaluation jobs of several engines, as `Engine.evaluate_async`."""
    waiting = [
        (numbers, engine.evaluate_async([jobs[n][1] for n in numbers], training_follows))
        for engine, numbers in _by_engine(jobs)
    ]

    def wait() -> list[list[Scores]]:
        results: dict[int, list[Scores]] = {}
        for numbers, scores in waiting:
            results |= zip(numbers, scores(), strict=True)
        return [results[number] for number in range(len(jobs))]

    return wait


def _by_engine(jobs: Sequence[tuple[Engine, Job]]) -> list[tuple[Engine, list[int]]]:
    """Return each whole engine and the numbers of its jobs."""
    groups: dict[int, tuple[Engine, list[int]]] = {}
    for number, (engine, _) in enumerate(jobs):
        groups.setdefault(id(engine.whole), (engine.whole, []))[1].append(number)
    return list(groups.values())
