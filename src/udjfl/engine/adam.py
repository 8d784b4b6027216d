"""Adam (Kingma & Ba, ICLR 2015) as torch.optim.Adam has it by default, for many models at a time.

    mean    <- b1 mean   + (1 - b1) gradient
    square  <- b2 square + (1 - b2) gradient^2
    tensor  <- tensor - lr / (1 - b1^t) * mean / (sqrt(square / (1 - b2^t)) + eps)    in step t

The factors of step t are plain numbers where all models have taken equally many steps, and tensors
with a number for each client where they have not: nothing is read back from a device.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from udjfl.engine._stacked_mlp import StackedCorrection, Update

B1, B2, EPS = 0.9, 0.999, 1e-8


class AdamUpdate(Update):
    """Adam on a stack of models in place of SGD. All clients take their t-th step together."""

    def __init__(
        self,
        start: Sequence[Tensor],
        n_clients: int,
        lr: float,
        correction: StackedCorrection | None = None,
    ) -> None:
        self.means = [tensor.new_zeros(n_clients, *tensor.shape[1:]) for tensor in start]
        self.squares = [torch.zeros_like(mean) for mean in self.means]
        self.n_steps = 0
        # It stays `at_start`: there a velocity is the gradient alone, whatever it was before.
        super().__init__(start, n_clients, [lr], 0.0, correction)

    def keep_clients(self, count: int) -> None:
        super().keep_clients(count)
        self.means = [mean[:count] for mean in self.means]
        self.squares = [square[:count] for square in self.squares]

    def step(self) -> None:
        gradients, before = self.velocities, self.moving if self.n_steps else self.start
        if self.correction is not None:
            self.correction.add_to(gradients, before, self.start)
        self.n_steps += 1
        torch._foreach_lerp_(self.means, gradients, 1 - B1)
        torch._foreach_mul_(self.squares, B2)
        torch._foreach_addcmul_(self.squares, gradients, gradients, value=1 - B2)
        rate, root = self.lrs[0] / (1 - B1**self.n_steps), math.sqrt(1 - B2**self.n_steps)
        for old, mean, square, gradient, new in zip(
            before, self.means, self.squares, gradients, self.moving, strict=True
        ):
            # In the memory of the gradient, which is not needed any more.
            denominator = torch.sqrt(square, out=gradient).div_(root).add_(EPS)
            torch.addcdiv(old, mean, denominator, value=-rate, out=new)


@dataclass(frozen=True)
class Moments:
    """The moments of K clients, tensors [K, ...], and how many steps each has taken, [K]."""

    means: dict[str, Tensor]
    squares: dict[str, Tensor]
    n_steps: Tensor

    @staticmethod
    def zeros(parameters: Mapping[str, Tensor]) -> Moments:
        """Return the moments before the first step."""
        first = next(iter(parameters.values()))
        means, squares = (
            {name: torch.zeros_like(p) for name, p in parameters.items()} for _ in range(2)
        )
        n_steps = torch.zeros(len(first), dtype=torch.float64, device=first.device)
        return Moments(means, squares, n_steps)

    def step(
        self,
        clients: slice,
        parameters: Mapping[str, Tensor],
        gradients: Mapping[str, Tensor],
        lr: float,
    ) -> None:
        """Take one step with some clients' gradients; the parameters are those of all clients."""
        n_steps = self.n_steps[clients].add_(1)
        rates, roots = lr / (1 - B1**n_steps), (1 - B2**n_steps).sqrt()
        for name, gradient in gradients.items():
            mean = self.means[name][clients].lerp_(gradient, 1 - B1)
            square = self.squares[name][clients].mul_(B2)
            square.addcmul_(gradient, gradient, value=1 - B2)
            per_client = (-1, *(1,) * (mean.ndim - 1))
            denominator = square.sqrt().div_(roots.to(square).view(per_client)).add_(EPS)
            numerator = mean * rates.to(mean).view(per_client)
            parameters[name][clients].addcdiv_(numerator, denominator, value=-1)
