"""Tasks: classes, two classes with one logit, or numbers; what is minimised, what is judged."""

from udjfl.tasks.criterion import (
    CROSS_ENTROPY,
    Criterion,
    TaskName,
    check_loss,
    explained,
    make_criterion,
    spread,
)
from udjfl.tasks.losses import LOSSES, LossFunction, prediction, variance
from udjfl.tasks.task import Task

__all__ = [
    "CROSS_ENTROPY",
    "LOSSES",
    "Criterion",
    "LossFunction",
    "Task",
    "TaskName",
    "check_loss",
    "explained",
    "make_criterion",
    "prediction",
    "spread",
    "variance",
]
