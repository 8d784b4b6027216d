"""All clients of a round, and all settings that share their data, as one batched program, for stacks of linear layers.

The mathematics is in `dense.py`. Here the work is cut into chunks of clients that fit the cache and are spread over the cores.
Clients are taken in the order of how many steps they have, the longest first: those still at work are then always the first
ones of a chunk, and nobody stands by. Which chunk a client is in depends on who takes part and on how many settings there are,
never on the number of cores.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from udjfl._threads import spread
from udjfl.data.federation import Client
from udjfl.engine._fork_pool import Tables
from udjfl.engine._stacked_mlp import Stack, Update, layers_of, log_softmax_at
from udjfl.engine.adam import AdamUpdate
from udjfl.engine.base import (
    EvaluationSet,
    ForkPoolEngine,
    LocalResult,
    LocalTraining,
    Objective,
    TrainJob,
    batch_order,
)
from udjfl.models import WeightNormLinear, trainable
from udjfl.models.masked import MaskedLinear

STACKABLE = (nn.Flatten, nn.Linear, nn.ReLU, WeightNormLinear, MaskedLinear)
# Measured (benchmarks/): the parameters, velocities and batches of a chunk should stay in the cache, but a chunk should have
# enough to do that handing it to another core pays, and there should be several.
CHUNK_BYTES = 16_000_000
CHUNK_FLOPS = 20_000_000
CLIENTS_A_CHUNK, CHUNKS_WANTED = 4, 8
GPU_CHUNK_BYTES = 2_000_000_000
# With less to do, a few milliseconds, asking another process takes longer than it saves.
WORTH_SHARING = 300_000_000
EVALUATION_ROWS = 1024
# Batches are padded to a multiple of this, which is 64 bytes: the matrices of all models then begin at such a boundary, and a
# product adds up in the same order whichever of them it is for.
ALIGNED = 16


def unsupported_reason(module: nn.Module, input_axes: int = 1) -> str | None:
    """Why a model for inputs of so many axes (an image has three) cannot be stacked, or None if it can."""
    if type(module) is not nn.Sequential:
        return f"{type(module).__name__} is not an nn.Sequential"
    for layer in module:
        if isinstance(layer, nn.Flatten) and (layer.start_dim, layer.end_dim) != (1, -1):
            return "it has a Flatten layer that keeps some axes"
        if type(layer) not in STACKABLE:
            return f"it has a {type(layer).__name__} layer"
        if isinstance(layer, nn.Linear) and layer.bias is None:
            return "it has a linear layer without bias"
    if not any(isinstance(layer, nn.Linear | WeightNormLinear | MaskedLinear) for layer in module):
        return "it has no linear layer"
    if input_axes > 1 and not isinstance(module[0], nn.Flatten):
        return "it does not flatten its input first"
    if isinstance(module[0], nn.ReLU) or (
        isinstance(module[0], nn.Flatten) and isinstance(module[1], nn.ReLU)
    ):
        return "it begins with a ReLU"
    frozen = {name for name, p in module.named_parameters() if not p.requires_grad}
    by_design = {
        f"{name}.weight"
        for name, layer in module.named_children()
        if isinstance(layer, MaskedLinear)
    }
    if frozen != by_design:
        return "some of its parameters are frozen"
    if sum(len(list(layer.parameters())) for layer in module) != len(list(module.parameters())):
        return "some of its layers share parameters"
    if any(part._forward_hooks or part._forward_pre_hooks for part in module.modules()):
        return "it has forward hooks"
    return None


@dataclass(frozen=True)
class Batch:
    """What the first k clients of a chunk see in one step: B examples each, some of weight 0.

    places [k * B] where the examples are among all of the federation's; labels [k * S, B, 1]; weights [k * S, B, 1] of the
    examples in their client's mean.
    """

    clients: int
    places: Tensor
    labels: Tensor
    weights: Tensor


@dataclass(frozen=True)
class _Plan:
    """The batches of clients with certain sizes, whatever the order of their examples.

    order [steps, K, width]: which of all their examples, in the order that each client sees its own, client after client;
    weights [steps, K * S, width, 1] of the examples; steps: how many clients are still at work, and the width of their batch.
    """

    order: Tensor
    weights: Tensor
    steps: list[tuple[int, int]]


@functools.lru_cache(maxsize=64)
def _plan(sizes: tuple[int, ...], batch_size: int, epochs: int, settings: int) -> _Plan:
    """For clients whose number of steps never rises. The same every round, so it is made once."""
    width = min(batch_size, max(sizes))
    padded = [
        nn.functional.pad(torch.arange(epochs * n).view(epochs, n), (0, -n % width), value=-1)
        for n in sizes
    ]
    order = torch.full((padded[0].numel() // width, len(sizes), width), -1)
    start = 0
    for place, (own, n) in enumerate(zip(padded, sizes, strict=True)):
        batches = own.view(-1, width)
        order[: len(batches), place] = torch.where(batches >= 0, batches + start, -1)
        start += epochs * n
    order = nn.functional.pad(order, (0, -width % ALIGNED), value=-1)
    real = order >= 0
    counts = real.sum(dim=2)
    weights = (
        (real / counts.clamp_min(1)[:, :, None]).repeat_interleave(settings, dim=1).unsqueeze(3)
    )
    # Padding repeats the batch's first example, so that it cannot bring in a number the batch does not have.
    order = torch.where(real, order, order[:, :, :1]).clamp_min(0)
    active = (counts > 0).sum(dim=1).tolist()
    widths = [math.ceil(count / ALIGNED) * ALIGNED for count in counts.amax(dim=1).tolist()]
    return _Plan(order, weights, list(zip(active, widths, strict=True)))


@dataclass(frozen=True)
class _Goal:
    """What one job minimises in place of the mean loss, with the multipliers of a chunk's clients."""

    objective: Objective
    multipliers: Tensor | None

    @staticmethod
    def of(work: LocalTraining, chunk: list[int], like: Tensor) -> _Goal | None:
        if work.objective is None:
            return None
        own = None if work.multipliers is None else work.multipliers[chunk].to(like)
        return _Goal(work.objective, own)

    def slopes(self, losses: Tensor, weight: Tensor, groups: Tensor | None) -> Tensor:
        """Its gradient by the losses [k, B]: all that the mathematics of the network needs to know about it."""
        with torch.enable_grad():
            leaf = losses.detach().clone().requires_grad_()
            own = None if self.multipliers is None else self.multipliers[: len(losses)]
            (slopes,) = torch.autograd.grad(self.objective(leaf, weight, groups, own).sum(), leaf)
        return slopes


@dataclass(frozen=True)
class _Grid:
    """Training for one kind of work: models [S, D], or [K, S, D], the work of each setting, clients, and how they are cut."""

    vectors: Tensor
    works: list[LocalTraining]
    rows: list[int]
    address: tuple[int, str, int]
    chunks: list[list[int]]

    @property
    def wants_first(self) -> bool:
        return any(work.first_step for work in self.works)

    def __reduce__(self) -> tuple[object, ...]:
        # By way of numpy: pickling a tensor writes a file in memory.
        return _sent_grid, (self.vectors.numpy(), self.works, self.rows, self.address, self.chunks)


def _sent_grid(vectors: np.ndarray, *others: Any) -> _Grid:
    return _Grid(torch.from_numpy(vectors), *others)


def _write_difference(
    start: Tensor, models: Sequence[Tensor], table: Tensor, chunk: list[int]
) -> None:
    """What models, tensors [K, S, ...], are less than their start [K, S, D], into the rows of their clients, [S, .., D]."""
    in_a_row = chunk == list(range(chunk[0], chunk[0] + len(chunk)))
    rows = (
        table[:, chunk[0] : chunk[0] + len(chunk)]
        if in_a_row
        else torch.empty_like(table[:, : len(chunk)])
    )
    begin = 0
    for tensor in models:
        end = begin + tensor[0, 0].numel()
        torch.sub(
            start[:, :, begin:end], tensor.flatten(2), out=rows[:, :, begin:end].transpose(0, 1)
        )
        begin = end
    if not in_a_row:
        table[:, chunk] = rows


class StackedEngine(ForkPoolEngine):
    name = "stacked"

    def __init__(
        self, module: nn.Module, clients: Sequence[Client], device: str = "cpu", workers: int = 1
    ) -> None:
        super().__init__(module, clients, device, workers)
        self.layers = layers_of(cast(nn.Sequential, self.module))
        self.batch = max(self.batch, EVALUATION_ROWS)
        self.shapes = [p.shape for p in trainable(module)]
        self.x = self._all_train.x.flatten(1)
        self.y = self._all_train.y
        self.groups = self._all_train.group
        ends = torch.tensor(self.sizes).cumsum(0)
        self.starts = [0, *ends.tolist()]

    def train(
        self,
        vector: Tensor,
        buffers: Tensor,
        rows: Sequence[int],
        work: LocalTraining,
        address: tuple[int, str, int],
    ) -> LocalResult:
        return self.train_many([TrainJob(vector, buffers, rows, work, address)])[0]

    def train_many(self, jobs: Sequence[TrainJob]) -> list[LocalResult]:
        """Jobs that ask the same clients for the same kind of work share every pass over the data."""
        alike: dict[object, list[int]] = {}
        for place, job in enumerate(jobs):
            alike.setdefault(_kind(job, place), []).append(place)
        results: dict[int, LocalResult] = {}
        for places in alike.values():
            results |= zip(places, self._train_grid([jobs[place] for place in places]), strict=True)
        return [results[place] for place in range(len(jobs))]

    def _train_grid(self, jobs: Sequence[TrainJob]) -> list[LocalResult]:
        """Jobs of one kind, as the settings of one grid."""
        rows, work = list(jobs[0].rows), jobs[0].work
        steps = [work.epochs * math.ceil(self.sizes[row] / work.batch_size) for row in rows]
        vectors = torch.stack(
            [job.vector.to(self.device) for job in jobs], dim=-2
        )  # [S, D], or [K, S, D]
        order = sorted(
            range(len(rows)), key=lambda place: (-steps[place], -self.sizes[rows[place]])
        )
        size = self._chunk_size([self.sizes[row] for row in rows], work, len(jobs))
        chunks = [order[begin : begin + size] for begin in range(0, len(order), size)]
        grid = _Grid(vectors, [job.work for job in jobs], rows, jobs[0].address, chunks)
        table = ((len(jobs), len(rows), vectors.shape[-1]), vectors.dtype)
        shapes = {
            "deltas": table,
            "running": (table[0][:2], torch.float64),
            **({"firsts": table} if grid.wants_first else {}),
        }
        worth_sharing = (
            self._flops([self.sizes[row] for row in rows], work, len(jobs)) >= WORTH_SHARING
        )
        tables = self._done(grid, len(chunks), shapes, share=worth_sharing)
        running = tables["running"].cpu() / torch.tensor(steps)
        return self._results(jobs, tables["deltas"], tables.get("firsts"), running, steps)

    def _do(self, task: _Grid, number: int, tables: Tables) -> None:
        """Train one chunk of clients."""
        chunk = task.chunks[number]
        start = task.vectors[None] if task.vectors.ndim == 2 else task.vectors[chunk]
        trained, first, losses = self._descend(start, task, chunk)
        _write_difference(start, trained, tables["deltas"], chunk)
        if first is not None:
            _write_difference(start, first, tables["firsts"], chunk)
        tables["running"][:, chunk] = losses

    def _results(
        self,
        jobs: Sequence[TrainJob],
        deltas: Tensor,
        firsts: Tensor | None,
        running: Tensor,
        steps: list[int],
    ) -> list[LocalResult]:
        rows, taken = list(jobs[0].rows), torch.tensor(steps, dtype=torch.float64)
        received = self._received_together([job for job in jobs if job.work.loss_at == "received"])
        results = []
        for s, job in enumerate(jobs):
            losses = running[s]
            if job.work.loss_at == "received":
                losses = next(received)
            elif job.work.loss_at == "final":
                losses = self.received_losses(
                    job.vector.to(self.device) - deltas[s], job.buffers, rows
                )
            first = firsts[s] if firsts is not None and job.work.first_step else None
            results.append(
                LocalResult(deltas[s], losses, taken, job.buffers.expand(len(rows), -1), first)
            )
        return results

    def _received_together(self, jobs: Sequence[TrainJob]) -> Iterator[Tensor]:
        """The losses of the models that clients received, job by job, of jobs with the same clients."""
        if not jobs or jobs[0].vector.ndim == 2:
            return (self.received_losses(job.vector, job.buffers, job.rows) for job in jobs)
        return iter(
            self._evaluate(torch.stack([job.vector for job in jobs]), self._pooled(jobs[0].rows))[0]
        )

    def _chunk_size(self, sizes: list[int], work: LocalTraining, settings: int) -> int:
        """How many clients are trained at a time."""
        numbers = sum(shape.numel() for shape in self.shapes)
        features = self.x.shape[1]
        batch = min(work.batch_size, max(sizes))
        kept = 3 if work.optimiser == "sgd" else 5
        bytes_each = 4 * (
            kept * settings * numbers + batch * (features + 4 * settings * self._widest())
        )
        room = CHUNK_BYTES if self.device.type == "cpu" else GPU_CHUNK_BYTES
        fits = max(1, room // bytes_each)
        if self.device.type != "cpu":
            return fits
        worth_it = math.ceil(CHUNK_FLOPS * len(sizes) / self._flops(sizes, work, settings))
        chunks = max(2, min(CHUNKS_WANTED, len(sizes) // CLIENTS_A_CHUNK))
        return int(min(fits, max(worth_it, math.ceil(len(sizes) / chunks))))

    def _flops(self, sizes: list[int], work: LocalTraining, settings: int) -> int:
        """Floating-point operations of training, roughly."""
        return 4 * sum(shape.numel() for shape in self.shapes) * settings * work.epochs * sum(sizes)

    def _widest(self) -> int:
        return max(shape[0] for shape in self.shapes)

    def _descend(
        self, start: Tensor, grid: _Grid, chunk: list[int]
    ) -> tuple[list[Tensor], list[Tensor] | None, Tensor]:
        """Train a chunk of clients: the models it led to, those the first step led to, and losses [S, K]."""
        work, settings, rows = grid.works[0], len(grid.works), [grid.rows[place] for place in chunk]
        batches = self._batches(rows, work, grid.address, settings)
        pull = None if work.pull is None else self._split(work.pull.to(start)[None, None])
        all_goals = [_Goal.of(own, chunk, start) for own in grid.works]
        goals = all_goals if any(all_goals) else None
        wants_losses = any(own.loss_at == "running" for own in grid.works)
        # Nothing here is differentiated by autograd, but for other goals than the mean loss: operations without it cost less.
        with torch.inference_mode(goals is None):
            beginning = self._split(start)
            if work.optimiser == "adam":
                update: Update = AdamUpdate(beginning, len(rows), work.lr, pull, work.pull_share)
            else:
                update = Update(
                    beginning,
                    len(rows),
                    [own.lr for own in grid.works],
                    work.momentum,
                    pull,
                    work.pull_share,
                )
            stack, first = Stack(self.layers, beginning, len(rows)), None
            seen: list[Tensor] = []
            x: Tensor | None = None
            for t, batch in enumerate(batches):
                if t > 0 and (t == 1 or batch.clients < stack.clients):
                    update.only(batch.clients)
                    stack = Stack(self.layers, update.moving, batch.clients)
                if x is None or x.shape[:2] != (batch.clients, batch.labels.shape[1]):
                    x = self.x.new_empty(batch.clients, batch.labels.shape[1], self.x.shape[1])
                # In the place of the last batch, which is in the cache.
                torch.index_select(self.x, 0, batch.places, out=x.view(len(batch.places), -1))
                passed = stack.forward(x)
                log_p, slope = log_softmax_at(passed.logits, batch.labels)
                if wants_losses:
                    seen.append(log_p)
                slope.mul_(
                    batch.weights if goals is None else self._loss_weights(log_p, batch, goals)
                )
                stack.backward(passed, slope, update)
                update.apply()
                if t == 0 and grid.wants_first:
                    first = [model.clone() for model in update.models]
            return (
                update.models,
                first,
                _sums(seen, batches, len(rows) * settings).view(len(rows), settings).T,
            )

    def _loss_weights(self, log_p: Tensor, batch: Batch, goals: Sequence[_Goal | None]) -> Tensor:
        """How much each example's loss [k * S, B, 1] counts in what its client minimises: its gradient by the losses."""
        k, settings = batch.clients, len(goals)
        groups = None if self.groups is None else self.groups[batch.places].view(k, -1)
        losses = log_p.neg().view(k, settings, -1)
        weights = batch.weights.clone().view(k, settings, -1)
        for s, goal in enumerate(goals):
            if goal is not None:
                weights[:, s] = goal.slopes(losses[:, s], weights[:, s], groups)
        return weights.view(k * settings, -1, 1)

    def _split(self, vectors: Tensor) -> list[Tensor]:
        """Vectors [K, S, D] as the model's tensors [K, S, ...]."""
        parts = torch.split(vectors, [shape.numel() for shape in self.shapes], dim=2)
        return [
            part.reshape(*part.shape[:2], *shape)
            for part, shape in zip(parts, self.shapes, strict=True)
        ]

    def _batches(
        self, rows: list[int], work: LocalTraining, address: tuple[int, str, int], settings: int
    ) -> list[Batch]:
        """What some clients see, step by step; the one with the most steps comes first."""
        plan = _plan(tuple(self.sizes[row] for row in rows), work.batch_size, work.epochs, settings)
        orders = [
            batch_order(self.sizes[row], work.epochs, address, self.clients[row].id)
            .add_(self.starts[row])
            .view(-1)
            for row in rows
        ]
        index = torch.cat(orders)[plan.order].to(self.device)
        labels, weights = self.y[index].unsqueeze(3), plan.weights.to(self.device)
        if settings > 1:
            labels = labels.repeat_interleave(settings, dim=1)
        most, width = index.shape[1:]
        steps = zip(plan.steps, index.unbind(), labels.unbind(), weights.unbind(), strict=True)
        return [
            Batch(k, places.view(-1), own_labels, own_weights)
            if (k, b) == (most, width)
            else Batch(
                k,
                places[:k, :b].reshape(-1),
                own_labels[: k * settings, :b],
                own_weights[: k * settings, :b],
            )
            for (k, b), places, own_labels, own_weights in steps
        ]

    @property
    def evaluates_aside(self) -> bool:
        """Clients are seldom a multiple of the cores: who has none left to train has time for it."""
        return self.workers > 1

    def evaluate(
        self, vector: Tensor, buffers: Tensor, pooled: EvaluationSet
    ) -> tuple[Tensor, Tensor]:
        losses, accuracies = self._evaluate(vector[None], pooled)
        return losses[0], accuracies[0]

    def evaluate_many(
        self, models: Sequence[tuple[Tensor, Tensor]], pooled: EvaluationSet
    ) -> list[tuple[Tensor, Tensor]]:
        losses, accuracies = self._evaluate(torch.stack([vector for vector, _ in models]), pooled)
        return list(zip(losses, accuracies, strict=True))

    def _evaluate(self, vectors: Tensor, pooled: EvaluationSet) -> tuple[Tensor, Tensor]:
        """Mean loss and accuracy (0 to 1) of several models [S, D] on each part of the pool, both float64 [S, parts]."""
        stack = Stack(self.layers, self._split(vectors.to(self.device)[None]), clients=1)

        def piece(rows: slice) -> Callable[[], Tensor]:
            return lambda: pooled.sums(stack.forward(pooled.x[rows].flatten(1)[None]).logits, rows)

        return pooled.means(
            spread([piece(rows) for rows in pooled.pieces(self.batch)], self.workers)
        )


def _sums(log_p: list[Tensor], batches: list[Batch], models: int) -> Tensor:
    """For each model the sum over its batches of their mean losses, in float64; batches of one shape are taken together."""
    total = torch.zeros(models, dtype=torch.float64, device=batches[0].places.device)
    by_shape: dict[torch.Size, list[int]] = {}
    for t, values in enumerate(log_p):
        by_shape.setdefault(values.shape, []).append(t)
    for shape, steps in by_shape.items():
        each = torch.stack([log_p[t] for t in steps], dim=1) * torch.stack(
            [batches[t].weights for t in steps], dim=1
        )
        total[: shape[0]] -= each.flatten(1).sum(dim=1, dtype=torch.float64)
    return total


def _kind(job: TrainJob, place: int) -> object:
    """What jobs must have in common to share their passes over the data; a job with a pull, or with Adam, goes alone."""
    work = job.work
    alone = place if work.pull is not None or work.optimiser != "sgd" else None
    return (
        tuple(job.rows),
        job.address,
        job.vector.shape,
        work.batch_size,
        work.epochs,
        work.momentum,
        alone,
    )
