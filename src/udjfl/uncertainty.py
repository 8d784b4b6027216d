"""A client's aleatoric uncertainty: a property of its data, measured once before training, in nats.

Each client trains a model on its own training data alone; the uncertainty is how unsure that model
is, averaged over those same data (Carey & Wu, FAccT 2025, section "Uncertainty Quantification").

    entropy      mean over examples of -sum_c p_c ln p_c     (the paper's choice; its equation
                 drops the minus sign)
    confidence   mean over examples of 1 - max_c p_c
    ensemble     K models with different initial values and batches. The entropy of their mean
                 prediction splits into
                 aleatoric  = mean entropy of the models' predictions (conditional entropy; used
                              as the uncertainty)
                 epistemic  = the rest (mutual information between label and model)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from udjfl.data import Federation
from udjfl.engine import Engine, LocalTraining
from udjfl.errors import ReportError
from udjfl.models import ModelChoice, buffers_to_vector, build, to_vector
from udjfl.settings import TrainingSettings

# A model can be certain to the last bit, as for a client with one class: its uncertainty is small,
# not zero.
SMALLEST = 1e-12


@dataclass(frozen=True)
class Uncertainty:
    """One number per client, in client order, and how it was measured; NaN where it failed."""

    kind: str
    values: dict[str, float]
    epistemic: dict[str, float] | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, with null in place of NaN."""
        return {
            "kind": self.kind,
            "values": without_nan(self.values),
            "epistemic": without_nan(self.epistemic),
        }

    @staticmethod
    def from_dict(kept: Mapping[str, Any]) -> Uncertainty:
        def numbers(column: Mapping[str, float | None]) -> dict[str, float]:
            return {
                name: math.nan if value is None else float(value) for name, value in column.items()
            }

        epistemic = kept.get("epistemic")
        return Uncertainty(
            kept["kind"], numbers(kept["values"]), None if epistemic is None else numbers(epistemic)
        )


def without_nan(values: Mapping[str, float] | None) -> dict[str, float | None] | None:
    """Replace numbers that are not finite by None."""
    return (
        None
        if values is None
        else {name: value if math.isfinite(value) else None for name, value in values.items()}
    )


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


def measure(
    federation: Federation,
    engine: Engine,
    settings: TrainingSettings,
    seed: int,
    model: ModelChoice | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Uncertainty:
    """Train every client alone, and measure how unsure its model is.

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
    uncertainty = _summarise(settings.uncertainty, federation.ids, stacked)
    failed = [name for name, value in uncertainty.values.items() if not math.isfinite(value)]
    if failed and settings.on_bad_report == "fail":
        problem = (
            "could not be measured: training alone diverged; check its data, or try a smaller "
            "uncertainty_lr"
        )
        raise ReportError(failed[0], "uncertainties", problem)
    return uncertainty


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
        settings.uncertainty_epochs,
        optimiser=settings.uncertainty_optimiser,
    )
    module = build(
        model or settings.model,
        federation.input_shape,
        federation.n_classes,
        seed,
        hidden=settings.hidden,
        weight_norm=settings.weight_norm,
        purpose=f"alone {number}",
    )
    start = to_vector(module)
    indices = range(len(federation.clients))
    address = (seed, "alone", number)
    result = engine.train(start, buffers_to_vector(module), indices, training, address)
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
    return _summarise("entropy", federation.ids, predictions).values


def _summarise(kind: str, ids: tuple[str, ...], predictions: list[Tensor]) -> Uncertainty:
    """Average over the examples of each client; predictions are [models, examples, classes]."""
    by_client = dict(zip(ids, predictions, strict=True))
    if kind == "confidence":
        values = {name: _mean(1 - p[0].amax(dim=1)) for name, p in by_client.items()}
        return Uncertainty(kind, values)
    if kind == "entropy":
        return Uncertainty(kind, {name: _mean(entropy(p[0])) for name, p in by_client.items()})
    parts = {name: decompose(p) for name, p in by_client.items()}
    return Uncertainty(
        kind,
        values={name: _mean(aleatoric) for name, (aleatoric, _) in parts.items()},
        epistemic={name: float(epistemic.mean()) for name, (_, epistemic) in parts.items()},
    )


def _mean(values: Tensor) -> float:
    """Return the mean, but not less than the smallest uncertainty; NaN stays NaN."""
    mean = float(values.mean())
    return SMALLEST if mean < SMALLEST else mean
