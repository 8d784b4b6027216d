"""Known distributions of labels: how probable each class is for each example."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

ROUNDING = 1e-4  # how far the sum of a row in float32 may be from 1


def one_hot(labels: Tensor, n_classes: int) -> Tensor:
    """Return the distributions [n, C] of labels that are certain."""
    return torch.nn.functional.one_hot(labels, n_classes).to(torch.float32)


def label_frequencies(labels: npt.NDArray[np.integer], n_classes: int) -> Tensor:
    """Return the empirical distributions [n, C] of several labels [n, L] for each example."""
    return one_hot(torch.from_numpy(labels.astype(np.int64)), n_classes).mean(dim=1)


def normalise(probabilities: npt.NDArray[np.floating]) -> Tensor:
    """Return stored distributions [n, C] with rows that sum to 1, in float32."""
    exact = torch.from_numpy(probabilities.astype(np.float64))
    return (exact / exact.sum(dim=1, keepdim=True)).to(torch.float32)


def find_distribution_problems(probabilities: Tensor, n_examples: int, n_classes: int) -> list[str]:
    """Find a wrong type or shape, values that are no probabilities, rows that do not sum to 1."""
    shape = (n_examples, n_classes)
    if probabilities.dtype != torch.float32 or probabilities.shape != shape:
        return [
            f"label_probabilities is {probabilities.dtype} of shape "
            f"{tuple(probabilities.shape)}: give float32 [examples, classes], {list(shape)}"
        ]
    # `not a >= 0` instead of `a < 0`, so that NaN is a mistake too.
    wrong = ~((probabilities >= 0) & (probabilities <= 1 + ROUNDING)).all(dim=1)
    if wrong.any():
        return [
            f"label_probabilities of {int(wrong.sum())} of {n_examples} examples have values that "
            "are not from 0 to 1: give probabilities"
        ]
    sums = probabilities.to(torch.float64).sum(dim=1)
    wrong = (sums - 1).abs() > ROUNDING
    if wrong.any():
        return [
            f"label_probabilities of {int(wrong.sum())} of {n_examples} examples do not sum to 1 "
            f"(the first to {float(sums[wrong][0]):.4f}): divide each row by its sum"
        ]
    return []
