"""The interface of an engine: what clients compute in a round, however it is computed."""

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
from udjfl.engine._fork_pool import ForkPool, run_alone
from udjfl.engine._memory import Shapes, Tables
from udjfl.engine.correction import Correction
from udjfl.models import buffers_from_vector, from_vector, to_inputs
from udjfl.tasks import CROSS_ENTROPY, Criterion, explained_variance, spread

LossAt = Literal["received", "running", "final"]
Optimiser = Literal["sgd", "adam", "adamw"]
ClassWeights = Literal["none", "balanced"] | tuple[float, ...]
# With more examples at a time, the output of a convolution does not fit a core's cache.
EVALUATION_BATCH, GPU_EVALUATION_BATCH = 128, 8192

# What each client minimises on a batch, [N]: from the losses [N, B] of its examples, their weights
# [N, B], their groups [N, B] and a multiplier for each client [N]; the last two may be None.
Objective = Callable[[Tensor, Tensor, Tensor | None, Tensor | None], Tensor]
Address = tuple[int, str, int]  # of random choices: seed, purpose, round
# Losses and accuracies (0 to 1) of one model on each part of an evaluation set, float64 [parts].
Scores = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class LocalTraining:
    """Local training: with a new optimiser, on their own examples in a random order.

    momentum     of SGD; Adam ignores it
    loss_at      which loss is reported: of the received model, the mean over the batches as they
                 are seen, or of the trained model
    objective    minimised on a batch in place of its mean loss
    multipliers  [N] for the objective, one for each client of the job
    correction   of every gradient
    first_step   also return the model after the first step
    optimiser    SGD with momentum, or Adam or AdamW with torch's defaults
    nesterov, weight_decay   of the optimiser
    clip_norm    longest gradient of a step; 0: any
    class_weights  of the examples in what is minimised: a number per class, or so that in each
                 client's train part all its classes have the same sum; losses that are reported
                 are without
    steps        taken in place of `epochs`, if not 0: as many epochs are begun as they need
    """

    lr: float
    momentum: float
    batch_size: int
    epochs: int
    loss_at: LossAt = "received"
    objective: Objective | None = None
    multipliers: Tensor | None = None
    correction: Correction | None = None
    first_step: bool = False
    optimiser: Optimiser = "sgd"
    nesterov: bool = False
    weight_decay: float = 0.0
    clip_norm: float = 0.0
    class_weights: ClassWeights = "none"
    steps: int = 0

    @property
    def is_general(self) -> bool:
        """True if only the serial engine, with torch's own optimisers, can do it."""
        decays = bool(self.nesterov or self.weight_decay or self.clip_norm or self.steps)
        return decays or self.optimiser == "adamw" or self.class_weights != "none"

    def count_steps(self, size: int) -> int:
        """Return the number of optimiser steps of a client with this many examples."""
        return self.steps or self.epochs * math.ceil(size / self.batch_size)

    def count_epochs(self, size: int) -> int:
        """Return the number of epochs that a client with this many examples begins."""
        return math.ceil(self.steps / math.ceil(size / self.batch_size)) or self.epochs


@dataclass(frozen=True)
class LocalResult:
    """The results of a job; row i belongs to its i-th client.

    deltas        [N, D] the received vector minus the trained one
    losses        [N] float64
    steps         [N] optimiser steps taken
    buffers       [N, B] float64, the model's buffers after training
    first_deltas  [N, D] like deltas, after one step, if requested
    """

    deltas: Tensor
    losses: Tensor
    steps: Tensor
    buffers: Tensor
    first_deltas: Tensor | None = None


@dataclass(frozen=True)
class TrainJob:
    """Training of some clients, from one model [D] or from one for each [N, D].

    A client may occur several times, to train from several models; it sees the same batches each
    time. Batches depend on `address` (seed, purpose, round) and the client's id only.
    """

    vector: Tensor
    buffers: Tensor
    client_indices: Sequence[int]
    work: LocalTraining
    address: Address


class Engine(ABC):
    """Local training and evaluation of one model on one set of clients.

    The module provides its shape and forward pass; its parameters are overwritten. Data moves to
    the device once.
    """

    name: str

    def __init__(
        self,
        module: nn.Module,
        clients: Sequence[Client],
        device: str = "cpu",
        workers: int = 1,
        criterion: Criterion = CROSS_ENTROPY,
    ) -> None:
        self.criterion = criterion
        self.device = torch.device(device)
        self.workers = workers if self.device.type == "cpu" else 1
        self.batch_size = EVALUATION_BATCH if self.device.type == "cpu" else GPU_EVALUATION_BATCH
        self.module = module.to(self.device)
        self.clients = tuple(clients)
        self.train_data = Examples.lay_out([client.train.on(self.device) for client in clients])
        self.sizes = [len(data) for data in self.train_data]
        self._score_sets: dict[tuple[int, ...], EvaluationSet] = {}
        self._prepare()

    def _prepare(self) -> None:  # noqa: B027 - a hook
        """Make what this kind of engine needs beside the data, once that is in place."""

    def close(self) -> None:  # noqa: B027 - most engines have nothing to stop
        """Stop the worker processes. They are started again on the next use."""

    @property
    def whole(self) -> Engine:
        """The engine that does the work: another one for a part, see `udjfl.engine.parts`."""
        return self

    def in_whole(self, job: TrainJob) -> TrainJob:
        """Return a job with the clients numbered as in the whole engine."""
        return job

    @functools.cached_property
    def _all_train_data(self) -> EvaluationSet:
        return EvaluationSet(self.train_data, is_kept=True)

    def train(self, job: TrainJob) -> LocalResult:
        """Do one job."""
        return self.train_many([job])[0]

    @abstractmethod
    def train_many(self, jobs: Sequence[TrainJob]) -> list[LocalResult]:
        """Do several jobs, whose results do not depend on each other; engines may share work."""

    def train_losses(
        self, vector: Tensor, buffers: Tensor, client_indices: Sequence[int]
    ) -> Tensor:
        """Return the mean training loss of each client at one common model, or at its own."""
        if vector.ndim == 2:
            pairs = zip(vector, client_indices, strict=True)
            return torch.cat([self.train_losses(own, buffers, [index]) for own, index in pairs])
        return self.evaluate(vector, buffers, self._train_set(client_indices))[0]

    def _final_losses(
        self, vectors: Tensor, buffers: Tensor, client_indices: Sequence[int]
    ) -> Tensor:
        """Return the training losses of clients at their trained models and buffers."""
        each = zip(vectors, buffers, client_indices, strict=True)
        return torch.cat([self.train_losses(trained, own, [index]) for trained, own, index in each])

    def _train_set(self, client_indices: Sequence[int]) -> EvaluationSet:
        """Return the training data of these clients."""
        if list(client_indices) == list(range(len(self.clients))):
            return self._all_train_data
        return EvaluationSet([self.train_data[index] for index in client_indices])

    def score_set(self, client_indices: Sequence[int]) -> EvaluationSet:
        """Return the examples of these clients that models are scored on while they train."""
        key = tuple(client_indices)
        if key not in self._score_sets:
            parts = [self.clients[index].scored.on(self.device) for index in key]
            is_kept = len(key) == len(self.clients)
            self._score_sets = {key: EvaluationSet(parts, is_kept)}
        return self._score_sets[key]

    def evaluate(self, vector: Tensor, buffers: Tensor, data: EvaluationSet) -> Scores:
        """Return the losses and accuracies of one model on each part of the data."""
        self.load(vector, buffers)
        self.module.eval()
        with torch.no_grad():
            sums = [
                data.sum_scores(self.module(self._inputs(data.x[rows]))[None], rows, self.criterion)
                for rows in data.slices(self.batch_size)
            ]
        losses, accuracies = data.mean_scores(sums)
        return losses[0], accuracies[0]

    def evaluate_many(
        self, models: Sequence[tuple[Tensor, Tensor]], data: EvaluationSet
    ) -> list[Scores]:
        """Evaluate several models, given as (vector, buffers), on one set."""
        return self.evaluate_jobs([EvaluationJob(models, data)])[0]

    def evaluate_jobs(self, jobs: Sequence[EvaluationJob]) -> list[list[Scores]]:
        """Do several jobs, whose results do not depend on each other; engines may share work."""
        return [
            [self.evaluate(vector, buffers, job.data) for vector, buffers in job.models]
            for job in jobs
        ]

    def evaluate_async(
        self, jobs: Sequence[EvaluationJob], training_follows: bool
    ) -> Callable[[], list[list[Scores]]]:
        """Return a function that waits for `evaluate_jobs` and returns its result.

        If training follows, an engine may defer the evaluation and do it on a core that becomes
        idle then. An exception is raised at the latest by the function that is returned.
        """
        scores = self.evaluate_jobs(jobs)
        return lambda: scores

    def evaluate_mixture(
        self,
        vectors: Tensor,
        shares: Tensor,
        buffers: Tensor,
        examples: Examples,
        offset: Tensor | None = None,
    ) -> tuple[float, float]:
        """Return loss and accuracy (0 to 1) of the mixture of several models' predictions.

        The shares of the models sum to 1; `offset` is as in `mix_predictions`.
        """
        outputs = self.mix_predictions(vectors, shares, buffers, examples, offset)
        if self.criterion.is_plain:
            loss = nn.functional.nll_loss(outputs, examples.y)
        else:
            loss = self.criterion.loss(outputs, examples.y).mean()
        return float(loss), float(self.criterion.mean_score(outputs, examples.y))

    def mix_predictions(
        self,
        vectors: Tensor,
        shares: Tensor,
        buffers: Tensor,
        examples: Examples,
        offset: Tensor | None = None,
    ) -> Tensor:
        """Return the log-probabilities [n, C], in float64, of the mixture of models.

        With an `offset` [C] added to its logits, if there is one. In regression, the mean of the
        models' outputs.
        """
        if self.criterion.is_regression:
            chosen = shares.nonzero().flatten().tolist()
            outputs = [
                float(shares[i]) * self.outputs(vectors[i], buffers, examples) for i in chosen
            ]
            return torch.stack(outputs).sum(dim=0)
        log_probabilities: Tensor | None = None
        for index in shares.nonzero().flatten().tolist():
            log_p = self.outputs(vectors[index], buffers, examples).log_softmax(dim=1)
            log_p = log_p + math.log(shares[index])
            log_probabilities = (
                log_p if log_probabilities is None else torch.logaddexp(log_probabilities, log_p)
            )
        assert log_probabilities is not None, "shares sum to 1"
        if offset is not None and offset.any():
            log_probabilities = (log_probabilities + offset.to(log_probabilities)).log_softmax(1)
        return log_probabilities

    def probabilities(self, vector: Tensor, buffers: Tensor, client_index: int) -> Tensor:
        """Return the softmax, in float64, of one model on one client's training examples."""
        return self.outputs(vector, buffers, self.train_data[client_index]).softmax(dim=1).cpu()

    def outputs(self, vector: Tensor, buffers: Tensor, examples: Examples) -> Tensor:
        """Return what one model gives for examples, in float64."""
        self.load(vector, buffers)
        self.module.eval()
        with torch.no_grad():
            batches = torch.split(examples.x, self.batch_size)
            logits = [self.module(self._inputs(x)) for x in batches]
        return torch.cat(logits).to(torch.float64)

    def _inputs(self, x: Tensor) -> Tensor:
        """Return a batch of features as the model takes it."""
        return to_inputs(x, self.module)

    def load(self, vector: Tensor, buffers: Tensor) -> None:
        """Write a model's parameters and buffers into the module."""
        load_model(self.module, vector.to(self.device), buffers.to(self.device))


class ForkPoolEngine(Engine):
    """An engine that cuts training into tasks and uses a `ForkPool` for them where that pays."""

    def _prepare(self) -> None:
        super()._prepare()
        self.pool = ForkPool(self._run_task, self.workers)
        weakref.finalize(self, self.pool.stop)

    @abstractmethod
    def _run_task(self, task: Any, tables: Tables) -> None:
        """Do one task and write its results into the tables."""

    def _map(
        self, tasks: Sequence[Any], shapes: Shapes, share: bool, costs: Sequence[float] = ()
    ) -> Tables:
        """Do all tasks, in the pool if `share`; else here and into tables on the device."""
        if share and self.workers > 1:
            return self.pool.map(tasks, shapes, costs)
        return run_alone(self._run_task, tasks, shapes, self.device)

    def close(self) -> None:
        self.pool.stop()


class EvaluationSet:
    """Several data sets end to end, so that one forward pass serves all.

    `is_kept` says that it is used in many rounds, so that engines may keep what they prepare.
    """

    def __init__(self, parts: Sequence[Examples], is_kept: bool = False) -> None:
        self.n_parts, self.is_kept = len(parts), is_kept
        examples = Examples.concatenate(parts)
        self.x, self.y, self.group = examples.x, examples.y, examples.group
        sizes = torch.tensor([len(part) for part in parts])
        self.part = torch.repeat_interleave(torch.arange(len(parts)), sizes).to(self.x.device)
        self.sizes = sizes.to(self.x.device, torch.float64)

    def __len__(self) -> int:
        return len(self.y)

    def slices(self, size: int) -> list[slice]:
        """Return all examples as slices of this size."""
        return [slice(start, start + size) for start in range(0, len(self), size)]

    def sum_scores(
        self, outputs: Tensor, rows: slice, criterion: Criterion = CROSS_ENTROPY
    ) -> Tensor:
        """Return sums of losses and of right answers in each part, [2, S, parts].

        `outputs` [S, rows, ...] are those of S models on these rows. In regression, squared errors
        are in place of right answers.
        """
        n_models, y = len(outputs), self.y[rows].repeat(len(outputs))
        flat = outputs.flatten(0, 1)
        losses = criterion.loss(flat, y)
        columns = torch.stack([losses, criterion.goodness(flat, y).to(losses)])
        scores = columns.view(2, n_models, -1).to(torch.float64)
        return scores.new_zeros(2, n_models, self.n_parts).index_add_(2, self.part[rows], scores)

    def mean_scores(self, sums: Sequence[Tensor]) -> Scores:
        """Return losses and accuracies [S, parts] from the sums of all slices, in their order."""
        losses, accuracies = functools.reduce(torch.add, sums) / self.sizes
        if self.y.is_floating_point():
            accuracies = explained_variance(accuracies, self._spreads)
        return losses.cpu(), accuracies.cpu()

    @functools.cached_property
    def _spreads(self) -> Tensor:
        """The variance of the labels of each part, where labels are numbers."""
        sizes = [int(size) for size in self.sizes.tolist()]
        return torch.stack([spread(y) for y in torch.split(self.y, sizes)])


@dataclass(frozen=True)
class EvaluationJob:
    """Evaluation of some models, given as (vector, buffers), on one set."""

    models: Sequence[tuple[Tensor, Tensor]]
    data: EvaluationSet


def load_model(network: nn.Module, vector: Tensor, buffers: Tensor) -> None:
    """Write a vector of parameters and one of buffers into a network."""
    from_vector(network, vector)
    buffers_from_vector(network, buffers)


@contextlib.contextmanager
def seeded_generator(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch's global generator of the device within the block, and restore it afterwards."""
    if device.type != "cpu":
        with torch.random.fork_rng(devices=[device], device_type=device.type):
            torch.manual_seed(seed)
            yield
        return
    # Not by torch.manual_seed, which sets the generators of GPUs as well.
    state = torch.default_generator.get_state()
    torch.default_generator.manual_seed(seed)
    try:
        yield
    finally:
        torch.default_generator.set_state(state)


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Run torch on one thread: models here gain nothing from two, and sums keep one order."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
