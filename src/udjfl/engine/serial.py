"""One client after the other, for any nn.Module; several at a time with several workers."""

from __future__ import annotations

import copy
import functools
import queue
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from udjfl._threads import run_in_threads
from udjfl.data.federation import Examples
from udjfl.engine._memory import Shapes, Tables
from udjfl.engine.base import (
    ClassWeights,
    EvaluationSet,
    ForkPoolEngine,
    LocalResult,
    LocalTraining,
    Scores,
    TrainJob,
    load_model,
    seeded_generator,
)
from udjfl.engine.batches import batch_order
from udjfl.errors import DataError, quote_values
from udjfl.models import buffers_to_vector, to_inputs, to_vector, trainable
from udjfl.seeds import stream_seed
from udjfl.tasks import LossFunction
from udjfl.tasks.losses import cross_entropy

# With less to compute, other processes are not asked: 10 ms of one core, measured with an MLP
# 784-64-10. An optimiser step takes as long as this many multiplications, however small the model.
SHARED_PRODUCTS, PRODUCTS_PER_STEP = 50_000_000, 1_500_000
PLAIN_EVALUATION_BATCH = 1024  # for networks without convolutions


@dataclass(frozen=True)
class _Shared:
    """The common part of a job's tasks: one model for all [D], or one for each [N, D]."""

    vectors: Tensor
    buffers: Tensor
    client_indices: Sequence[int]
    work: LocalTraining
    address: tuple[int, str, int]

    def __reduce__(self) -> tuple[object, ...]:
        # Tensors go through numpy: pickling one writes a file in memory.
        arrays = self.vectors.numpy(), self.buffers.numpy()
        return _unpickle_shared, (*arrays, self.client_indices, self.work, self.address)


def _unpickle_shared(vectors: np.ndarray, buffers: np.ndarray, *others: Any) -> _Shared:
    return _Shared(torch.from_numpy(vectors), torch.from_numpy(buffers), *others)


@dataclass(frozen=True)
class _Task:
    """Training of one client; its results go into row `row` of each table."""

    shared: _Shared
    row: int


class SerialEngine(ForkPoolEngine):
    """Trains any nn.Module with torch's autograd and optimisers."""

    name = "serial"

    def _prepare(self) -> None:
        super()._prepare()
        # Threads that evaluate at the same time need a network each.
        self._spare_networks: queue.SimpleQueue[nn.Module] = queue.SimpleQueue()
        if not self._has_convolutions:
            self.batch_size = max(self.batch_size, PLAIN_EVALUATION_BATCH)

    def train_many(self, jobs: Sequence[TrainJob]) -> list[LocalResult]:
        return [self._train(job) for job in jobs]

    def _train(self, job: TrainJob) -> LocalResult:
        vector, buffers, work = job.vector, job.buffers, job.work
        client_indices = list(job.client_indices)
        received = (
            self.train_losses(vector, buffers, client_indices)
            if work.loss_at == "received"
            else None
        )
        shared = _Shared(vector.to(self.device), buffers, client_indices, work, job.address)
        steps = [work.count_steps(self.sizes[index]) for index in client_indices]
        tables = self._map(
            [_Task(shared, row) for row in range(len(client_indices))],
            self._shapes(shared),
            share=self._is_worth_sharing(shared, sum(steps)),
        )
        deltas, buffers = tables["deltas"], tables["buffers"]
        if received is not None:
            losses = received
        elif work.loss_at == "running":
            losses = tables["running"].cpu()
        else:
            losses = self._final_losses(shared.vectors - deltas, buffers, client_indices)
        taken = torch.tensor(steps, dtype=torch.float64)
        return LocalResult(deltas, losses, taken, buffers, tables.get("first_deltas"))

    def _shapes(self, shared: _Shared) -> Shapes:
        n, vectors = len(shared.client_indices), shared.vectors
        table = ((n, vectors.shape[-1]), vectors.dtype)
        return {
            "deltas": table,
            "buffers": ((n, len(shared.buffers)), torch.float64),
            "running": ((n,), torch.float64),
            **({"first_deltas": table} if shared.work.first_step else {}),
        }

    def _is_worth_sharing(self, shared: _Shared, n_steps: int) -> bool:
        """Return whether there is enough to do for several processes.

        A parameter is multiplied once for each example, or up to once for each pixel if the network
        has convolutions.
        """
        sizes = [self.sizes[index] for index in shared.client_indices]
        n_examples = sum(shared.work.count_epochs(size) * size for size in sizes)
        pixels = self.train_data[0].x.shape[2:].numel() if self._has_convolutions else 1
        products = n_examples * shared.vectors.shape[-1] * pixels
        return products + n_steps * PRODUCTS_PER_STEP >= SHARED_PRODUCTS

    def _run_task(self, task: _Task, tables: Tables) -> None:
        """Train one client."""
        shared, row = task.shared, task.row
        client = self.clients[shared.client_indices[row]]
        start = shared.vectors if shared.vectors.ndim == 1 else shared.vectors[row]
        # Dropout and the like draw from the global generator: each client has its own state of it.
        seed = stream_seed(*shared.address, "inside the model", client.id)
        with self._borrow_network() as network:
            load_model(network, start, shared.buffers.to(self.device))
            with seeded_generator(seed, self.device):
                try:
                    running, first = self._train_network(network, shared, row)
                except ValueError as error:  # such as batch norm's, of a batch with one example
                    raise DataError(
                        f"client {client.id!r} cannot train this model: {quote_values(str(error))}"
                    ) from error
            torch.sub(start, to_vector(network), out=tables["deltas"][row])
            if first is not None:
                torch.sub(start, first, out=tables["first_deltas"][row])
            tables["buffers"][row] = buffers_to_vector(network)
            tables["running"][row] = running

    def _train_network(
        self, network: nn.Module, shared: _Shared, row: int
    ) -> tuple[Tensor, Tensor | None]:
        """Train one client: return the mean loss of its batches, and the model after one step."""
        index, work = shared.client_indices[row], self._on_device(shared.work, row)
        data, first, n_steps = self.train_data[index], None, 0
        optimiser, correct = make_optimiser(network, work), _make_correction(network, work)
        class_weights = example_weights(data.y, work.class_weights)
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        network.train()
        n_epochs = work.count_epochs(len(data))
        orders = batch_order(len(data), n_epochs, shared.address, self.clients[index].id)
        batches = [b for order in orders.to(self.device) for b in order.split(work.batch_size)]
        for batch in batches[: work.count_steps(len(data))]:
            optimiser.zero_grad(set_to_none=True)
            loss, objective = _batch_losses(
                network, data, batch, work, self.criterion.loss, class_weights
            )
            objective.backward()  # type: ignore[no-untyped-call]
            correct()
            if work.clip_norm:
                nn.utils.clip_grad_norm_(trainable(network), work.clip_norm)
            optimiser.step()
            total += loss.detach()
            n_steps += 1
            if work.first_step and n_steps == 1:
                first = to_vector(network)
        return (total / n_steps).cpu(), first

    def _on_device(self, work: LocalTraining, row: int) -> LocalTraining:
        """Return the work of the client in this row, with its tensors on the device."""
        correction, multipliers = work.correction, work.multipliers
        return replace(
            work,
            correction=None if correction is None else correction.of_rows([row], self.device),
            multipliers=None if multipliers is None else multipliers[row : row + 1].to(self.device),
        )

    def evaluate(self, vector: Tensor, buffers: Tensor, data: EvaluationSet) -> Scores:
        def score(rows: slice) -> Callable[[], Tensor]:
            def sum_scores() -> Tensor:
                with self._borrow_network() as network, torch.no_grad():
                    load_model(network, vector.to(self.device), buffers.to(self.device))
                    outputs = network.eval()(self._inputs(data.x[rows]))[None]
                    return data.sum_scores(outputs, rows, self.criterion)

            return sum_scores

        sums = run_in_threads([score(rows) for rows in data.slices(self.batch_size)])
        losses, accuracies = data.mean_scores(sums)
        return losses[0], accuracies[0]

    @contextmanager
    def _borrow_network(self) -> Iterator[nn.Module]:
        """Provide a network that no other thread uses."""
        try:
            network = self._spare_networks.get_nowait()
        except queue.Empty:
            network = copy.deepcopy(self.module).to(memory_format=self._layout)  # type: ignore[call-overload]
        yield network
        self._spare_networks.put(network)

    @property
    def _has_convolutions(self) -> bool:
        return any(isinstance(part, nn.Conv2d) for part in self.module.modules())

    @functools.cached_property
    def _layout(self) -> torch.memory_format:
        """The memory format of the network: channels last, the fastest on a CPU, if it works."""
        x = self._inputs(self.train_data[0].x[:2])
        if self.device.type != "cpu" or x.ndim != 4 or not self._has_convolutions:
            return torch.preserve_format
        plain = copy.deepcopy(self.module).eval()
        try:
            other = copy.deepcopy(plain).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            with torch.random.fork_rng(devices=[]):
                gradients = _gradient(plain, x), _gradient(other, x)
        except RuntimeError:  # such as that of a network that takes a `view` of images
            return torch.preserve_format
        works = torch.allclose(*gradients, rtol=1e-3, atol=1e-5)
        return torch.channels_last if works else torch.preserve_format


def make_optimiser(network: nn.Module, work: LocalTraining) -> torch.optim.Optimizer:
    """Return torch's optimiser for one client's local training."""
    parameters = trainable(network)
    if work.optimiser != "sgd":
        adam = torch.optim.Adam if work.optimiser == "adam" else torch.optim.AdamW
        return adam(parameters, lr=work.lr, weight_decay=work.weight_decay)
    return torch.optim.SGD(
        parameters,
        lr=work.lr,
        momentum=work.momentum,
        weight_decay=work.weight_decay,
        nesterov=work.nesterov,
    )


def example_weights(labels: Tensor, class_weights: ClassWeights) -> Tensor | None:
    """Return a weight for each of a client's train examples; None if all weigh the same.

    Balanced weights are n / (k n_c) for the n_c examples of a class, of k that the client has:
    their mean is 1.
    """
    if class_weights == "none":
        return None
    if class_weights == "balanced":
        counts = torch.bincount(labels)
        return len(labels) / (counts[labels] * (counts > 0).sum())
    return torch.tensor(class_weights, device=labels.device)[labels]


def _gradient(network: nn.Module, x: Tensor) -> Tensor:
    """Return the gradient of the sum of the squared logits."""
    parts = torch.autograd.grad(
        network(x).square().sum(), trainable(network), allow_unused=True, materialize_grads=True
    )
    return torch.cat([part.reshape(-1) for part in parts])


def _batch_losses(
    network: nn.Module,
    data: Examples,
    batch: Tensor,
    work: LocalTraining,
    loss: LossFunction,
    class_weights: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Return the mean loss of a batch, and what is minimised."""
    outputs = network(to_inputs(torch.index_select(data.x, 0, batch), network))
    labels = data.y[batch]
    if work.objective is None and class_weights is None:
        if loss is cross_entropy:
            mean = nn.functional.cross_entropy(outputs, labels)
        else:
            mean = loss(outputs, labels).mean()
        return mean, mean
    losses = loss(outputs, labels)[None]
    weights = torch.full_like(losses, 1 / len(batch))
    if class_weights is not None:
        weights = weights * class_weights[batch].to(losses)
    if work.objective is None:
        return losses.mean(), (losses * weights).sum()
    groups = None if data.group is None else data.group[batch][None]
    multipliers = None if work.multipliers is None else work.multipliers.to(losses)
    return losses.mean(), work.objective(losses, weights, groups, multipliers)[0]


def _make_correction(network: nn.Module, work: LocalTraining) -> Callable[[], None]:
    """Return a function that corrects the gradients of a network, which is at its start now."""
    if work.correction is None:
        return lambda: None
    parameters = trainable(network)
    split = work.correction.split(to_vector(network), [p.numel() for p in parameters])

    def correct() -> None:
        for p, correction in zip(parameters, split, strict=True):
            if p.grad is not None:
                correction.apply(p.grad, p.detach())

    return correct
