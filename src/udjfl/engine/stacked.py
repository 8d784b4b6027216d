"""All clients of a round as one batched program, for stacks of linear layers.

Settings that share their data are batched too. The mathematics is in `_stacked_mlp`; here the work
is cut into chunks of clients that fit the cache and are spread over the cores. Clients are sorted
by their number of steps, the longest first: those that still train are then always the first ones
of a chunk. The chunk of a client depends on the clients that take part and on the number of
settings, never on the number of cores.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from udjfl._threads import run_in_threads
from udjfl.engine._grid import (
    ChunkObjective,
    ChunkTask,
    Grid,
    group_jobs,
    rows_are_free,
    spread_over_cores,
    sum_batch_losses,
    write_deltas,
)
from udjfl.engine._memory import Shapes, Tables
from udjfl.engine._stacked_evaluation import EvaluationBatch
from udjfl.engine._stacked_mlp import Stack, StackedCorrection, Update, layers_of, log_softmax_at
from udjfl.engine.adam import AdamUpdate
from udjfl.engine.base import (
    Address,
    EvaluationJob,
    EvaluationSet,
    ForkPoolEngine,
    LocalResult,
    LocalTraining,
    Scores,
    TrainJob,
)
from udjfl.engine.batches import ALIGNMENT, Batch, InputBuffer, batch_order, plan_batches
from udjfl.models import WeightNormLinear, trainable
from udjfl.models.masked import MaskedLinear

STACKABLE = (nn.Flatten, nn.Linear, nn.ReLU, WeightNormLinear, MaskedLinear)
# Measured: the parameters, velocities and batches of a chunk should stay in the cache, but a chunk
# should have enough to do that handing it to another core pays, and there should be several.
CHUNK_BYTES = 16_000_000
CHUNK_FLOPS = 20_000_000
MIN_CLIENTS_PER_CHUNK, MAX_CHUNKS = 4, 8
# The Python of a step takes as long as a tenth of this.
STEP_FLOPS = 100_000_000
GPU_CHUNK_BYTES = 2_000_000_000
# With less to do, a few milliseconds, asking another process takes longer than it saves.
SHARED_FLOPS = 300_000_000
STACKED_EVALUATION_BATCH = 1024
EVALUATION_BYTES = 16_000_000
# Kept from round to round: the same clients have the same plan, the same sets the same batch.
PLANS = 64
EVALUATION_BATCHES = 64


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


def is_exact_in_company(module: nn.Module) -> bool:
    """Tell whether a model that can be stacked has the same bits beside clients of other models.

    It has if all its matrices begin at a multiple of 64 bytes, however many are stacked: elsewhere
    a product may add up in another order. And its layers may have no numbers but its parameters.
    """
    begin, is_exact = 0, True
    for parameter in trainable(module):
        if parameter.ndim > 1:
            is_exact = is_exact and begin % ALIGNMENT == parameter.numel() % ALIGNMENT == 0
        begin += parameter.numel()
    return is_exact and not any(isinstance(layer, MaskedLinear) for layer in module.modules())


class StackedEngine(ForkPoolEngine):
    """Trains stacks of linear layers, with gradients written out, many clients at a time."""

    name = "stacked"

    def _prepare(self) -> None:
        assert self.criterion.is_plain, "its gradient is written out"
        super()._prepare()
        self.layers = layers_of(cast(nn.Sequential, self.module))
        self.batch_size = max(self.batch_size, STACKED_EVALUATION_BATCH)
        self.shapes = [p.shape for p in trainable(self.module)]
        self.is_exact = is_exact_in_company(self.module)
        self.n_parameters = sum(shape.numel() for shape in self.shapes)
        self.x = self._all_train_data.x.flatten(1)
        self.y = self._all_train_data.y
        self.groups = self._all_train_data.group
        self.starts = [0, *torch.tensor(self.sizes).cumsum(0).tolist()]
        self._plan_batches = functools.lru_cache(PLANS)(plan_batches)
        train_data = self.train_data
        self._make_train_set = functools.lru_cache(EVALUATION_BATCHES)(
            lambda begin, end: EvaluationSet(train_data[begin:end], is_kept=True)
        )
        self._make_evaluation_batch = functools.lru_cache(EVALUATION_BATCHES)(EvaluationBatch)

    def train_many(self, jobs: Sequence[TrainJob]) -> list[LocalResult]:
        """Do several jobs; those that differ in few settings share every pass over the data."""
        assert not any(job.work.is_general for job in jobs), "see `engine.demands`"
        results: dict[int, LocalResult] = {}
        for grid in group_jobs(jobs, self.sizes, self.is_exact):
            groups = [[jobs[number] for number in numbers] for numbers in grid]
            results |= zip(itertools.chain(*grid), self._train_grid(groups), strict=True)
        return [results[number] for number in range(len(jobs))]

    def _train_grid(self, groups: Sequence[Sequence[TrainJob]]) -> list[LocalResult]:
        """Do the jobs of a grid, group by group: those of a group share their batches."""
        grid = Grid.of(groups, self.device)
        work, n_settings = grid.works[0], len(grid.works)
        sizes = [self.sizes[index] for index in grid.client_indices]
        steps = [work.count_steps(size) for size in sizes]
        order = sorted(range(len(sizes)), key=lambda row: (-steps[row], -sizes[row]))
        share = self._flops(sizes, work, n_settings) >= SHARED_FLOPS
        size = self._chunk_size(sizes, work, n_settings)
        jobs = [job for group in groups for job in group]
        is_free = self.is_exact and all(rows_are_free(job, self.sizes) for job in jobs)
        if is_free:
            size = self._larger_chunk_size(size, sizes, work, n_settings, share)
        tasks = [
            ChunkTask(grid, order[begin : begin + size]) for begin in range(0, len(order), size)
        ]
        if is_free and share:
            tasks = spread_over_cores(tasks, self.workers)
        tables = self._map(
            tasks,
            self._table_shapes(grid),
            share=share,
            costs=[
                self._flops([sizes[row] for row in task.rows], work, len(task.works))
                for task in tasks
            ],
        )
        running = tables.pop("running").cpu() / torch.tensor(steps)
        return self._results(groups, tables, running, torch.tensor(steps, dtype=torch.float64))

    def _table_shapes(self, grid: Grid) -> Shapes:
        n_settings, n_clients = len(grid.works), len(grid.client_indices)
        table = ((n_settings, n_clients, grid.starts.shape[2]), grid.starts.dtype)
        return {
            "deltas": table,
            "running": ((n_settings, n_clients), torch.float64),
            **({"first_deltas": table} if grid.wants_first_step else {}),
        }

    def _run_task(self, task: ChunkTask, tables: Tables) -> None:
        """Train one chunk of clients."""
        start = task.start_vectors()
        models, first_models, losses = self._train_chunk(task, start)
        write_deltas(start, models, tables["deltas"][task.settings], task.rows)
        if first_models is not None:
            write_deltas(start, first_models, tables["first_deltas"][task.settings], task.rows)
        tables["running"][task.settings, task.rows] = losses

    def _results(
        self, groups: Sequence[Sequence[TrainJob]], tables: Tables, running: Tensor, steps: Tensor
    ) -> list[LocalResult]:
        """Return the results of the jobs of all groups, one group after the other."""
        received = self._received_losses(groups)
        results, end = [], 0
        for jobs in groups:
            rows = slice(end, end := end + len(jobs[0].client_indices))
            for s, job in enumerate(jobs):
                deltas, first = tables["deltas"][s, rows], None
                if job.work.first_step:
                    first = tables["first_deltas"][s, rows]
                losses = running[s, rows]
                if job.work.loss_at == "received":
                    losses = next(received)
                elif job.work.loss_at == "final":
                    trained = job.vector.to(self.device) - deltas
                    losses = self.train_losses(trained, job.buffers, job.client_indices)
                buffers = job.buffers.expand(len(deltas), -1)
                results.append(LocalResult(deltas, losses, steps[rows], buffers, first))
        return results

    def _received_losses(self, groups: Sequence[Sequence[TrainJob]]) -> Iterator[Tensor]:
        """Yield the losses of the received models, for each job that reports them."""
        chosen = [[job for job in jobs if job.work.loss_at == "received"] for jobs in groups]
        chosen = [jobs for jobs in chosen if jobs]
        if not chosen or chosen[0][0].vector.ndim == 2:
            jobs = itertools.chain(*chosen)
            return (self.train_losses(job.vector, job.buffers, job.client_indices) for job in jobs)
        requests = [
            (torch.stack([job.vector for job in jobs]), self._train_set(jobs[0].client_indices))
            for jobs in chosen
        ]
        return itertools.chain(*(losses for losses, _ in self._evaluate(requests)))

    def _train_set(self, client_indices: Sequence[int]) -> EvaluationSet:
        """Return the training data of these clients; kept if it needs no memory."""
        first, count = client_indices[0], len(client_indices)
        if 1 < count < len(self.clients) and list(client_indices) == list(
            range(first, first + count)
        ):
            return self._make_train_set(first, first + count)
        return super()._train_set(client_indices)

    def train_losses(
        self, vector: Tensor, buffers: Tensor, client_indices: Sequence[int]
    ) -> Tensor:
        if vector.ndim == 1:
            return super().train_losses(vector, buffers, client_indices)
        pairs = zip(vector, client_indices, strict=True)
        requests = [(own[None], self._train_set([index])) for own, index in pairs]
        return torch.cat([losses[0] for losses, _ in self._evaluate(requests)])

    def _chunk_size(self, sizes: list[int], work: LocalTraining, n_settings: int) -> int:
        """Return how many clients are trained at a time, whatever the number of cores."""
        fits = self._clients_that_fit(sizes, work, n_settings)
        if self.device.type != "cpu":
            return fits
        worth_it = math.ceil(CHUNK_FLOPS * len(sizes) / self._flops(sizes, work, n_settings))
        n_chunks = max(2, min(MAX_CHUNKS, len(sizes) // MIN_CLIENTS_PER_CHUNK))
        return int(min(fits, max(worth_it, math.ceil(len(sizes) / n_chunks))))

    def _larger_chunk_size(
        self, size: int, sizes: list[int], work: LocalTraining, n_settings: int, share: bool
    ) -> int:
        """Return a chunk size at which a step is work enough, where bits do not depend on it."""
        batch = min(work.batch_size, max(sizes))
        enough = math.ceil(STEP_FLOPS / (4 * self.n_parameters * n_settings * batch))
        fits = self._clients_that_fit(sizes, work, n_settings)
        n_chunks = math.ceil(len(sizes) / max(size, min(fits, enough)))
        n_cores = self.workers if share else 1
        return math.ceil(len(sizes) / (n_cores * math.ceil(n_chunks / n_cores)))

    def _clients_that_fit(self, sizes: list[int], work: LocalTraining, n_settings: int) -> int:
        """Return how many clients fit the cache; on another device, its memory."""
        batch = min(work.batch_size, max(sizes))
        copies = 3 if work.optimiser == "sgd" else 5  # of the parameters: velocities and the like
        widest = max(shape[0] for shape in self.shapes)
        activations = batch * (self.x.shape[1] + 4 * n_settings * widest)
        bytes_per_client = 4 * (copies * n_settings * self.n_parameters + activations)
        room = CHUNK_BYTES if self.device.type == "cpu" else GPU_CHUNK_BYTES
        return int(max(1, room // bytes_per_client))

    def _flops(self, sizes: list[int], work: LocalTraining, n_settings: int) -> int:
        """Return roughly the floating-point operations of training clients of these sizes."""
        return 4 * self.n_parameters * n_settings * work.epochs * sum(sizes)

    def _train_chunk(
        self, task: ChunkTask, start: Tensor
    ) -> tuple[list[Tensor], list[Tensor] | None, Tensor]:
        """Train a chunk: return its models, those after the first step, and losses [S, K]."""
        indices, works, n_settings = task.client_indices, task.works, len(task.works)
        batches = self._batches(indices, works[0], task.addresses, n_settings)
        objectives = task.objectives(start)
        wants_losses = any(work.loss_at == "running" for work in works)
        # Only an objective needs autograd; without it every operation costs less.
        with torch.inference_mode(objectives is None):
            tensors = self._split(start)
            update = self._make_update(tensors, works, len(indices), task)
            stack, first_models = Stack(self.layers, tensors, len(indices)), None
            log_probabilities: list[Tensor] = []
            inputs = InputBuffer(self.x)
            for t, batch in enumerate(batches):
                if t > 0 and (t == 1 or batch.n_clients < stack.clients):
                    update.keep_clients(batch.n_clients)
                    stack = Stack(self.layers, update.moving, batch.n_clients)
                forward = stack.forward(inputs.gather(batch))
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
                if t == 0 and task.grid.wants_first_step:
                    first_models = [model.clone() for model in update.models]
            losses = sum_batch_losses(log_probabilities, batches, len(indices) * n_settings)
            return update.models, first_models, losses.view(len(indices), n_settings).T

    def _make_update(
        self,
        start: list[Tensor],
        works: Sequence[LocalTraining],
        n_clients: int,
        task: ChunkTask,
    ) -> Update:
        """Return the optimiser of a chunk."""
        work = works[0]
        correction: StackedCorrection | None = None
        if work.correction is not None:
            anchors, shifts = (
                None if rows is None else self._split(rows.to(start[0]))
                for rows in (task.rows_of(task.grid.anchors), task.rows_of(task.grid.shifts))
            )
            correction = StackedCorrection(work.correction, anchors, shifts)
        if work.optimiser == "adam":
            return AdamUpdate(start, n_clients, work.lr, correction)
        lrs = [work.lr for work in works]
        return Update(start, n_clients, lrs, work.momentum, correction)

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
        """Return vectors [K, S, D] as the model's tensors [K, S, ...].

        They are copied if each matrix then begins at a multiple of 64 bytes.
        """
        parts = torch.split(vectors, [shape.numel() for shape in self.shapes], dim=2)
        tensors = [
            part.reshape(*part.shape[:2], *shape)
            for part, shape in zip(parts, self.shapes, strict=True)
        ]
        return [tensor.contiguous() for tensor in tensors] if self.is_exact else tensors

    def _batches(
        self,
        client_indices: list[int],
        work: LocalTraining,
        addresses: list[Address],
        n_settings: int,
    ) -> list[Batch]:
        """Return the batches of some clients, step by step; the longest client comes first."""
        sizes = tuple(self.sizes[index] for index in client_indices)
        plan = self._plan_batches(sizes, work.batch_size, work.epochs, n_settings)
        orders = [
            batch_order(self.sizes[index], work.epochs, address, self.clients[index].id)
            .add_(self.starts[index])
            .view(-1)
            for index, address in zip(client_indices, addresses, strict=True)
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
        ((losses, accuracies),) = self._evaluate([(vector[None], data)])
        return losses[0], accuracies[0]

    def evaluate_jobs(self, jobs: Sequence[EvaluationJob]) -> list[list[Scores]]:
        """Do several jobs; sets of equal length with equally many models are one batch."""
        requests = [(torch.stack([vector for vector, _ in j.models]), j.data) for j in jobs]
        return [list(zip(*scores, strict=True)) for scores in self._evaluate(requests)]

    def evaluate_async(
        self, jobs: Sequence[EvaluationJob], training_follows: bool
    ) -> Callable[[], list[list[Scores]]]:
        """Defer the evaluation if training follows: clients are seldom a multiple of the cores."""
        if not training_follows or self.workers == 1:
            return super().evaluate_async(jobs, training_follows)
        n_examples = sum(len(job.models) * len(job.data) for job in jobs)
        call = functools.partial(self.evaluate_jobs, jobs)
        return self.pool.defer(call, 2 * self.n_parameters * n_examples)

    def _evaluate(self, requests: Sequence[tuple[Tensor, EvaluationSet]]) -> list[Scores]:
        """Return losses and accuracies of models [S, D] on a set, for each pair: [S, parts]."""
        alike: dict[tuple[int, int], list[int]] = {}
        for number, (vectors, data) in enumerate(requests):
            alike.setdefault((len(vectors), len(data)), []).append(number)
        scores: dict[int, Scores] = {}
        for (n_models, n_examples), numbers in alike.items():
            size = self._sets_per_batch(n_models, n_examples)
            for begin in range(0, len(numbers), size):
                some = numbers[begin : begin + size]
                scores |= zip(some, self._evaluate_alike([requests[n] for n in some]), strict=True)
        return [scores[number] for number in range(len(requests))]

    def _evaluate_alike(self, requests: Sequence[tuple[Tensor, EvaluationSet]]) -> list[Scores]:
        """Evaluate equally many models on each of several sets of one length, as one batch."""
        vectors = torch.stack([vectors for vectors, _ in requests]).to(self.device)
        sets, n_models = tuple(data for _, data in requests), vectors.shape[1]
        is_kept = all(data.is_kept for data in sets)
        make_batch = self._make_evaluation_batch if is_kept else EvaluationBatch
        batch = make_batch(sets, n_models)
        stack = Stack(self.layers, self._split(vectors), len(vectors))

        def score(rows: slice) -> Callable[[], Tensor]:
            return lambda: batch.sum_scores(stack, rows)

        return batch.mean_scores(
            run_in_threads([score(rows) for rows in batch.slices(self.batch_size)])
        )

    def _sets_per_batch(self, n_models: int, n_examples: int) -> int:
        """Return how many evaluation sets are evaluated at a time."""
        if not self.is_exact:
            return 1
        widest = max(shape[0] for shape in self.shapes)
        values = min(n_examples, self.batch_size) * (self.x.shape[1] + 3 * n_models * widest)
        return int(max(1, EVALUATION_BYTES // (4 * values)))
