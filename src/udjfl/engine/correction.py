"""A change of every gradient in local training, as FedProx, SCAFFOLD and others make it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Correction:
    """The gradient g at the model theta becomes  gradient_share g + mu (theta - anchor) + shift.

    `anchor` and `shift` are one vector for all clients [D] or one for each client of a job [N, D].
    Without an anchor it is the model that a client starts from, without a shift there is none. A
    parameter that the loss does not depend on stays as it is.
    """

    gradient_share: float = 1.0
    mu: float = 0.0
    anchor: Tensor | None = None
    shift: Tensor | None = None

    @property
    def tensors(self) -> tuple[Tensor | None, Tensor | None]:
        """The anchor and the shift."""
        return self.anchor, self.shift

    @property
    def form(self) -> tuple[object, ...]:
        """Everything but the values of the tensors: corrections of one form are one program."""
        axes = (None if tensor is None else tensor.ndim for tensor in self.tensors)
        return self.gradient_share, self.mu, *axes

    @property
    def without_tensors(self) -> Correction:
        """The same weights alone."""
        return replace(self, anchor=None, shift=None)

    def of_rows(self, rows: Sequence[int], device: torch.device) -> Correction:
        """Return the correction of some clients of the job, on a device."""

        def choose(tensor: Tensor | None) -> Tensor | None:
            if tensor is None:
                return None
            return (tensor if tensor.ndim == 1 else tensor[list(rows)]).to(device)

        return replace(self, anchor=choose(self.anchor), shift=choose(self.shift))

    def split(self, start: Tensor, sizes: list[int]) -> list[SplitCorrection]:
        """Return the correction of each tensor of one client's model, which begins at `start`."""
        anchors = torch.split((start if self.anchor is None else self.anchor).view(-1), sizes)
        shifts: Sequence[Tensor | None] = [None] * len(sizes)
        if self.shift is not None:
            shifts = torch.split(self.shift.view(-1), sizes)
        pairs = zip(anchors, shifts, strict=True)
        return [SplitCorrection(self, anchor, shift) for anchor, shift in pairs]

    def __reduce__(self) -> tuple[object, ...]:
        # Tensors go through numpy: pickling one writes a file in memory.
        arrays = [None if tensor is None else tensor.numpy() for tensor in self.tensors]
        return _unpickle_correction, (self.gradient_share, self.mu, *arrays)


def _unpickle_correction(
    gradient_share: float, mu: float, *arrays: np.ndarray | None
) -> Correction:
    tensors = [None if array is None else torch.from_numpy(array) for array in arrays]
    return Correction(gradient_share, mu, *tensors)


@dataclass(frozen=True)
class SplitCorrection:
    """The correction of one tensor of a model: its anchor, and its shift if there is one."""

    weights: Correction
    anchor: Tensor
    shift: Tensor | None

    def apply(self, gradient: Tensor, theta: Tensor) -> None:
        """Correct a gradient in place."""
        weights = self.weights
        if weights.gradient_share != 1:
            gradient.mul_(weights.gradient_share)
        if weights.mu:
            gradient.add_(theta - self.anchor.view_as(theta).to(theta), alpha=weights.mu)
        if self.shift is not None:
            gradient.add_(self.shift.view_as(theta).to(theta))
