"""A client's aleatoric uncertainty: a property of its data, measured once before training, in nats.

Each client trains a model on its own training data alone; the uncertainty is what that model is unsure of, averaged over
those same data (Carey & Wu, FAccT 2025, section "Uncertainty Quantification").

    entropy      mean over examples of -sum_c p_c ln p_c            (the paper's choice; its equation drops the minus sign)
    confidence   mean over examples of 1 - max_c p_c
    ensemble     K models with different initial values and batches. The entropy of their mean prediction splits into
                 aleatoric  = mean entropy of the models' predictions   (conditional entropy; used as the uncertainty)
                 epistemic  = the rest                                  (mutual information between label and model)
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

# A model can be certain to the last bit (a client with one class, say); its uncertainty is small, not zero.
SMALLEST = 1e-12


@dataclass(frozen=True)
class Uncertainty:
    """One number per client, in client order, and how it was measured. NaN where it could not be."""

    kind: str
    values: dict[str, float]
    epistemic: dict[str, float] | None = None

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON, which has null in place of NaN."""
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
    """None in place of what is not a finite number."""
    return (
        None
        if values is None
        else {name: value if math.isfinite(value) else None for name, value in values.items()}
    )


def entropy(probabilities: Tensor) -> Tensor:
    """-sum_c p_c ln p_c over the last axis, with 0 ln 0 = 0."""
    terms: Tensor = torch.special.entr(probabilities)
    return terms.sum(dim=-1)


def decompose(probabilities: Tensor) -> tuple[Tensor, Tensor]:
    """Aleatoric and epistemic part for each example, from the predictions [models, examples, classes] of an ensemble."""
    aleatoric = entropy(probabilities).mean(dim=0)
    return aleatoric, (entropy(probabilities.mean(dim=0)) - aleatoric).clamp_min(
        0
    )  # below zero it is rounding


def measure(
    federation: Federation,
    engine: Engine,
    settings: TrainingSettings,
    seed: int,
    model: ModelChoice | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Uncertainty:
    """Train every client alone and measure what its model is unsure of. `progress(done, total)` counts models per client."""
    n_models = settings.uncertainty_models if settings.uncertainty == "ensemble" else 1
    rows = range(len(federation.clients))
    predictions: list[list[Tensor]] = [[] for _ in rows]
    for number in range(n_models):
        for row, (vector, buffers) in enumerate(
            train_alone(federation, engine, settings, seed, model, number)
        ):
            predictions[row].append(engine.probabilities(vector, buffers, row))
        if progress:
            progress(number + 1, n_models)
    return _checked(
        _summarised(settings.uncertainty, federation.ids, [torch.stack(p) for p in predictions]),
        settings,
    )


def train_alone(
    federation: Federation,
    engine: Engine,
    settings: TrainingSettings,
    seed: int,
    model: ModelChoice | None = None,
    number: int = 0,
) -> list[tuple[Tensor, Tensor]]:
    """For each client the numbers and buffers of a model that it trained on its own data only; `number` of an ensemble."""
    work = LocalTraining(
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
    rows = range(len(federation.clients))
    result = engine.train(start, buffers_to_vector(module), rows, work, (seed, "alone", number))
    return [
        (start.to(result.deltas.device) - result.deltas[row], result.buffers[row]) for row in rows
    ]


def entropies(
    federation: Federation, engine: Engine, trained: Sequence[tuple[Tensor, Tensor]]
) -> dict[str, float]:
    """The mean softmax entropy over each client's train part, at its own model."""
    each = [
        engine.probabilities(vector, buffers, row)[None]
        for row, (vector, buffers) in enumerate(trained)
    ]
    return _summarised("entropy", federation.ids, each).values


def _checked(measured: Uncertainty, settings: TrainingSettings) -> Uncertainty:
    """Refuse what could not be measured, unless such clients are to be left out."""
    unknown = [name for name, value in measured.values.items() if not math.isfinite(value)]
    if unknown and settings.on_bad_report == "fail":
        problem = "could not be measured: training alone diverged; check its data, or try a smaller uncertainty_lr"
        raise ReportError(unknown[0], "uncertainties", problem)
    return measured


def _summarised(kind: str, ids: tuple[str, ...], predictions: list[Tensor]) -> Uncertainty:
    if kind == "confidence":
        return Uncertainty(
            kind,
            {i: _positive(1 - p[0].amax(dim=1)) for i, p in zip(ids, predictions, strict=True)},
        )
    if kind == "entropy":
        return Uncertainty(
            kind, {i: _positive(entropy(p[0])) for i, p in zip(ids, predictions, strict=True)}
        )
    parts = {i: decompose(p) for i, p in zip(ids, predictions, strict=True)}
    return Uncertainty(
        kind,
        values={i: _positive(aleatoric) for i, (aleatoric, _) in parts.items()},
        epistemic={i: float(epistemic.mean()) for i, (_, epistemic) in parts.items()},
    )


def _positive(each: Tensor) -> float:
    """The mean, not below the smallest; NaN stays NaN."""
    mean = float(each.mean())
    return SMALLEST if mean < SMALLEST else mean
