"""Losses, example by example: `(outputs, labels) -> [n]`.

Outputs are logits [n, C] of classes or, in regression, a prediction [n] or [n, 1]; [n, 2] where the
second output is the logarithm of a variance. Methods raise losses to powers, so every loss here is
at least 0.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from udjfl._spec import Registry

LossFunction = Callable[[Tensor, Tensor], Tensor]
# The smallest variance of a Gaussian head, in squared units of labels scaled to a variance of 1.
LEAST_VARIANCE = 1e-4


def cross_entropy(outputs: Tensor, labels: Tensor) -> Tensor:
    """Return -ln p of each label, p the softmax of the logits [n, C].

    >>> cross_entropy(torch.zeros(1, 2), torch.tensor([1]))  # ln 2
    tensor([0.6931])
    """
    return nn.functional.cross_entropy(outputs, labels, reduction="none")


def squared_error(outputs: Tensor, labels: Tensor) -> Tensor:
    """Return (prediction - label)^2.

    >>> squared_error(torch.tensor([[3.0]]), torch.tensor([1.0]))
    tensor([4.])
    """
    return (prediction(outputs) - labels).square()


def absolute_error(outputs: Tensor, labels: Tensor) -> Tensor:
    """Return |prediction - label|.

    >>> absolute_error(torch.tensor([[3.0]]), torch.tensor([1.0]))
    tensor([2.])
    """
    return (prediction(outputs) - labels).abs()


def huber(outputs: Tensor, labels: Tensor) -> Tensor:
    """Return Huber's loss: e^2 / 2 for errors e up to 1, then |e| - 1/2.

    >>> huber(torch.tensor([3.0, 0.5]), torch.tensor([1.0, 0.0]))  # 2 - 1/2, 0.25 / 2
    tensor([1.5000, 0.1250])
    """
    return nn.functional.huber_loss(prediction(outputs), labels, reduction="none")


def gaussian(outputs: Tensor, labels: Tensor) -> Tensor:
    """Return the log loss of a Gaussian with mean and log variance [n, 2], shifted to be positive.

    (ln(v / v0) + (m - y)^2 / v) / 2 with v = v0 + exp(s): v0 = 1e-4 bounds the density, and the
    constant, which no gradient sees, makes 0 the lowest loss (Nix & Weigend, "Estimating the mean
    and variance of the target probability distribution", 1994, without the bound).

    >>> gaussian(torch.tensor([[1.0, -1e9]]), torch.tensor([1.0]))
    tensor([0.])
    """
    v = variance(outputs)
    errors = (prediction(outputs) - labels).square()
    return ((v / LEAST_VARIANCE).log() + errors / v) / 2


def prediction(outputs: Tensor) -> Tensor:
    """Return the predicted numbers [n] of a regression."""
    return outputs if outputs.ndim == 1 else outputs[:, 0]


def variance(outputs: Tensor) -> Tensor:
    """Return the predicted variances [n] of a Gaussian head."""
    return LEAST_VARIANCE + outputs[:, 1].exp()


LOSSES: Registry[LossFunction] = Registry("loss", "udjfl.losses")
CLASS_LOSSES = ("cross-entropy",)
for _name, _function in (
    ("cross-entropy", cross_entropy),
    ("squared-error", squared_error),
    ("absolute-error", absolute_error),
    ("huber", huber),
    ("gaussian", gaussian),
):
    LOSSES.register(_name, _function)
