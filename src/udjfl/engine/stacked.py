"""All clients of a round as one batched program, for stacks of linear layers.

Settings that share their data are batched too. The mathematics is in `_stacked_mlp`; here the work
is cut into chunks of clients that fit the cache and are spread over the cores. Clients are sorted
by their number of steps, the longest first: those that still train are then always the first ones
of a chunk. The chunk of a client depends on the clients that take part and on the number of
settings, never on the number of cores.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from udjfl._threads import run_in_threads
from udjfl.data.federation import Client
from udjfl.engine._grid import (
    ChunkObjective,
    ChunkTask,
    Grid,
    group_jobs,
    sum_batch_losses,
    write_deltas,
)
from udjfl.engine._memory import Shapes, Tables
from udjfl.engine._stacked_mlp import Stack, Update, layers_of, log_softmax_at
from udjfl.engine.adam import AdamUpdate
from udjfl.engine.base import (
    EvaluationSet,
    ForkPoolEngine,
    LocalResult,
    LocalTraining,
    Scores,
    TrainJob,
)
from udjfl.engine.batches import Batch, batch_order, plan_batches
from udjfl.models import WeightNormLinear, trainable
from udjfl.models.masked import MaskedLinear

STACKABLE = (nn.Flatten, nn.Linear, nn.ReLU, WeightNormLinear, MaskedLinear)
# Measured: the parameters, velocities and batches of a chunk should stay in the cache, but a chunk
# should have enough to do that handing it to another core pays, and there should be several.
CHUNK_BYTES = 16_000_000
CHUNK_FLOPS = 20_000_000
MIN_CLIENTS_PER_CHUNK, MAX_CHUNKS = 4, 8
GPU_CHUNK_BYTES = 2_000_000_000
# With less to do, a few milliseconds, asking another process takes longer than it saves.
SHARED_FLOPS = 300_000_000
STACKED_EVALUATION_BATCH = 1024
PLANS = 64  # batch plans kept: the same clients have the same plan in every round


def unsupported_reason(module: nn.Module, input_axes: int = 1) -> str | None:
    """Return why a model cannot be stacked, or None if it can.

    `input_axes` is the number of axes of one input: 3 for an image.
    """
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


class StackedEngine(ForkPoolEngine):
    """Trains stacks of linear layers, with gradients written out, many clients at a time."""

    name = "stacked"

    def __init__(
        self, module: nn.Module, clients: Sequence[Client], device: str = "cpu", workers: int = 1
    ) -> None:
        super().__init__(module, clients, device, workers)
        self.layers = layers_of(cast(nn.Sequential, self.module))
        self.batch_size = max(self.batch_size, STACKED_EVALUATION_BATCH)
        self.shapes = [p.shape for p in trainable(module)]
        self.n_parameters = sum(shape.numel() for shape in self.shapes)
        self.x = self._all_train_data.x.flatten(1)
        self.y = self._all_train_data.y
        self.groups = self._all_train_data.group
        self.starts = [0, *torch.tensor(self.sizes).cumsum(0).tolist()]
        self._plan_batches = functools.lru_cache(PLANS)(plan_batches)

    def train(
        self,
        vector: Tensor,
        buffers: Tensor,
        client_indices: Sequence[int],
        work: LocalTraining,
        address: tuple[int, str, int],
    ) -> LocalResult:
        return self.train_many([TrainJob(vector, buffers, client_indices, work, address)])[0]

    def train_many(self, jobs: Sequence[TrainJob]) -> list[LocalResult]:
        """Do several jobs; those that differ in few settings share every pass over the data."""
        results: dict[int, LocalResult] = {}
        for numbers in group_jobs(jobs):
            group = [jobs[number] for number in numbers]
            results |= zip(numbers, self._train_group(group), strict=True)
        return [results[number] for number in range(len(jobs))]

    def _train_group(self, jobs: Sequence[TrainJob]) -> list[LocalResult]:
        """Do jobs that share their batches, as the settings of one grid."""
        indices, work = list(jobs[0].client_indices), jobs[0].work
        # [S, D], or [K, S, D]
        vectors = torch.stack([job.vector.to(self.device) for job in jobs], dim=-2)
        grid = Grid(vectors, [job.work for job in jobs], indices, jobs[0].address)
        sizes = [self.sizes[index] for index in indices]
        steps = [work.count_steps(size) for size in sizes]
        order = sorted(range(len(indices)), key=lambda row: (-steps[row], -sizes[row]))
        size = self._chunk_size(sizes, work, len(jobs))
        chunks = [order[begin : begin + size] for begin in range(0, len(order), size)]
        tables = self._map(
            [ChunkTask(grid, rows) for rows in chunks],
            self._table_shapes(grid),
            share=self._flops(sizes, work, len(jobs)) >= SHARED_FLOPS,
            costs=[self._flops([sizes[row] for row in rows], work, len(jobs)) for rows in chunks],
        )
        running = tables["running"].cpu() / torch.tensor(steps)
        return self._results(jobs, tables, running, steps)

    def _table_shapes(self, grid: Grid) -> Shapes:
        n_settings, n_clients = len(grid.works), len(grid.client_indices)
        table = ((n_settings, n_clients, grid.vectors.shape[-1]), grid.vectors.dtype)
        return {
            "deltas": table,
            "running": ((n_settings, n_clients), torch.float64),
            **({"first_deltas": table} if grid.wants_first_step else {}),
        }

    def _run_task(self, task: ChunkTask, tables: Tables) -> None:
        """Train one chunk of clients."""
        start = task.start_vectors()
        models, first_models, losses = self._train_chunk(task, start)
        write_deltas(start, models, tables["deltas"], task.rows)
        if first_models is not None:
            write_deltas(start, first_models, tables["first_deltas"], task.rows)
        tables["running"][:, task.rows] = losses

    def _results(
        self, jobs: Sequence[TrainJob], tables: Tables, running: Tensor, steps: list[int]
    ) -> list[LocalResult]:
        indices, taken = list(jobs[0].client_indices), torch.tensor(steps, dtype=torch.float64)
        deltas, first_deltas = tables["deltas"], tables.get("first_deltas")
        received = self._received_losses([job for job in jobs if job.work.loss_at == "received"])
        results = []
        for s, job in enumerate(jobs):
            losses = running[s]
            if job.work.loss_at == "received":
                losses = next(received)
            elif job.work.loss_at == "final":
                trained = job.vector.to(self.device) - deltas[s]
                losses = self.train_losses(trained, job.buffers, indices)
            first = first_deltas[s] if first_deltas is not None and job.work.first_step else None
            buffers = job.buffers.expand(len(indices), -1)
            results.append(LocalResult(deltas[s], losses, taken, buffers, first))
        return results

    def _received_losses(self, jobs: Sequence[TrainJob]) -> Iterator[Tensor]:
        """Yield the losses of the received models, job by job, of jobs with the same clients."""
        if not jobs or jobs[0].vector.ndim == 2:
            return (self.train_losses(job.vector, job.buffers, job.client_indices) for job in jobs)
        vectors = torch.stack([job.vector for job in jobs])
        return iter(self._evaluate(vectors, self._train_set(jobs[0].client_indices))[0])

    def _chunk_size(self, sizes: list[int], work: LocalTraining, n_settings: int) -> int:
        """Return how many clients are trained at a time."""
        batch = min(work.batch_size, max(sizes))
        copies = 3 if work.optimiser == "sgd" else 5  # of the parameters: velocities and the like
        widest = max(shape[0] for shape in self.shapes)
        activations = batch * (self.x.shape[1] + 4 * n_settings * widest)
        bytes_per_client = 4 * (copies * n_settings * self.n_parameters + activations)
        room = CHUNK_BYTES if self.device.type == "cpu" else GPU_CHUNK_BYTES
        fits = max(1, room // bytes_per_client)
        if self.device.type != "cpu":
            return fits
        worth_it = math.ceil(CHUNK_FLOPS * len(sizes) / self._flops(sizes, work, n_settings))
        n_chunks = max(2, min(MAX_CHUNKS, len(sizes) // MIN_CLIENTS_PER_CHUNK))
        return int(min(fits, max(worth_it, math.ceil(len(sizes) / n_chunks))))

    def _flops(self, sizes: list[int], work: LocalTraining, n_settings: int) -> int:
        """Return roughly the floating-point operations of training clients of these sizes."""
        return 4 * self.n_parameters * n_settings * work.epochs * sum(sizes)

    def _train_chunk(
        self, task: ChunkTask, start: Tensor
    ) -> tuple[list[Tensor], list[Tensor] | None, Tensor]:
        """Train a chunk: return its models, those after the first step, and losses [S, K]."""
        grid, indices, n_settings = task.grid, task.client_indices, len(task.grid.works)
        batches = self._batches(indices, grid.works[0], grid.address, n_settings)
        objectives = task.objectives(start)
        wants_losses = any(work.loss_at == "running" for work in grid.works)
        # Only an objective needs autograd; without it every operation costs less.
        with torch.inference_mode(objectives is None):
            tensors = self._split(start)
            update = self._make_update(tensors, grid.works, len(indices))
            stack, first_models = Stack(self.layers, tensors, len(indices)), None
            log_probabilities: list[Tensor] = []
            x: Tensor | None = None
            for t, batch in enumerate(batches):
                if t > 0 and (t == 1 or batch.n_clients < stack.clients):
                    update.keep_clients(batch.n_clients)
                    stack = Stack(self.layers, update.moving, batch.n_clients)
                x = self._gather(batch, x)
                forward = stack.forward(x)
                log_p, gradient = log_softmax_at(forward.logits, batch.labels)
                if wants_losses:
                    log_probabilities.append(log_p)
                gradient.mul_(
                    batch.weights
                    if objectives is None
                    else self._loss_weights(log_p, batch, objectives)
                )
                stack.backward(forward, gradient, update)
                update.step()
                if t == 0 and grid.wants_first_step:
                    first_models = [model.clone() for model in update.models]
            losses = sum_batch_losses(log_probabilities, batches, len(indices) * n_settings)
            return update.models, first_models, losses.view(len(indices), n_settings).T

    def _make_update(
        self, start: list[Tensor], works: Sequence[LocalTraining], n_clients: int
    ) -> Update:
        """Return the optimiser of a chunk."""
        work = works[0]
        pull = None if work.pull is None else self._split(work.pull.to(start[0])[None, None])
        if work.optimiser == "adam":
            return AdamUpdate(start, n_clients, work.lr, pull, work.pull_share)
        lrs = [work.lr for work in works]
        return Update(start, n_clients, lrs, work.momentum, pull, work.pull_share)

    def _gather(self, batch: Batch, previous: Tensor | None) -> Tensor:
        """Return the inputs of a batch, in the memory of the previous one if it has their shape."""
        shape = (batch.n_clients, batch.labels.shape[1])
        x = previous
        if x is None or x.shape[:2] != shape:
            x = self.x.new_empty(*shape, self.x.shape[1])
        torch.index_select(self.x, 0, batch.positions, out=x.view(len(batch.positions), -1))
        return x

    def _loss_weights(
        self, log_p: Tensor, batch: Batch, objectives: Sequence[ChunkObjective | None]
    ) -> Tensor:
        """Return the gradient of what clients minimise by their examples' losses [k * S, B, 1]."""
        k, n_settings = batch.n_clients, len(objectives)
        groups = None if self.groups is None else self.groups[batch.positions].view(k, -1)
        losses = log_p.neg().view(k, n_settings, -1)
        weights = batch.weights.clone().view(k, n_settings, -1)
        for s, objective in enumerate(objectives):
            if objective is not None:
                weights[:, s] = objective.gradient(losses[:, s], weights[:, s], groups)
        return weights.view(k * n_settings, -1, 1)

    def _split(self, vectors: Tensor) -> list[Tensor]:
        """Return vectors [K, S, D] as the model's tensors [K, S, ...]."""
        parts = torch.split(vectors, [shape.numel() for shape in self.shapes], dim=2)
        return [
            part.reshape(*part.shape[:2], *shape)
            for part, shape in zip(parts, self.shapes, strict=True)
        ]

    def _batches(
        self,
        client_indices: list[int],
        work: LocalTraining,
        address: tuple[int, str, int],
        n_settings: int,
    ) -> list[Batch]:
        """Return the batches of some clients, step by step; the longest client comes first."""
        sizes = tuple(self.sizes[index] for index in client_indices)
        plan = self._plan_batches(sizes, work.batch_size, work.epochs, n_settings)
        orders = [
            batch_order(self.sizes[index], work.epochs, address, self.clients[index].id)
            .add_(self.starts[index])
            .view(-1)
            for index in client_indices
        ]
        positions = torch.cat(orders)[plan.order].to(self.device)
        labels, weights = self.y[positions].unsqueeze(3), plan.weights.to(self.device)
        if n_settings > 1:
            labels = labels.repeat_interleave(n_settings, dim=1)
        whole = tuple(positions.shape[1:])
        columns = positions.unbind(), labels.unbind(), weights.unbind()
        return [
            Batch(k, where.view(-1), y, w)
            if (k, b) == whole
            else Batch(
                k, where[:k, :b].reshape(-1), y[: k * n_settings, :b], w[: k * n_settings, :b]
            )
            for (k, b), where, y, w in zip(plan.steps, *columns, strict=True)
        ]

    def evaluate(self, vector: Tensor, buffers: Tensor, data: EvaluationSet) -> Scores:
        losses, accuracies = self._evaluate(vector[None], data)
        return losses[0], accuracies[0]

    def evaluate_many(
        self, models: Sequence[tuple[Tensor, Tensor]], data: EvaluationSet
    ) -> list[Scores]:
        losses, accuracies = self._evaluate(torch.stack([vector for vector, _ in models]), data)
        return list(zip(losses, accuracies, strict=True))

    def evaluate_async(
        self,
        models: Sequence[tuple[Tensor, Tensor]],
        data: EvaluationSet,
        training_follows: bool,
    ) -> Callable[[], list[Scores]]:
        """Defer the evaluation if training follows: clients are seldom a multiple of the cores."""
        if not training_follows or self.workers == 1:
            return super().evaluate_async(models, data, training_follows)
        flops = 2 * self.n_parameters * len(models) * len(data)
        return self.pool.defer(functools.partial(self.evaluate_many, models, data), flops)

    def _evaluate(self, vectors: Tensor, data: EvaluationSet) -> Scores:
        """Return losses and accuracies of several models [S, D], float64 [S, parts]."""
        stack = Stack(self.layers, self._split(vectors.to(self.device)[None]), clients=1)

        def score(rows: slice) -> Callable[[], Tensor]:
            return lambda: data.sum_scores(
                stack.forward(data.x[rows].flatten(1)[None]).logits, rows
            )

        return data.mean_scores(
            run_in_threads([score(rows) for rows in data.slices(self.batch_size)])
        )
