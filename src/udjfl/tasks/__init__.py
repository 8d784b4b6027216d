"""Tasks: classes, two classes with one logit, or numbers; what is minimised, what is judged."""

from udjfl.tasks.criterion import (
    CROSS_ENTROPY,
    Criterion,
    TaskName,
    check_loss,
    explained_variance,
    make_criterion,
    spread,
)
from udjfl.tasks.losses import LOSSES, LossFunction, prediction, variance
from udjfl.tasks.scores import (
    ACCURACY,
    R2,
    SCORES,
    Score,
    ScoreKind,
    as_predictions,
    wilson_interval,
)
from udjfl.tasks.task import Task

__all__ = [
    "ACCURACY",
    "CROSS_ENTROPY",
    "LOSSES",
    "R2",
    "SCORES",
    "Criterion",
    "LossFunction",
    "Score",
    "ScoreKind",
    "Task",
    "TaskName",
    "as_predictions",
    "check_loss",
    "explained_variance",
    "make_criterion",
    "prediction",
    "spread",
    "variance",
    "wilson_interval",
]
