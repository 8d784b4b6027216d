"""Uncertainty by cross-fitting: how surprised models are by labels, seen and not seen before.

Each client's train part is cut into folds, and for each fold a model is trained on the others. It
trains in blocks of epochs. After each block a temperature, one per client, is fitted on the
held-out examples of all its folds (`calibration`), and the models of the block with the lowest
held-out log loss are kept. Then

    out_e   log loss of example e under the model that did not see it
    in_e    mean log loss of e under the models that did
    u_i     mean over the examples of (out_e + in_e) / 2, in nats

Why the middle: the label entropy given the features, H, is what a perfect model would lose. A
fitted model loses more than H on examples it has not seen, as it is not perfect, and less than H on
those it has, as it fits their labels. To first order both differences are equal, p/2n for p
parameters and n examples (Akaike, "Information theory and an extension of the maximum likelihood
principle", 1973; Efron, "How biased is the apparent error rate of a prediction rule?", 1986), and
their mean is H. That holds for a model which can fit the data; if it cannot learn them from so few
examples, as pixels from a few hundred, even seen examples cost it more than H, and u is too high.

The data choose the number of epochs, so the measure hardly depends on how clients train.
`experiments/UNCERTAINTY.md` compares it with the others where H is known.

For a regression the losses are squared errors, and u_i estimates the variance of the noise in the
labels: to first order a linear model with p parameters has an error of s^2 (1 - p/n) on examples it
has seen and of s^2 (1 + p/n) on others, and their mean is s^2 (Efron, 1986). It is the entropy
power exp(2 h) / (2 pi e) of Gaussian noise of entropy h, positive and rising with h, where h itself
may be negative (`docs/tasks.md`). There is no temperature.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor, nn

from udjfl.data.federation import Client, Examples
from udjfl.engine import Engine, LocalTraining, TrainJob
from udjfl.models import ModelChoice, buffers_to_vector, build, to_vector
from udjfl.settings import TrainingSettings
from udjfl.tasks import Task, prediction, spread
from udjfl.uncertainty.calibration import fit_temperature, log_losses
from udjfl.uncertainty.folds import Fold, make_folds

DEFAULT_EPOCHS = 100
# A block is this much longer than all before it, so that late blocks, which change less, are few.
BLOCK_GROWTH = 1.35
# A client's training ends when so many blocks have not lowered its held-out loss by so much, but
# not in the first steps, which may do little.
PATIENCE, LEAST_GAIN, FIRST_STEPS = 3, 0.002, 50
SMALLEST_PROBABILITY = 1e-300


# Makes an engine for a model and clients, where and with as many workers as the caller likes.
EngineMaker = Callable[[nn.Module, Sequence[Client]], Engine]


@dataclass(frozen=True)
class SeededClients:
    """The clients of one federation, and the seed they are measured with."""

    clients: Sequence[Client]
    seed: int


@dataclass(frozen=True)
class CrossFit:
    """The predictions for one client's n train examples.

    labels       [n]
    held_out     [n, C] log-probabilities by models that did not see the example; in a regression
                 their predictions [n, 1], and all losses are squared errors
    out_losses   [n] log losses of those, at the temperature
    in_losses    [n] mean log losses by the models that saw the example, at the temperature
    temperature  fitted on the held-out examples
    epochs       of training, where the held-out loss was best; 0: training only made it worse

    All losses are NaN if training diverged from the start.
    """

    labels: Tensor
    held_out: Tensor
    out_losses: Tensor
    in_losses: Tensor
    temperature: float
    epochs: int

    @property
    def values(self) -> Tensor:
        """The uncertainty of each example, [n]; their mean is the client's."""
        return (self.out_losses + self.in_losses) / 2


def cross_fit(
    measured: Sequence[SeededClients],
    settings: TrainingSettings,
    model: ModelChoice,
    task: Task,
    make_engine: EngineMaker,
    progress: Callable[[int, int], None] | None = None,
) -> list[list[CrossFit]]:
    """Cross-fit every client of several federations; all their models train in one engine.

    `progress(done, total)` counts the blocks of epochs.
    """
    searches, models = _prepare(measured, settings, model, task, make_engine)
    try:
        blocks = block_lengths(settings.uncertainty_epochs or DEFAULT_EPOCHS)
        for search in searches:
            search.consider(models, epochs=0)
        for number, length in enumerate(blocks):
            active = [search for search in searches if not search.is_over]
            if active:
                models.train([row for search in active for row in search.rows], length, number)
            for search in active:
                search.consider(models, sum(blocks[: number + 1]))
            if progress:
                progress(number + 1, len(blocks))
        results = iter([search.finish(models) for search in searches])
    finally:
        models.engine.close()
    return [[next(results) for _ in one.clients] for one in measured]


def block_lengths(epochs: int) -> list[int]:
    """Return the lengths of the blocks, which sum to `epochs`."""
    ends = [0]
    while ends[-1] < epochs:
        ends.append(min(epochs, max(ends[-1] + 1, round(ends[-1] * BLOCK_GROWTH))))
    return [end - start for start, end in pairwise(ends)]


def _prepare(
    measured: Sequence[SeededClients],
    settings: TrainingSettings,
    model: ModelChoice,
    task: Task,
    make_engine: EngineMaker,
) -> tuple[list[_Search], _FoldModels]:
    """Make the folds, and one engine whose clients are all folds, then all held-out parts."""
    parts: list[Client] = []
    folds_of_parts: list[Fold] = []
    searches, vectors, buffers, seeds = [], [], [], []
    for one in measured:
        module = _build(model, one, task, settings)
        for client in one.clients:
            folds = make_folds(client, settings.uncertainty_folds, settings.batch_size, one.seed)
            searches.append(_Search(client, folds, len(parts), task, settings))
            parts += [replace(client, id=f"{client.id} fold {i}") for i in range(len(folds))]
            folds_of_parts += folds
            vectors += [to_vector(module)] * len(folds)
            buffers += [buffers_to_vector(module)] * len(folds)
            seeds += [one.seed] * len(folds)
    engine = make_engine(module, _take_folds(parts, folds_of_parts))
    training = LocalTraining(
        settings.uncertainty_lr,
        settings.momentum,
        settings.batch_size,
        epochs=1,
        loss_at="running",
        optimiser=settings.uncertainty_optimiser,
    )
    starts = torch.stack(vectors).to(engine.device), torch.stack(buffers)
    return searches, _FoldModels(engine, training, seeds, *starts)


def _take_folds(parts: Sequence[Client], folds: Sequence[Fold]) -> list[Client]:
    """Return clients with the train examples of each fold, then clients with the held-out ones.

    The data of clients on disk stay there.
    """
    pairs = list(zip(parts, folds, strict=True))
    examples = Examples.take_many(
        [
            *((part.train, fold.train) for part, fold in pairs),
            *((part.train, fold.held_out) for part, fold in pairs),
        ],
        parts[0].folder,
    )
    return [replace(p, train=own) for p, own in zip([*parts, *parts], examples, strict=True)]


def _build(
    model: ModelChoice, one: SeededClients, task: Task, settings: TrainingSettings
) -> nn.Module:
    return build(
        model,
        tuple(one.clients[0].train.x.shape[1:]),
        task.n_outputs,
        one.seed,
        hidden=settings.hidden,
        weight_norm=settings.weight_norm,
        purpose="folds",
        one_logit=task.one_logit,
    )


class _FoldModels:
    """One model for each fold of each client; row i trains on the engine's client i.

    Client `len(seeds) + i` of the engine has the examples held out of model i.
    """

    def __init__(
        self,
        engine: Engine,
        training: LocalTraining,
        seeds: list[int],
        vectors: Tensor,
        buffers: Tensor,
    ) -> None:
        self.engine, self.training, self.seeds = engine, training, seeds
        self.vectors, self.buffers = vectors, buffers

    def train(self, rows: list[int], epochs: int, block: int) -> None:
        """Train some of the models for one block; the optimiser starts anew."""
        work = replace(self.training, epochs=epochs)
        jobs = [
            TrainJob(self.vectors[part], self.buffers[part[0]], part, work, address)
            for part in self._rows_by_job(rows)
            for address in [(self.seeds[part[0]], "folds", block)]
        ]
        for job, result in zip(jobs, self.engine.train_many(jobs), strict=True):
            self.vectors[job.client_indices] -= result.deltas
            self.buffers[job.client_indices] = result.buffers.to(self.buffers)

    def _rows_by_job(self, rows: list[int]) -> list[list[int]]:
        """Split rows by seed; a job has one set of buffers, so models with buffers are alone."""
        if self.buffers.shape[1]:
            return [[row] for row in rows]
        seeds = sorted({self.seeds[row] for row in rows})
        return [[row for row in rows if self.seeds[row] == seed] for seed in seeds]

    def predict(self, vector: Tensor, buffers: Tensor, client_index: int) -> Tensor:
        """Return the log-probabilities of a model on the examples of one of the engine's clients.

        In a regression, its predictions [n, 1]. They are float64 on the CPU.
        """
        if self.engine.criterion.is_regression:
            examples = self.engine.train_data[client_index]
            return prediction(self.engine.outputs(vector, buffers, examples))[:, None].cpu()
        probabilities = self.engine.probabilities(vector, buffers, client_index)
        return probabilities.clamp_min(SMALLEST_PROBABILITY).log()


class _Search:
    """The search for the number of epochs with the best held-out loss of one client.

    `is_over` says that longer training is not worth it.
    """

    def __init__(
        self,
        client: Client,
        folds: list[Fold],
        first_row: int,
        task: Task,
        settings: TrainingSettings,
    ) -> None:
        self.labels, self.folds = client.train.y.cpu(), folds
        self.is_regression = task.criterion.is_regression
        # Losses that decide when to stop are relative to the labels' variance.
        self.scale = float(spread(self.labels)) if self.is_regression else 1.0
        self.rows = list(range(first_row, first_row + len(folds)))
        self.task = task
        self.steps_per_epoch = math.ceil(len(folds[0].train) / settings.batch_size)
        self.is_over = self.has_diverged = False
        self.loss, self.epochs, self.idle_blocks = math.inf, 0, 0

    def consider(self, models: _FoldModels, epochs: int) -> None:
        """Evaluate the models after so many epochs, and keep them if they are the best so far."""
        log_p = self._held_out(models)
        temperature = 1.0 if self.is_regression else fit_temperature(log_p, self.labels)
        loss = float(self._losses(log_p, self.labels, temperature).mean()) / self.scale
        if not math.isfinite(loss):
            self.is_over = self.has_diverged = True
            return
        self.idle_blocks = 0 if loss < self.loss - LEAST_GAIN else self.idle_blocks + 1
        if loss < self.loss:
            self.loss, self.epochs = loss, epochs
            self.log_p, self.temperature = log_p, temperature
            self.vectors = models.vectors[self.rows]
            self.buffers = models.buffers[self.rows]
        is_trained = epochs * self.steps_per_epoch >= FIRST_STEPS
        self.is_over = is_trained and self.idle_blocks >= PATIENCE

    def _losses(self, predicted: Tensor, labels: Tensor, temperature: float) -> Tensor:
        """Return log losses or, for a regression, squared errors."""
        if self.is_regression:
            return (predicted[:, 0] - labels.to(torch.float64)).square()
        return log_losses(predicted, labels, temperature)

    def _held_out(self, models: _FoldModels) -> Tensor:
        n_columns = 1 if self.is_regression else self.task.n_outputs
        log_p = torch.empty(len(self.labels), n_columns, dtype=torch.float64)
        n_models = len(models.seeds)
        for row, fold in zip(self.rows, self.folds, strict=True):
            vector, buffers = models.vectors[row], models.buffers[row]
            log_p[torch.from_numpy(fold.held_out)] = models.predict(vector, buffers, n_models + row)
        return log_p

    def finish(self, models: _FoldModels) -> CrossFit:
        """Return the predictions of the best models."""
        if not math.isfinite(self.loss) or (self.has_diverged and self.epochs == 0):
            nothing = torch.full((len(self.labels),), math.nan, dtype=torch.float64)
            columns = torch.full((len(nothing), self.task.n_outputs), math.nan, dtype=torch.float64)
            return CrossFit(self.labels, columns, nothing, nothing, math.nan, 0)
        out_losses = self._losses(self.log_p, self.labels, self.temperature)
        in_losses = self._in_losses(models, out_losses)
        return CrossFit(
            self.labels, self.log_p, out_losses, in_losses, self.temperature, self.epochs
        )

    def _in_losses(self, models: _FoldModels, out_losses: Tensor) -> Tensor:
        """Return each example's mean loss over the models that saw it."""
        sums, counts = torch.zeros_like(out_losses), torch.zeros_like(out_losses)
        for number, (row, fold) in enumerate(zip(self.rows, self.folds, strict=True)):
            seen = torch.from_numpy(fold.train)
            log_p = models.predict(self.vectors[number], self.buffers[number], row)
            sums[seen] += self._losses(log_p, self.labels[seen], self.temperature)
            counts[seen] += 1
        # With two folds, an example that was left out of a batch of its own was seen by no model.
        return torch.where(counts > 0, sums / counts.clamp_min(1), out_losses)
