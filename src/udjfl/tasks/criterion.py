"""The measure of a model's outputs on examples: a loss, and whether predictions are right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from udjfl.errors import SettingsError
from udjfl.tasks.losses import CLASS_LOSSES, LOSSES, LossFunction, cross_entropy, prediction

TaskName = Literal["classification", "binary", "regression"]


@dataclass(frozen=True)
class Criterion:
    """A measure of the outputs of a model.

    name           of the loss
    loss           one value per example
    is_regression  labels are numbers, not classes
    """

    name: str = "cross-entropy"
    loss: LossFunction = cross_entropy
    is_regression: bool = False

    @property
    def is_plain(self) -> bool:
        """True for the cross-entropy of classes, which every engine has written out."""
        return self.loss is cross_entropy

    def goodness(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return 1 for each right class, else 0; for regression the squared errors."""
        if self.is_regression:
            return (prediction(outputs) - labels).square()
        return outputs.argmax(dim=1) == labels

    def mean_score(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return the share of right classes, or R^2, of all examples together, in float64."""
        mean = self.goodness(outputs, labels).to(torch.float64).mean()
        return explained_variance(mean, spread(labels)) if self.is_regression else mean


CROSS_ENTROPY = Criterion()


def spread(labels: Tensor) -> Tensor:
    """Return the variance of labels in float64; 1 if they are all the same."""
    value = labels.to(torch.float64).var(correction=0)
    return torch.where(value > 0, value, torch.ones_like(value))


def explained_variance(squared_error: Tensor, variance: Tensor) -> Tensor:
    """Return R^2 = 1 - mean squared error / variance of the labels.

    1 means exact predictions, 0 no better than the labels' mean; it can be far below 0.
    """
    return 1 - squared_error / variance


def make_criterion(task: TaskName, loss: str | Callable[..., Any] = "auto") -> Criterion:
    """Return the criterion of a task; `loss` is a name, package.module:function or a function."""
    is_regression = task == "regression"
    if loss == "auto":
        loss = "squared-error" if is_regression else "cross-entropy"
    if callable(loss):
        return Criterion(getattr(loss, "__name__", type(loss).__name__), loss, is_regression)
    function = LOSSES.find(loss)
    if not callable(function):
        raise SettingsError(f"loss: {loss!r} is not callable; name a function")
    if loss in LOSSES and (loss in CLASS_LOSSES) == is_regression:
        kind = "numbers" if is_regression else "classes"
        fitting = ", ".join(name for name in LOSSES if (name in CLASS_LOSSES) != is_regression)
        raise SettingsError(f"loss: {loss} is not for labels that are {kind}; try {fitting}")
    return Criterion(loss, function, is_regression)


def check_loss(criterion: Criterion, outputs: Tensor, labels: Tensor) -> None:
    """Raise an error unless the loss gives one finite value, at least 0, for each example."""
    try:
        losses = criterion.loss(outputs, labels)
    except Exception as error:  # a user's code may raise anything
        first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise SettingsError(
            f"loss: {criterion.name} cannot take outputs {list(outputs.shape)} and labels "
            f"{list(labels.shape)}: {first_line}"
        ) from None
    if not isinstance(losses, Tensor) or losses.shape != labels.shape:
        given = list(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
        raise SettingsError(
            f"loss: {criterion.name} gives {given} for {len(labels)} examples; return one value "
            'for each, as torch\'s losses do with reduction="none"'
        )
    if not bool((losses >= 0).all()):
        raise SettingsError(
            f"loss: {criterion.name} gives values below 0 or NaN; methods raise losses to powers, "
            "so add a constant that makes them positive"
        )
