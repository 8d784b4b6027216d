"""Demands of a run's settings on the engine, beside the model: the loss, and how clients train."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from udjfl.engine.base import ClassWeights
from udjfl.settings import TrainingSettings
from udjfl.tasks import CROSS_ENTROPY, Criterion


@dataclass(frozen=True)
class Demands:
    """Abilities that an engine must have.

    criterion     how outputs are measured
    general_only  reasons why only the serial engine, with torch's own optimisers, can do it
    """

    criterion: Criterion = CROSS_ENTROPY
    general_only: tuple[str, ...] = ()

    @property
    def stacking_reasons(self) -> tuple[str, ...]:
        """Reasons why clients cannot be stacked."""
        loss = f"the loss is {self.criterion.name}"
        return (*(() if self.criterion.is_plain else (loss,)), *self.general_only)

    @staticmethod
    def of(settings: TrainingSettings, criterion: Criterion = CROSS_ENTROPY) -> Demands:
        """Return the demands of local training with these settings."""
        reasons = {
            "the optimiser is adamw": settings.optimiser == "adamw",
            "momentum is Nesterov's": settings.nesterov,
            "weights decay": settings.weight_decay > 0,
            "gradients are clipped": settings.clip_norm > 0,
            "classes are weighted": settings.class_weights != "none",
            "rounds have a number of local steps": settings.local_steps > 0,
        }
        return Demands(criterion, tuple(reason for reason, holds in reasons.items() if holds))


def training_options(settings: TrainingSettings) -> dict[str, Any]:
    """Return the fields of `LocalTraining` that go beyond plain SGD, as the settings have them."""
    weights: ClassWeights = "none"
    if settings.class_weights == "balanced":
        weights = "balanced"
    elif settings.class_weights != "none":
        weights = tuple(float(part) for part in settings.class_weights.split(","))
    return {
        "optimiser": settings.optimiser,
        "nesterov": settings.nesterov,
        "weight_decay": settings.weight_decay,
        "clip_norm": settings.clip_norm,
        "class_weights": weights,
        "steps": settings.local_steps,
    }
