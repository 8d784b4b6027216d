"""The parts of stacked training: jobs that share their batches, and chunks of their clients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from udjfl.engine.base import LocalTraining, Objective, TrainJob
from udjfl.engine.batches import Batch


@dataclass(frozen=True)
class Grid:
    """Jobs that share their batches, as the S settings of one training.

    vectors         [S, D] the models that clients start from, or [K, S, D] if each has its own
    works           of each setting; they differ in learning rate and objective only
    client_indices  of the K clients
    """

    vectors: Tensor
    works: list[LocalTraining]
    client_indices: list[int]
    address: tuple[int, str, int]

    @property
    def wants_first_step(self) -> bool:
        return any(work.first_step for work in self.works)

    def __reduce__(self) -> tuple[object, ...]:
        # Tensors go through numpy: pickling one writes a file in memory.
        return _unpickle_grid, (
            self.vectors.numpy(),
            self.works,
            self.client_indices,
            self.address,
        )


def _unpickle_grid(vectors: np.ndarray, *others: Any) -> Grid:
    return Grid(torch.from_numpy(vectors), *others)


@dataclass(frozen=True)
class ChunkTask:
    """Training of some clients of a grid; their results go into these rows of the tables."""

    grid: Grid
    rows: list[int]

    @property
    def client_indices(self) -> list[int]:
        return [self.grid.client_indices[row] for row in self.rows]

    def start_vectors(self) -> Tensor:
        """Return the models before training, [K, S, D], or [1, S, D] if all are the same."""
        vectors = self.grid.vectors
        return vectors[None] if vectors.ndim == 2 else vectors[self.rows]

    def objectives(self, start: Tensor) -> list[ChunkObjective | None] | None:
        """Return the objective of each setting; None if all minimise the mean loss."""
        objectives = [
            None
            if work.objective is None
            else ChunkObjective(
                work.objective,
                None if work.multipliers is None else work.multipliers[self.rows].to(start),
            )
            for work in self.grid.works
        ]
        return objectives if any(objectives) else None


@dataclass(frozen=True)
class ChunkObjective:
    """An objective in place of the mean loss, with the multipliers of a chunk's clients."""

    function: Objective
    multipliers: Tensor | None

    def gradient(self, losses: Tensor, weights: Tensor, groups: Tensor | None) -> Tensor:
        """Return the gradient of the objective by the losses [k, B]."""
        with torch.enable_grad():
            leaf = losses.detach().clone().requires_grad_()
            multipliers = None if self.multipliers is None else self.multipliers[: len(losses)]
            objective = self.function(leaf, weights, groups, multipliers)
            (gradient,) = torch.autograd.grad(objective.sum(), leaf)
        return gradient


def group_jobs(jobs: Sequence[TrainJob]) -> list[list[int]]:
    """Return the numbers of the jobs, those together that can share their passes over the data.

    A job with a pull or with Adam is alone.
    """
    groups: dict[object, list[int]] = {}
    for number, job in enumerate(jobs):
        work = job.work
        key = (
            tuple(job.client_indices),
            job.address,
            job.vector.shape,
            work.batch_size,
            work.epochs,
            work.momentum,
            number if work.pull is not None or work.optimiser != "sgd" else None,
        )
        groups.setdefault(key, []).append(number)
    return list(groups.values())


def write_deltas(start: Tensor, models: Sequence[Tensor], table: Tensor, rows: list[int]) -> None:
    """Write start [K, S, D] minus models, tensors [K, S, ...], into rows of a table [S, .., D]."""
    are_adjacent = rows == list(range(rows[0], rows[0] + len(rows)))
    deltas = (
        table[:, rows[0] : rows[0] + len(rows)]
        if are_adjacent
        else torch.empty_like(table[:, : len(rows)])
    )
    begin = 0
    for tensor in models:
        end = begin + tensor[0, 0].numel()
        part = deltas[:, :, begin:end].transpose(0, 1)
        torch.sub(start[:, :, begin:end], tensor.flatten(2), out=part)
        begin = end
    if not are_adjacent:
        table[:, rows] = deltas


def sum_batch_losses(log_p: list[Tensor], batches: list[Batch], n_models: int) -> Tensor:
    """Return for each model the sum over its batches of their mean losses, in float64.

    Batches of one shape are computed together.
    """
    total = torch.zeros(n_models, dtype=torch.float64, device=batches[0].positions.device)
    by_shape: dict[torch.Size, list[int]] = {}
    for t, values in enumerate(log_p):
        by_shape.setdefault(values.shape, []).append(t)
    for shape, steps in by_shape.items():
        values = torch.stack([log_p[t] for t in steps], dim=1)
        weighted = values * torch.stack([batches[t].weights for t in steps], dim=1)
        total[: shape[0]] -= weighted.flatten(1).sum(dim=1, dtype=torch.float64)
    return total
