"""What methods with a budget are measured from: FedAvg's scores by round, and clients alone."""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch
from torch import Tensor

from udjfl.data import Federation
from udjfl.engine import Engine
from udjfl.models import ModelChoice
from udjfl.settings import TrainingSettings
from udjfl.training.lifecycle import scores_by_round
from udjfl.training.records import History
from udjfl.training.result import Result
from udjfl.training.run_folder import RunFolder
from udjfl.uncertainty import train_alone


def unknown_scores(ids: Sequence[str]) -> Tensor:
    """Return a table of scores for one round in which nothing is known yet."""
    return torch.full((1, len(ids)), float("nan"), dtype=torch.float64)


def reference_scores(
    reference: Result | str | os.PathLike[str] | None, ids: Sequence[str]
) -> Tensor | None:
    """Return the scores by round of a reference run; None if it has none."""
    if reference is None:
        return None
    if isinstance(reference, Result):
        return scores_by_round(reference.history, ids)
    return scores_by_round(History(list(RunFolder.open(reference).read_records())), ids)


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
