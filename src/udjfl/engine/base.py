"""The seam between what clients compute in a round and how it is computed."""

from __future__ import annotations

import contextlib
import functools
import math
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from udjfl.data.federation import Client, Examples
from udjfl.engine._fork_pool import ForkPool, Shapes, Tables, do_alone
from udjfl.engine._memory import keep_freed_memory
from udjfl.models import buffers_from_vector, from_vector
from udjfl.seeds import torch_stream

LossAt = Literal["received", "running", "final"]
Optimiser = Literal["sgd", "adam"]
# With more examples at a time, what a convolution makes of them falls out of a core's cache.
EVALUATION_BATCH, GPU_EVALUATION_BATCH = 128, 8192


# From losses [N, B] of the examples of a batch, their weights [N, B], their groups [N, B] and a number for each client [N]
# (both None where there are none) to what each client minimises [N].
Objective = Callable[[Tensor, Tensor, Tensor | None, Tensor | None], Tensor]


@dataclass(frozen=True)
class LocalTraining:
    """How a client trains: an optimiser that starts afresh, over its own examples in a random order.

    momentum     of SGD; Adam has none to choose
    objective    what is minimised on a batch, in place of its mean loss
    multipliers  [N] for the objective, a number for each client asked
    pull         [D] mixed into every gradient, by pull_share
    first_step   also return where the first optimiser step led
    optimiser    SGD with momentum, as methods ask for; or Adam as torch has it by default, for clients that train alone
    """

    lr: float
    momentum: float
    batch_size: int
    epochs: int
    loss_at: LossAt = "received"
    objective: Objective | None = None
    multipliers: Tensor | None = None
    pull: Tensor | None = None
    pull_share: float = 0.0
    first_step: bool = False
    optimiser: Optimiser = "sgd"


@dataclass(frozen=True)
class LocalResult:
    """What the clients of a round computed; row i belongs to the i-th client asked.

    deltas [N, D] the received vector minus the trained one; losses [N] float64; steps [N] optimiser steps taken;
    buffers [N, B] float64, the model's buffers after training; first_deltas [N, D] like deltas after one step, if asked for.
    """

    deltas: Tensor
    losses: Tensor
    steps: Tensor
    buffers: Tensor
    first_deltas: Tensor | None = None


@dataclass(frozen=True)
class TrainJob:
    """One question to some clients, by their places: train from one model [D], or each from its own [len(rows), D]."""

    vector: Tensor
    buffers: Tensor
    rows: Sequence[int]
    work: LocalTraining
    address: tuple[int, str, int]


class Engine(ABC):
    """Local training and evaluation of one model on one set of clients.

    The module lends its shape and forward pass; its own numbers are overwritten. Data moves to the device once.
    Which batches a client sees depends on `address` (seed, purpose, round) and on its id alone, never on the engine.
    """

    name: str

    def __init__(
        self, module: nn.Module, clients: Sequence[Client], device: str = "cpu", workers: int = 1
    ) -> None:
        self.device = torch.device(device)
        self.workers = workers if self.device.type == "cpu" else 1
        self.batch = EVALUATION_BATCH if self.device.type == "cpu" else GPU_EVALUATION_BATCH
        self.module = module.to(self.device)
        self.clients = tuple(clients)
        self.train_data = Examples.laid_out([client.train.on(self.device) for client in clients])
        self.sizes = [len(data) for data in self.train_data]

    @property
    def evaluates_aside(self) -> bool:
        """Whether models can be evaluated while others are trained, and time is gained by that."""
        return False  # the module is one, and lends itself to one model at a time

    def close(self) -> None:  # noqa: B027 - most have nothing to end
        """End what was started for this engine; it may still be used, and starts it again."""

    @functools.cached_property
    def _all_train(self) -> EvaluationSet:
        return EvaluationSet(self.train_data)

    @abstractmethod
    def train(
        self,
        vector: Tensor,
        buffers: Tensor,
        rows: Sequence[int],
        work: LocalTraining,
        address: tuple[int, str, int],
    ) -> LocalResult:
        """Train the clients at these places from one common model [D], or each from its own [len(rows), D].

        A place may be there several times, to train one client from several models; it sees the same batches each time.
        """

    def train_many(self, jobs: Sequence[TrainJob]) -> list[LocalResult]:
        """Several jobs; an engine may share work between them. What each job gets does not depend on the others."""
        return [
            self.train(job.vector, job.buffers, job.rows, job.work, job.address) for job in jobs
        ]

    def received_losses(self, vector: Tensor, buffers: Tensor, rows: Sequence[int]) -> Tensor:
        """Mean training loss of each client at one common model, or at its own."""
        if vector.ndim == 2:
            each = [
                self.received_losses(own, buffers, [row])
                for own, row in zip(vector, rows, strict=True)
            ]
            return torch.cat(each)
        return self.evaluate(vector, buffers, self._pooled(rows))[0]

    def _pooled(self, rows: Sequence[int]) -> EvaluationSet:
        """The train data of these clients."""
        everybody = list(rows) == list(range(len(self.clients)))
        return (
            self._all_train if everybody else EvaluationSet([self.train_data[row] for row in rows])
        )

    def evaluate(
        self, vector: Tensor, buffers: Tensor, pooled: EvaluationSet
    ) -> tuple[Tensor, Tensor]:
        """Mean loss and accuracy (0 to 1) of one model on each part of the pool, both float64 [parts]."""
        self.load(vector, buffers)
        self.module.eval()
        with torch.no_grad():
            done = [
                pooled.sums(self.module(pooled.x[rows])[None], rows)
                for rows in pooled.pieces(self.batch)
            ]
        losses, accuracies = pooled.means(done)
        return losses[0], accuracies[0]

    def evaluate_many(
        self, models: Sequence[tuple[Tensor, Tensor]], pooled: EvaluationSet
    ) -> list[tuple[Tensor, Tensor]]:
        """`evaluate` for several models, given as (vector, buffers); an engine may share work between them."""
        return [self.evaluate(vector, buffers, pooled) for vector, buffers in models]

    def evaluate_mixture(
        self, vectors: Tensor, shares: Tensor, buffers: Tensor, examples: Examples
    ) -> tuple[float, float]:
        """Mean loss and accuracy (0 to 1) of the mixture of some models' predictions, by these shares, which sum to 1."""
        log_probabilities: Tensor | None = None
        for place in shares.nonzero().flatten().tolist():
            log_p = self._logits(vectors[place], buffers, examples).log_softmax(dim=1) + math.log(
                shares[place]
            )
            log_probabilities = (
                log_p if log_probabilities is None else torch.logaddexp(log_probabilities, log_p)
            )
        assert log_probabilities is not None, "shares sum to 1"
        loss = nn.functional.nll_loss(log_probabilities, examples.y)
        right = (log_probabilities.argmax(dim=1) == examples.y).to(torch.float64)
        return float(loss), float(right.mean())

    def probabilities(self, vector: Tensor, buffers: Tensor, row: int) -> Tensor:
        """Softmax, in float64, of one model on one client's training examples."""
        return self._logits(vector, buffers, self.train_data[row]).softmax(dim=1).cpu()

    def _logits(self, vector: Tensor, buffers: Tensor, examples: Examples) -> Tensor:
        self.load(vector, buffers)
        self.module.eval()
        with torch.no_grad():
            logits = [self.module(x) for x in torch.split(examples.x, self.batch)]
        return torch.cat(logits).to(torch.float64)

    def load(self, vector: Tensor, buffers: Tensor) -> None:
        from_vector(self.module, vector.to(self.device))
        buffers_from_vector(self.module, buffers.to(self.device))


class ForkPoolEngine(Engine):
    """An engine that cuts training into pieces, and shares them out to a crew where that pays."""

    def __init__(
        self, module: nn.Module, clients: Sequence[Client], device: str = "cpu", workers: int = 1
    ) -> None:
        super().__init__(module, clients, device, workers)
        self.crew = ForkPool(self._do, self.workers)
        weakref.finalize(self, self.crew.dismiss)

    @abstractmethod
    def _do(self, task: Any, number: int, tables: Tables) -> None:
        """One piece of a task, into the tables."""

    def _done(self, task: Any, pieces: int, shapes: Shapes, share: bool) -> Tables:
        """All pieces of a task, on this engine's device; on a GPU there is one worker."""
        if share and self.workers > 1:
            return self.crew.run(task, pieces, shapes)
        return do_alone(self._do, task, pieces, shapes, self.device)

    def close(self) -> None:
        self.crew.dismiss()


class EvaluationSet:
    """Several data sets laid end to end, so that one forward pass serves them all."""

    def __init__(self, parts: Sequence[Examples]) -> None:
        self.parts = len(parts)
        together = Examples.joined(parts)
        self.x, self.y, self.group = together.x, together.y, together.group
        sizes = torch.tensor([len(part) for part in parts])
        self.part = torch.repeat_interleave(torch.arange(len(parts)), sizes).to(self.x.device)
        self.sizes = sizes.to(self.x.device, torch.float64)

    def pieces(self, size: int) -> list[slice]:
        """The rows of all parts, so many at a time."""
        return [slice(start, start + size) for start in range(0, len(self.y), size)]

    def sums(self, logits: Tensor, rows: slice) -> Tensor:
        """From the logits [S, rows, classes] of S models: sums of losses and of right answers in each part, [2, S, parts]."""
        settings, y = len(logits), self.y[rows]
        losses = nn.functional.cross_entropy(
            logits.flatten(0, 1), y.repeat(settings), reduction="none"
        ).view(settings, -1)
        found = torch.stack([losses, (logits.argmax(dim=2) == y).to(losses)]).to(torch.float64)
        return found.new_zeros(2, settings, self.parts).index_add_(2, self.part[rows], found)

    def means(self, sums: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Mean loss and accuracy (0 to 1) [S, parts], from the sums of all pieces, added up in their order."""
        losses, right = functools.reduce(torch.add, sums) / self.sizes
        return losses.cpu(), right.cpu()


def batch_order(
    n_examples: int, epochs: int, address: tuple[int, str, int], client_id: str
) -> Tensor:
    """The order in which a client sees its examples: [epochs, n_examples] indices, each row a permutation."""
    generator = torch_stream(*address, client_id)
    orders = [torch.randperm(n_examples, generator=generator) for _ in range(epochs)]
    return torch.stack(orders) if epochs > 1 else orders[0][None]


@contextlib.contextmanager
def own_randomness(seed: int, device: torch.device) -> Iterator[None]:
    """Draws from the global generators begin at this seed, and leave no trace."""
    if device.type != "cpu":
        with torch.random.fork_rng(devices=[device], device_type=device.type):
            torch.manual_seed(seed)
            yield
        return
    # Not by torch.manual_seed, which sets the generators of GPUs as well.
    before = torch.default_generator.get_state()
    torch.default_generator.manual_seed(seed)
    try:
        yield
    finally:
        torch.default_generator.set_state(before)


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Run torch on one thread: the models here are too small for two to help, and sums keep one order."""
    keep_freed_memory()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
