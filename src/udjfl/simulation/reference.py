"""References of methods with a budget: FedAvg's scores by round, and scores of clients alone."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from udjfl.data import Federation
from udjfl.engine import Engine
from udjfl.models import ModelChoice
from udjfl.settings import TrainingSettings
from udjfl.uncertainty import train_alone


def unknown_scores(ids: Sequence[str]) -> Tensor:
    """Return a table of scores for one round in which nothing is known yet."""
    return torch.full((1, len(ids)), float("nan"), dtype=torch.float64)


def scores_alone(
    federation: Federation,
    engine: Engine,
    settings: TrainingSettings,
    seed: int,
    model: ModelChoice | None,
) -> Tensor:
    """Return the accuracy of each client's own model, trained alone, on its held-out data."""
    models = train_alone(federation, engine, settings, seed, model)
    scores = [
        engine.evaluate(vector, buffers, engine.score_set([index]))[1]
        for index, (vector, buffers) in enumerate(models)
    ]
    return torch.cat(scores).to(torch.float64)
