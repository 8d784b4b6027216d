"""Uncertainty after a fixed number of epochs of training alone, on the examples trained on.

    paper        mean over examples of -sum_c p_c ln p_c (Carey & Wu, FAccT 2025, section
                 "Uncertainty Quantification"; the paper's equation drops the minus sign)
    confidence   mean over examples of 1 - max_c p_c
    ensemble     K models with different initial values and batches. The entropy of their mean
                 prediction splits into
                 aleatoric  = mean entropy of the models' predictions (conditional entropy; used
                              as the uncertainty)
                 epistemic  = the rest (mutual information between label and model)

All three depend on the number of epochs: after few of them every client looks uncertain, after many
the model has memorised its labels and no client does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from udjfl.data import Federation
from udjfl.engine import Engine, LocalTraining, TrainJob
from udjfl.models import ModelChoice, buffers_to_vector, build, to_vector
from udjfl.settings import TrainingSettings
from udjfl.tasks import Task
from udjfl.uncertainty.values import Uncertainty, mean_uncertainty

DEFAULT_EPOCHS = 30


def task_of(federation: Federation, settings: TrainingSettings) -> Task:
    """Return what models of this federation predict."""
    numbers = federation.labels_are_numbers
    return Task.of(settings.task, settings.loss, federation.n_classes, numbers, settings.score)


def entropy(probabilities: Tensor) -> Tensor:
    """Return -sum_c p_c ln p_c over the last axis, with 0 ln 0 = 0."""
    terms: Tensor = torch.special.entr(probabilities)
    return terms.sum(dim=-1)


def decompose(probabilities: Tensor) -> tuple[Tensor, Tensor]:
    """Split the predictions [models, examples, classes] of an ensemble, example by example.

    Return the aleatoric and the epistemic part.
    """
    aleatoric = entropy(probabilities).mean(dim=0)
    epistemic = entropy(probabilities.mean(dim=0)) - aleatoric
    return aleatoric, epistemic.clamp_min(0)  # below zero it is rounding


def measure_alone(
    federation: Federation,
    engine: Engine,
    settings: TrainingSettings,
    seed: int,
    model: ModelChoice | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Uncertainty:
    """Train every client alone, and measure how unsure its model is of what it trained on.

    `progress(done, total)` counts the models of an ensemble.
    """
    n_models = settings.uncertainty_models if settings.uncertainty == "ensemble" else 1
    predictions: list[list[Tensor]] = [[] for _ in federation.clients]
    for number in range(n_models):
        models = train_alone(federation, engine, settings, seed, model, number)
        for index, (vector, buffers) in enumerate(models):
            predictions[index].append(engine.probabilities(vector, buffers, index))
        if progress:
            progress(number + 1, n_models)
    stacked = [torch.stack(own) for own in predictions]
    return _summarise(settings.uncertainty, federation.ids, stacked)


def train_alone(
    federation: Federation,
    engine: Engine,
    settings: TrainingSettings,
    seed: int,
    model: ModelChoice | None = None,
    number: int = 0,
) -> list[tuple[Tensor, Tensor]]:
    """Train each client on its own data only; return each model's parameters and buffers.

    `number` counts the models of an ensemble.
    """
    training = LocalTraining(
        settings.uncertainty_lr,
        settings.momentum,
        settings.batch_size,
        settings.uncertainty_epochs or DEFAULT_EPOCHS,
        optimiser=settings.uncertainty_optimiser,
    )
    task = task_of(federation, settings)
    module = build(
        model or settings.model,
        federation.input_shape,
        task.n_outputs,
        seed,
        hidden=settings.hidden,
        weight_norm=settings.weight_norm,
        purpose=f"alone {number}",
        one_logit=task.one_logit,
    )
    start = to_vector(module)
    indices = range(len(federation.clients))
    address = (seed, "alone", number)
    result = engine.train(TrainJob(start, buffers_to_vector(module), indices, training, address))
    start = start.to(result.deltas.device)
    return [(start - result.deltas[i], result.buffers[i]) for i in indices]


def entropies(
    federation: Federation, engine: Engine, trained: Sequence[tuple[Tensor, Tensor]]
) -> dict[str, float]:
    """Return the mean softmax entropy of each client's own model on its training data."""
    predictions = [
        engine.probabilities(vector, buffers, index)[None]
        for index, (vector, buffers) in enumerate(trained)
    ]
    return _summarise("paper", federation.ids, predictions).values


def _summarise(kind: str, ids: tuple[str, ...], predictions: list[Tensor]) -> Uncertainty:
    """Average over the examples of each client; predictions are [models, examples, classes]."""
    by_client = dict(zip(ids, predictions, strict=True))
    if kind == "confidence":
        values = {name: mean_uncertainty(1 - p[0].amax(dim=1)) for name, p in by_client.items()}
        return Uncertainty(kind, values)
    if kind == "paper":
        values = {name: mean_uncertainty(entropy(p[0])) for name, p in by_client.items()}
        return Uncertainty(kind, values)
    parts = {name: decompose(p) for name, p in by_client.items()}
    return Uncertainty(
        kind,
        values={name: mean_uncertainty(aleatoric) for name, (aleatoric, _) in parts.items()},
        epistemic={name: float(epistemic.mean()) for name, (_, epistemic) in parts.items()},
    )
