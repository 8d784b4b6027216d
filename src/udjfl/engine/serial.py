"""One client after the other, for any nn.Module; as many at a time as there are workers."""

from __future__ import annotations

import copy
import functools
import queue
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from udjfl._threads import spread
from udjfl.data.federation import Client, Examples
from udjfl.engine._fork_pool import Tables
from udjfl.engine.base import (
    EVALUATION_BATCH,
    EvaluationSet,
    ForkPoolEngine,
    LocalResult,
    LocalTraining,
    batch_order,
    own_randomness,
)
from udjfl.errors import DataError
from udjfl.models import buffers_from_vector, buffers_to_vector, from_vector, to_vector, trainable
from udjfl.seeds import stream_seed

# With less than this to do, in seconds, other processes are not asked.
WORTH_SHARING = 0.01
PLAIN_BATCH = 1024  # to evaluate at a time, where there are no convolutions


@dataclass(frozen=True)
class _Task:
    """Training of the clients at these places, from one model for all [D] or one for each [N, D]."""

    vectors: Tensor
    buffers: Tensor
    rows: Sequence[int]
    work: LocalTraining
    address: tuple[int, str, int]

    def __reduce__(self) -> tuple[object, ...]:
        # By way of numpy: pickling a tensor writes a file in memory.
        return _sent_task, (
            self.vectors.numpy(),
            self.buffers.numpy(),
            self.rows,
            self.work,
            self.address,
        )


def _sent_task(vectors: np.ndarray, buffers: np.ndarray, *others: Any) -> _Task:
    return _Task(torch.from_numpy(vectors), torch.from_numpy(buffers), *others)


class SerialEngine(ForkPoolEngine):
    name = "serial"

    def __init__(
        self, module: nn.Module, clients: Sequence[Client], device: str = "cpu", workers: int = 1
    ) -> None:
        super().__init__(module, clients, device, workers)
        # Threads that evaluate at the same time need a network each.
        self.spare: queue.SimpleQueue[nn.Module] = queue.SimpleQueue()
        if not self._has_convolutions:
            self.batch = max(self.batch, PLAIN_BATCH)

    def train(
        self,
        vector: Tensor,
        buffers: Tensor,
        rows: Sequence[int],
        work: LocalTraining,
        address: tuple[int, str, int],
    ) -> LocalResult:
        losses = self.received_losses(vector, buffers, rows) if work.loss_at == "received" else None
        task = _Task(vector.to(self.device), buffers, list(rows), work, address)
        tables = self._trained(task)
        if work.loss_at == "running":
            losses = tables["running"].cpu()
        elif work.loss_at == "final":
            each = zip(task.vectors - tables["deltas"], tables["buffers"], rows, strict=True)
            losses = torch.cat(
                [self.received_losses(trained, own, [row]) for trained, own, row in each]
            )
        assert losses is not None
        steps = [work.epochs * -(-self.sizes[row] // work.batch_size) for row in rows]
        return LocalResult(
            deltas=tables["deltas"],
            losses=losses,
            steps=torch.tensor(steps, dtype=torch.float64),
            buffers=tables["buffers"],
            first_deltas=tables.get("firsts"),
        )

    def _trained(self, task: _Task) -> Tables:
        """Train all clients of a task; what came of client i is in row i of each table."""
        n, table = len(task.rows), ((len(task.rows), task.vectors.shape[-1]), task.vectors.dtype)
        shapes = {
            "deltas": table,
            "buffers": ((n, len(task.buffers)), torch.float64),
            "running": ((n,), torch.float64),
        }
        if task.work.first_step:
            shapes["firsts"] = table
        examples = task.work.epochs * sum(self.sizes[row] for row in task.rows)
        worth_sharing = self.workers > 1 and examples * self._seconds_an_example >= WORTH_SHARING
        return self._done(task, n, shapes, share=worth_sharing)

    def _do(self, task: _Task, number: int, tables: Tables) -> None:
        """One client's training, in a network that nobody else is using."""
        row, own = task.rows[number], task.work.multipliers
        pull = None if task.work.pull is None else task.work.pull.to(self.device)
        work = replace(
            task.work,
            multipliers=None if own is None else own[number : number + 1].to(self.device),
            pull=pull,
        )
        start = task.vectors if task.vectors.ndim == 1 else task.vectors[number]
        with self._network() as network:
            _load(network, start, task.buffers.to(self.device))
            # Whatever the network draws, as dropout does, comes from the global generator: each client has its own state of it.
            with own_randomness(
                stream_seed(*task.address, "inside the model", self.clients[row].id), self.device
            ):
                try:
                    running, first = self._descend(network, row, work, task.address)
                except ValueError as error:  # such as batch norm's, of a batch with one example
                    raise DataError(
                        f"client {self.clients[row].id!r} cannot train this model: {error}"
                    ) from error
            torch.sub(start, to_vector(network), out=tables["deltas"][number])
            if first is not None:
                torch.sub(start, first, out=tables["firsts"][number])
            tables["buffers"][number] = buffers_to_vector(network)
            tables["running"][number] = running

    def _descend(
        self, network: nn.Module, row: int, work: LocalTraining, address: tuple[int, str, int]
    ) -> tuple[Tensor, Tensor | None]:
        """Train one client: the mean of the batches' losses, and where the first step led, if that is wanted."""
        data = self.train_data[row]
        optimiser = _optimiser(network, work)
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        taken = 0
        first = None
        network.train()
        for order in batch_order(len(data), work.epochs, address, self.clients[row].id).to(
            self.device
        ):
            for batch in order.split(work.batch_size):
                optimiser.zero_grad(set_to_none=True)
                loss, goal = _batch_loss(network, data, batch, work)
                goal.backward()  # type: ignore[no-untyped-call]
                _pull(network, work)
                optimiser.step()
                total += loss.detach()
                taken += 1
                if work.first_step and taken == 1:
                    first = to_vector(network)
        return (total / taken).cpu(), first

    def evaluate(
        self, vector: Tensor, buffers: Tensor, pooled: EvaluationSet
    ) -> tuple[Tensor, Tensor]:
        def piece(rows: slice) -> Callable[[], Tensor]:
            def evaluate_rows() -> Tensor:
                with self._network() as network, torch.no_grad():
                    _load(network, vector.to(self.device), buffers.to(self.device))
                    return pooled.sums(network.eval()(pooled.x[rows])[None], rows)

            return evaluate_rows

        losses, accuracies = pooled.means(
            spread([piece(rows) for rows in pooled.pieces(self.batch)], self.workers)
        )
        return losses[0], accuracies[0]

    @contextmanager
    def _network(self) -> Iterator[nn.Module]:
        """A network that nobody else is using."""
        try:
            network = self.spare.get_nowait()
        except queue.Empty:
            network = copy.deepcopy(self.module).to(memory_format=self._layout)  # type: ignore[call-overload]
        yield network
        self.spare.put(network)

    @functools.cached_property
    def _seconds_an_example(self) -> float:
        """How long an example takes in training, roughly: of an unknown network that is known only when it was tried."""
        x = self.train_data[0].x[:EVALUATION_BATCH]
        network = copy.deepcopy(self.module).train()
        with torch.random.fork_rng(devices=[]):
            try:
                _gradient(network, x)  # the first time takes longer
                begin = time.perf_counter()
                _gradient(network, x)
            except (
                RuntimeError,
                ValueError,
            ):  # a network that these examples do not suit; training will tell
                return 0.0
        return (time.perf_counter() - begin) / len(x)

    @property
    def _has_convolutions(self) -> bool:
        return any(isinstance(part, nn.Conv2d) for part in self.module.modules())

    @functools.cached_property
    def _layout(self) -> torch.memory_format:
        """How images lie in memory: with their channels last, which is fastest on a CPU, if the network bears it."""
        x = self.train_data[0].x[:2]
        if self.device.type != "cpu" or x.ndim != 4 or not self._has_convolutions:
            return torch.preserve_format
        plain = copy.deepcopy(self.module).eval()
        try:
            other = copy.deepcopy(plain).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            with torch.random.fork_rng(devices=[]):
                same = torch.allclose(
                    _gradient(plain, x), _gradient(other, x), rtol=1e-3, atol=1e-5
                )
        except RuntimeError:  # a network that takes a `view` of images, say
            return torch.preserve_format
        return torch.channels_last if same else torch.preserve_format


def _load(network: nn.Module, vector: Tensor, buffers: Tensor) -> None:
    from_vector(network, vector)
    buffers_from_vector(network, buffers)


def _optimiser(network: nn.Module, work: LocalTraining) -> torch.optim.Optimizer:
    if work.optimiser == "adam":
        return torch.optim.Adam(trainable(network), lr=work.lr)
    return torch.optim.SGD(trainable(network), lr=work.lr, momentum=work.momentum)


def _gradient(network: nn.Module, x: Tensor) -> Tensor:
    """Of the sum of the squared logits."""
    parts = torch.autograd.grad(
        network(x).square().sum(), trainable(network), allow_unused=True, materialize_grads=True
    )
    return torch.cat([part.reshape(-1) for part in parts])


def _batch_loss(
    network: nn.Module, data: Examples, batch: Tensor, work: LocalTraining
) -> tuple[Tensor, Tensor]:
    """The mean loss of a batch, and what is minimised."""
    logits = network(torch.index_select(data.x, 0, batch))
    if work.objective is None:
        loss = nn.functional.cross_entropy(logits, data.y[batch])
        return loss, loss
    each = nn.functional.cross_entropy(logits, data.y[batch], reduction="none")[None]
    groups = None if data.group is None else data.group[batch][None]
    multipliers = None if work.multipliers is None else work.multipliers.to(each)
    goal = work.objective(each, torch.full_like(each, 1 / len(batch)), groups, multipliers)
    return each.mean(), goal[0]


def _pull(network: nn.Module, work: LocalTraining) -> None:
    """Mix the work's direction into the gradients."""
    if work.pull is None or not work.pull_share:
        return
    own = trainable(network)
    for p, pull in zip(
        own, torch.split(work.pull.to(own[0].device), [p.numel() for p in own]), strict=True
    ):
        if p.grad is not None:
            p.grad.mul_(1 - work.pull_share).add_(pull.view_as(p).to(p), alpha=work.pull_share)
