"""The parts of stacked training: jobs as one grid, and chunks of its clients."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from udjfl.engine.base import Address, LocalTraining, Objective, TrainJob
from udjfl.engine.batches import Batch
from udjfl.engine.correction import Correction

# Up to this many examples a batch is added up in one go, whatever padding follows.
EXACT_WIDTH = 128


@dataclass(frozen=True)
class Grid:
    """Jobs as one training: each of its K rows is a client that trains S settings.

    Jobs that share their batches are the settings of the same rows. Jobs that do not, as those of
    other federations, are further rows.

    starts          [G, S, D] the models that rows start from, one for each group of rows, or
                    [K, S, D], one for each row
    works           one of each setting; rows differ in multipliers, anchor and shift only
    client_indices  of the rows
    addresses       of the batches of the rows
    group_of_row    for each row, which of the G groups of jobs it belongs to
    multipliers     [K] for each setting that has some
    anchors, shifts of the correction: [G, D], one for each group of rows, or [K, D]
    """

    starts: Tensor
    works: list[LocalTraining]
    client_indices: list[int]
    addresses: list[Address]
    group_of_row: list[int]
    multipliers: list[Tensor | None]
    anchors: Tensor | None = None
    shifts: Tensor | None = None

    @staticmethod
    def of(groups: Sequence[Sequence[TrainJob]], device: torch.device) -> Grid:
        """Make a grid of jobs: the jobs of a group are settings, the groups are rows."""
        rows = [(g, index) for g, jobs in enumerate(groups) for index in jobs[0].client_indices]
        if groups[0][0].vector.ndim == 1:
            vectors = torch.stack([job.vector for jobs in groups for job in jobs])
            starts = vectors.view(len(groups), len(groups[0]), -1)
        else:
            own = [torch.stack([job.vector for job in jobs], dim=1) for jobs in groups]
            starts = torch.cat(own)
        # Without what differs from row to row: a task is sent to other processes.
        works = [_without_rows(job.work) for job in groups[0]]
        corrections = [jobs[0].work.correction or Correction() for jobs in groups]
        return Grid(
            starts.to(device),
            works,
            [index for _, index in rows],
            [groups[g][0].address for g, _ in rows],
            [g for g, _ in rows],
            [_join_multipliers([jobs[s].work for jobs in groups]) for s in range(len(works))],
            _join_rows([correction.anchor for correction in corrections], device),
            _join_rows([correction.shift for correction in corrections], device),
        )

    @property
    def wants_first_step(self) -> bool:
        return any(work.first_step for work in self.works)

    def __reduce__(self) -> tuple[object, ...]:
        # Tensors go through numpy: pickling one writes a file in memory.
        tensors = (self.starts, self.anchors, self.shifts, *self.multipliers)
        arrays = [None if tensor is None else tensor.numpy() for tensor in tensors]
        lists = (self.works, self.client_indices, self.addresses, self.group_of_row)
        return _unpickle_grid, (arrays, *lists)


def _unpickle_grid(arrays: Sequence[np.ndarray | None], *lists: Any) -> Grid:
    tensors = [None if array is None else torch.from_numpy(array) for array in arrays]
    starts, anchors, shifts, *multipliers = tensors
    values: list[Any] = [starts, *lists, multipliers, anchors, shifts]
    return Grid(*values)


def _without_rows(work: LocalTraining) -> LocalTraining:
    correction = work.correction and work.correction.without_tensors
    return replace(work, multipliers=None, correction=correction)


def _join_rows(tensors: Sequence[Tensor | None], device: torch.device) -> Tensor | None:
    """Return vectors [D], one for each group, or tables [k, D], one row for each row, as one."""
    given = [tensor for tensor in tensors if tensor is not None]
    if not given:
        return None
    return (torch.stack(given) if given[0].ndim == 1 else torch.cat(given)).to(device)


def _join_multipliers(works: Sequence[LocalTraining]) -> Tensor | None:
    multipliers = [work.multipliers for work in works if work.multipliers is not None]
    return torch.cat(multipliers) if multipliers else None


@dataclass(frozen=True)
class ChunkTask:
    """Training of some clients of a grid with some of its settings: all of them by default.

    Their results go into these rows and settings of the tables.
    """

    grid: Grid
    rows: list[int]
    settings: slice = field(default_factory=lambda: slice(None))

    def split(self, count: int) -> list[ChunkTask]:
        """Return the same work as tasks with fewer settings each, at most so many."""
        n_settings = len(self.works)
        size = math.ceil(n_settings / count)
        first = self.settings.start or 0
        return [
            replace(self, settings=slice(first + begin, first + min(begin + size, n_settings)))
            for begin in range(0, n_settings, size)
        ]

    @property
    def works(self) -> list[LocalTraining]:
        return self.grid.works[self.settings]

    @property
    def client_indices(self) -> list[int]:
        return [self.grid.client_indices[row] for row in self.rows]

    @property
    def addresses(self) -> list[Address]:
        return [self.grid.addresses[row] for row in self.rows]

    def start_vectors(self) -> Tensor:
        """Return the models before training, [K, S, D], or [1, S, D] if all are the same."""
        return self._choose(self.grid.starts)[:, self.settings]

    def rows_of(self, table: Tensor | None) -> Tensor | None:
        """Return the rows of these clients, [K, 1, D], or [1, 1, D] if all are the same."""
        return None if table is None else self._choose(table).unsqueeze(1)

    def _choose(self, table: Tensor) -> Tensor:
        per_row = len(table) == len(self.grid.group_of_row)
        return table[self.rows] if per_row else table[self._groups()]

    def _groups(self) -> list[int]:
        groups = [self.grid.group_of_row[row] for row in self.rows]
        return groups[:1] if len(set(groups)) == 1 else groups

    def objectives(self, start: Tensor) -> list[ChunkObjective | None] | None:
        """Return the objective of each setting; None if all minimise the mean loss."""
        pairs = zip(self.works, self.grid.multipliers[self.settings], strict=True)
        objectives = [
            None
            if work.objective is None
            else ChunkObjective(
                work.objective, None if factors is None else factors[self.rows].to(start)
            )
            for work, factors in pairs
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


def spread_over_cores(tasks: list[ChunkTask], n_cores: int) -> list[ChunkTask]:
    """Split the tasks that are left over when all cores have equally many, so that all end alike.

    They are split by settings; the last ones, as the longest come first.
    """
    n_left_over = len(tasks) % n_cores
    if not n_left_over:
        return tasks
    count = n_cores // math.gcd(n_left_over, n_cores)
    whole, left_over = tasks[:-n_left_over], tasks[-n_left_over:]
    return [*whole, *(part for task in left_over for part in task.split(count))]


def group_jobs(
    jobs: Sequence[TrainJob], sizes: Sequence[int], is_exact: bool
) -> list[list[list[int]]]:
    """Return the numbers of the jobs: of each grid, of each group of rows, of each setting.

    Jobs that share their batches share their passes over the data; a job with a correction or with
    Adam is alone there. Groups of jobs that take the same steps in other rows are one grid if their
    bits cannot depend on it: `is_exact` says that those of the model do not. `sizes` are those of
    all clients.
    """
    groups: dict[object, list[int]] = {}
    for number, job in enumerate(jobs):
        work = job.work
        is_alone = work.correction is not None or work.optimiser != "sgd"
        batches = (tuple(job.client_indices), job.address, work.batch_size, work.epochs)
        steps = (job.vector.ndim, work.momentum, is_exact and _needs_equal_sizes(job, sizes))
        groups.setdefault((*batches, *steps, number if is_alone else None), []).append(number)
    grids: dict[object, list[list[int]]] = {}
    for numbers in groups.values():
        rows = _rows_key(jobs[numbers[0]], sizes) if is_exact else numbers[0]
        steps_of_each = tuple(_steps_key(jobs[number]) for number in numbers)
        grids.setdefault((rows, steps_of_each), []).append(numbers)
    return list(grids.values())


def _needs_equal_sizes(job: TrainJob, sizes: Sequence[int]) -> bool:
    """Tell whether the bits of this job could depend on the padding of its batches.

    That depends on the clients beside it. An objective adds up in an order of its own; so do
    products of matrices that are longer than a block of the cache.
    """
    longest = max(sizes[index] for index in job.client_indices)
    return job.work.objective is not None or min(job.work.batch_size, longest) > EXACT_WIDTH


def rows_are_free(job: TrainJob, sizes: Sequence[int]) -> bool:
    """Tell whether clients may be beside any others, with the bits of an exact model."""
    return not _needs_equal_sizes(job, sizes) or len({sizes[i] for i in job.client_indices}) == 1


def _rows_key(job: TrainJob, sizes: Sequence[int]) -> object:
    """Return what must be the same for the clients of two jobs to be rows of one grid."""
    if not _needs_equal_sizes(job, sizes):
        return None
    distinct = {sizes[index] for index in job.client_indices}
    return ("size", *distinct) if len(distinct) == 1 else (job.address, *job.client_indices)


def _steps_key(job: TrainJob) -> object:
    """Return what must be the same for two jobs to be the same setting of a grid."""
    work = job.work
    return (
        *(job.vector.ndim, work.batch_size, work.epochs, work.lr, work.momentum, work.optimiser),
        *(work.objective, work.multipliers is None, work.correction and work.correction.form),
    )


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

    Terms are added one by one, so that padding, which is zero, changes no bit.
    """
    total = torch.zeros(n_models, dtype=torch.float64, device=batches[0].positions.device)
    if not log_p:
        return total
    pairs = zip(log_p, batches, strict=True)
    terms = torch.cat([(values * batch.weights).view(-1) for values, batch in pairs])
    models = torch.cat([_models_of(values.shape[:2], total.device) for values in log_p])
    return total.index_add_(0, models, terms.to(torch.float64), alpha=-1)


@functools.lru_cache(maxsize=256)
def _models_of(shape: torch.Size, device: torch.device) -> Tensor:
    """Return the number of the model of each value in a table [models, examples], flat."""
    return torch.arange(shape[0], device=device).repeat_interleave(shape[1])
