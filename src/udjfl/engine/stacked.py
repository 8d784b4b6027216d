"""All clients of a round, and all settings that share their data, as one batched program, for stacks of linear layers.

The mathematics is in `dense.py`. Here the work is cut into chunks of clients that fit the cache and are spread over the cores.
Clients are taken in the order of how many steps they have, the longest first: those still at work are then always the first
ones of a chunk, and nobody stands by. Which chunk a client is in depends on who takes part, never on the number of cores.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from udjfl.data.federation import Client
from udjfl.engine.base import Engine, Job, LocalResult, LocalWork, Objective, Pooled, batch_order
from udjfl.engine.dense import Stack, Update, layers_of, loss_and_slope
from udjfl.engine.workers import spread
from udjfl.masks import MaskedLinear
from udjfl.models import WeightNormLinear, trainable

STACKABLE = (nn.Flatten, nn.Linear, nn.ReLU, WeightNormLinear, MaskedLinear)
# Measured (benchmarks/): the parameters, velocities and batches of a chunk should stay in the cache, but a chunk should have
# enough to do that handing it to another core pays, and there should be several.
CHUNK_BYTES = 8_000_000
CHUNK_FLOPS = 20_000_000
CLIENTS_A_CHUNK, CHUNKS_WANTED = 4, 8
GPU_CHUNK_BYTES = 2_000_000_000
EVALUATION_ROWS = 1024


def why_not(module: nn.Module, input_axes: int = 1) -> str | None:
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
    if isinstance(module[0], nn.ReLU) or (isinstance(module[0], nn.Flatten) and isinstance(module[1], nn.ReLU)):
        return "it begins with a ReLU"
    frozen = {name for name, p in module.named_parameters() if not p.requires_grad}
    by_design = {f"{name}.weight" for name, layer in module.named_children() if isinstance(layer, MaskedLinear)}
    if frozen != by_design:
        return "some of its parameters are frozen"
    if sum(len(list(layer.parameters())) for layer in module) != len(list(module.parameters())):
        return "some of its layers share parameters"
    if any(part._forward_hooks or part._forward_pre_hooks for part in module.modules()):
        return "it has forward hooks"
    return None


@dataclass(frozen=True)
class Batches:
    """What a chunk of K clients sees: at step t the first `active[t]` of them, `widths[t]` examples each, some of weight 0."""

    index: Tensor
    weight: Tensor
    active: list[int]
    widths: list[int]

    def at(self, t: int) -> tuple[Tensor, Tensor]:
        """Places of the examples among all of the federation's [k, B], and their weights [k, B]."""
        return self.index[t, : self.active[t], : self.widths[t]], self.weight[t, : self.active[t], : self.widths[t]]


@dataclass(frozen=True)
class _Goal:
    """What one job minimises in place of the mean loss, with the multipliers of a chunk's clients."""

    objective: Objective
    multipliers: Tensor | None

    @staticmethod
    def of(job: Job, chunk: list[int], like: Tensor) -> _Goal | None:
        if job.work.objective is None:
            return None
        own = None if job.work.multipliers is None else job.work.multipliers[chunk].to(like)
        return _Goal(job.work.objective, own)

    def slopes(self, losses: Tensor, weight: Tensor, groups: Tensor | None) -> Tensor:
        """Its gradient by the losses [k, B]: all that the mathematics of the network needs to know about it."""
        with torch.enable_grad():
            leaf = losses.detach().clone().requires_grad_()
            own = None if self.multipliers is None else self.multipliers[: len(losses)]
            (slopes,) = torch.autograd.grad(self.objective(leaf, weight, groups, own).sum(), leaf)
        return slopes


class StackedEngine(Engine):
    name = "stacked"

    def __init__(self, module: nn.Module, clients: Sequence[Client], device: str = "cpu", workers: int = 1) -> None:
        super().__init__(module, clients, device, workers)
        self.layers = layers_of(cast(nn.Sequential, self.module))
        self.shapes = [p.shape for p in trainable(module)]
        self.x = self._all_train.x.flatten(1)
        self.y = self._all_train.y
        groups = [data.group for data in self.train_data if data.group is not None]
        self.groups = torch.cat(groups) if len(groups) == len(self.train_data) else None
        ends = torch.tensor([len(data) for data in self.train_data]).cumsum(0)
        self.starts = [0, *ends.tolist()]

    def train(
        self, vector: Tensor, buffers: Tensor, rows: Sequence[int], work: LocalWork, address: tuple[int, str, int]
    ) -> LocalResult:
        return self.train_together([Job(vector, buffers, rows, work, address)])[0]

    def train_together(self, jobs: Sequence[Job]) -> list[LocalResult]:
        """Jobs that ask the same clients for the same kind of work share every pass over the data."""
        alike: dict[object, list[int]] = {}
        for place, job in enumerate(jobs):
            alike.setdefault(_kind(job, place), []).append(place)
        results: dict[int, LocalResult] = {}
        for places in alike.values():
            results |= zip(places, self._train_grid([jobs[place] for place in places]), strict=True)
        return [results[place] for place in range(len(jobs))]

    def _train_grid(self, jobs: Sequence[Job]) -> list[LocalResult]:
        """Jobs of one kind, as the settings of one grid."""
        rows, work = list(jobs[0].rows), jobs[0].work
        steps = [work.epochs * math.ceil(len(self.train_data[row]) / work.batch_size) for row in rows]
        vectors = torch.stack([job.vector.to(self.device) for job in jobs], dim=-2)  # [S, D], or [K, S, D]
        deltas = vectors.new_empty(len(jobs), len(rows), vectors.shape[-1])
        firsts = torch.empty_like(deltas) if any(job.work.first_step for job in jobs) else None
        running = torch.zeros(len(jobs), len(rows), dtype=torch.float64, device=self.device)

        def piece(chunk: list[int]) -> Callable[[], None]:
            def train_chunk() -> None:
                start = vectors[None] if vectors.ndim == 2 else vectors[chunk]
                trained, first, losses = self._descend(start, [rows[place] for place in chunk], jobs, chunk)
                self._write_deltas(deltas, chunk, start, trained)
                running[:, chunk] = losses
                if firsts is not None and first is not None:
                    self._write_deltas(firsts, chunk, start, first)

            return train_chunk

        order = sorted(range(len(rows)), key=lambda place: (-steps[place], -len(self.train_data[rows[place]])))
        size = self._chunk_size([len(self.train_data[row]) for row in rows], work, len(jobs))
        chunks = [order[begin : begin + size] for begin in range(0, len(order), size)]
        spread([piece(chunk) for chunk in chunks], self.workers)
        return self._results(jobs, deltas, firsts, running.cpu() / torch.tensor(steps, dtype=torch.float64), steps)

    def _write_deltas(self, deltas: Tensor, chunk: list[int], start: Tensor, trained: Sequence[Tensor]) -> None:
        """What the models [K, S, ...] of a chunk are less than their start, into the rows [S, K, D] of its clients."""
        in_a_row = chunk == list(range(chunk[0], chunk[0] + len(chunk)))
        rows = deltas[:, chunk[0] : chunk[0] + len(chunk)] if in_a_row else torch.empty_like(deltas[:, : len(chunk)])
        begin = 0
        for tensor in trained:
            end = begin + tensor[0, 0].numel()
            torch.sub(start[:, :, begin:end], tensor.flatten(2), out=rows[:, :, begin:end].transpose(0, 1))
            begin = end
        if not in_a_row:
            deltas[:, chunk] = rows

    def _results(
        self, jobs: Sequence[Job], deltas: Tensor, firsts: Tensor | None, running: Tensor, steps: list[int]
    ) -> list[LocalResult]:
        rows, taken = list(jobs[0].rows), torch.tensor(steps, dtype=torch.float64)
        received = self._received_together([job for job in jobs if job.work.loss_at == "received"])
        results = []
        for s, job in enumerate(jobs):
            losses = running[s]
            if job.work.loss_at == "received":
                losses = next(received)
            elif job.work.loss_at == "final":
                losses = self.received_losses(job.vector.to(self.device) - deltas[s], job.buffers, rows)
            first = firsts[s] if firsts is not None and job.work.first_step else None
            results.append(LocalResult(deltas[s], losses, taken, job.buffers.expand(len(rows), -1), first))
        return results

    def _received_together(self, jobs: Sequence[Job]) -> Iterator[Tensor]:
        """The losses of the models that clients received, job by job, of jobs with the same clients."""
        if not jobs or jobs[0].vector.ndim == 2:
            return (self.received_losses(job.vector, job.buffers, job.rows) for job in jobs)
        return iter(self._evaluate(torch.stack([job.vector for job in jobs]), self._pooled(jobs[0].rows))[0])

    def _chunk_size(self, sizes: list[int], work: LocalWork, settings: int) -> int:
        """How many clients are trained at a time."""
        numbers = sum(shape.numel() for shape in self.shapes)
        features = self.x.shape[1]
        batch = min(work.batch_size, max(sizes))
        bytes_each = 4 * (3 * settings * numbers + batch * (features + 4 * settings * self._widest()))
        room = CHUNK_BYTES if self.device.type == "cpu" else GPU_CHUNK_BYTES
        fits = max(1, room // bytes_each)
        if self.device.type != "cpu":
            return fits
        flops_each = 4 * numbers * settings * work.epochs * (sum(sizes) / len(sizes))
        worth_it = math.ceil(CHUNK_FLOPS / flops_each)
        chunks = max(2, min(CHUNKS_WANTED, len(sizes) // CLIENTS_A_CHUNK))
        return int(min(fits, max(worth_it, math.ceil(len(sizes) / chunks))))

    def _widest(self) -> int:
        return max(shape[0] for shape in self.shapes)

    def _descend(
        self, start: Tensor, rows: list[int], jobs: Sequence[Job], chunk: list[int]
    ) -> tuple[list[Tensor], list[Tensor] | None, Tensor]:
        """SGD with momentum on a chunk of clients: the models it led to, those the first step led to, and losses [S, K]."""
        work, settings = jobs[0].work, len(jobs)
        batches = self._batches(rows, work, jobs[0].address)
        rates = {job.work.lr for job in jobs}
        lr = work.lr if len(rates) == 1 else torch.tensor([job.work.lr for job in jobs], device=self.device)
        pull = None if work.pull is None else self._split(work.pull.to(start)[None, None])
        goals = [_Goal.of(job, chunk, start) for job in jobs]
        wants_losses = any(job.work.loss_at == "running" for job in jobs)
        wants_first = any(job.work.first_step for job in jobs)
        update = Update(lr, work.momentum, pull, work.pull_share)
        stack, first = Stack(self.layers, self._split(start)), None
        total = torch.zeros(len(rows), settings, dtype=torch.float64, device=self.device)
        for t, k in enumerate(batches.active):
            index, weight = batches.at(t)
            places = index.reshape(-1)
            x = torch.index_select(self.x, 0, places).view(k, index.shape[1], -1)
            y = torch.index_select(self.y, 0, places).view_as(index)
            if settings > 1:
                y, weight = y.repeat_interleave(settings, 0), weight.repeat_interleave(settings, 0)
            part = stack if t == 0 or k == len(rows) else stack.head(k)
            logits, inputs, weights = part.forward(x)
            losses, slope = loss_and_slope(logits, y)
            slope.mul_(self._loss_weights(losses, weight, index, goals).unsqueeze(2))
            if wants_losses:
                total[:k] += (losses * weight).sum(dim=1).view(k, settings)
            update.begin(k)
            part.backward(slope, inputs, logits, weights, update)
            moved = update.apply(part, make_new=t == 0)
            if t == 0:
                stack = moved
                first = [tensor.clone() for tensor in stack.tensors] if wants_first else None
        return stack.tensors, first, total.T

    def _loss_weights(self, losses: Tensor, weight: Tensor, index: Tensor, goals: Sequence[_Goal | None]) -> Tensor:
        """How much each example's loss [k * S, B] counts in what its client minimises: its gradient by the losses."""
        if all(goal is None for goal in goals):
            return weight
        groups = None if self.groups is None else self.groups[index]
        weights = weight.clone().view(len(index), len(goals), -1)
        for s, goal in enumerate(goals):
            if goal is not None:
                weights[:, s] = goal.slopes(losses.view_as(weights)[:, s], weights[:, s], groups)
        return weights.flatten(0, 1)

    def _split(self, vectors: Tensor) -> list[Tensor]:
        """Vectors [K, S, D] as the model's tensors [K, S, ...]."""
        parts = torch.split(vectors, [shape.numel() for shape in self.shapes], dim=2)
        return [part.reshape(*part.shape[:2], *shape) for part, shape in zip(parts, self.shapes, strict=True)]

    def _batches(self, rows: list[int], work: LocalWork, address: tuple[int, str, int]) -> Batches:
        """The batches of some clients, the one with the most steps first."""
        orders = [batch_order(len(self.train_data[row]), work.epochs, address, self.clients[row].id) for row in rows]
        width = min(work.batch_size, max(order.shape[1] for order in orders))
        if len({order.shape[1] for order in orders}) == 1:  # all alike, as is common: one table
            whole = torch.stack(orders) + torch.tensor([self.starts[row] for row in rows])[:, None, None]
            whole = nn.functional.pad(whole, (0, -whole.shape[2] % width), value=-1)
            index = whole.view(len(rows), -1, width).transpose(0, 1)
        else:
            cut = [nn.functional.pad(order, (0, -order.shape[1] % width), value=-1).view(-1, width) for order in orders]
            index = torch.full((len(cut[0]), len(rows), width), -1)
            for place, (batches, row) in enumerate(zip(cut, rows, strict=True)):
                index[: len(batches), place] = torch.where(batches >= 0, batches + self.starts[row], -1)
        real = index >= 0
        counts = real.sum(dim=2)
        weight = real / counts.clamp_min(1)[:, :, None]
        # Padding repeats the batch's first example, so that it cannot bring in a number the batch does not have.
        index = torch.where(real, index, index[:, :, :1]).clamp_min(0)
        active, widths = (counts > 0).sum(dim=1).tolist(), counts.amax(dim=1).tolist()
        return Batches(index.to(self.device), weight.to(self.device), active, widths)

    def evaluate(self, vector: Tensor, buffers: Tensor, pooled: Pooled) -> tuple[Tensor, Tensor]:  # noqa: ARG002 - has none
        losses, accuracies = self._evaluate(vector[None], pooled)
        return losses[0], accuracies[0]

    def evaluate_together(self, models: Sequence[tuple[Tensor, Tensor]], pooled: Pooled) -> list[tuple[Tensor, Tensor]]:
        losses, accuracies = self._evaluate(torch.stack([vector for vector, _ in models]), pooled)
        return list(zip(losses, accuracies, strict=True))

    def _evaluate(self, vectors: Tensor, pooled: Pooled) -> tuple[Tensor, Tensor]:
        """Mean loss and accuracy (0 to 1) of several models [S, D] on each part of the pool, both float64 [S, parts]."""
        stack = Stack(self.layers, self._split(vectors.to(self.device)[None]))
        settings = len(vectors)

        def piece(begin: int) -> Callable[[], tuple[Tensor, Tensor]]:
            def evaluate_rows() -> tuple[Tensor, Tensor]:
                rows = slice(begin, begin + EVALUATION_ROWS)
                y, part = pooled.y[rows], pooled.part[rows]
                logits, _, _ = stack.forward(pooled.x[rows].flatten(1)[None])
                each = nn.functional.cross_entropy(logits.flatten(0, 1), y.repeat(settings), reduction="none")
                right = logits.argmax(dim=2) == y
                sums = torch.zeros(2, settings, pooled.parts, dtype=torch.float64, device=self.device)
                sums[0].index_add_(1, part, each.view(settings, -1).to(torch.float64))
                sums[1].index_add_(1, part, right.to(torch.float64))
                return sums[0], sums[1]

            return evaluate_rows

        with torch.no_grad():
            done = spread([piece(begin) for begin in range(0, len(pooled.y), EVALUATION_ROWS)], self.workers)
        # In the order of the rows, whoever was first to finish.
        losses, right = (sum(column[1:], column[0]) for column in zip(*done, strict=True))
        return (losses / pooled.sizes).cpu(), (right / pooled.sizes).cpu()


def _kind(job: Job, place: int) -> object:
    """What jobs must have in common to share their passes over the data; a job with a pull goes alone."""
    work = job.work
    alone = place if work.pull is not None else None
    return (tuple(job.rows), job.address, job.vector.shape, work.batch_size, work.epochs, work.momentum, alone)
