"""Adam (Kingma & Ba, ICLR 2015) as torch.optim.Adam has it by default, for many models at a time.

    mean    <- b1 mean   + (1 - b1) gradient
    square  <- b2 square + (1 - b2) gradient^2
    tensor  <- tensor - lr / (1 - b1^t) * mean / (sqrt(square / (1 - b2^t)) + eps)          at a model's t-th step

Here the factors of step t are plain numbers where all models have taken equally many steps, and tensors, with a number for
each client, where they have not: nothing waits for a device.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from udjfl.engine._stacked_mlp import Update

B1, B2, EPS = 0.9, 0.999, 1e-8


class AdamUpdate(Update):
    """Adam on a stack of models, in the place of SGD. All clients take their t-th step together, and then stop or go on."""

    def __init__(
        self,
        start: Sequence[Tensor],
        clients: int,
        lr: float,
        pull: Sequence[Tensor] | None = None,
        pull_share: float = 0.0,
    ) -> None:
        self.means = [tensor.new_zeros(clients, *tensor.shape[1:]) for tensor in start]
        self.squares = [torch.zeros_like(mean) for mean in self.means]
        self.taken = 0
        # It stays `at_start`, where a velocity is the gradient alone, whatever it was before.
        super().__init__(start, clients, [lr], 0.0, pull, pull_share)

    def only(self, clients: int) -> None:
        super().only(clients)
        self.means = [mean[:clients] for mean in self.means]
        self.squares = [square[:clients] for square in self.squares]

    def apply(self) -> None:
        if self.pull is not None:
            self.mix(self.pull)
        gradients, before = self.velocities, self.moving if self.taken else self.start
        self.taken += 1
        torch._foreach_lerp_(self.means, gradients, 1 - B1)
        torch._foreach_mul_(self.squares, B2)
        torch._foreach_addcmul_(self.squares, gradients, gradients, value=1 - B2)
        rate, root = self.lrs[0] / (1 - B1**self.taken), math.sqrt(1 - B2**self.taken)
        for old, mean, square, gradient, new in zip(
            before, self.means, self.squares, gradients, self.moving, strict=True
        ):
            below = (
                torch.sqrt(square, out=gradient).div_(root).add_(EPS)
            )  # in the place of the gradient, which has served
            torch.addcdiv(old, mean, below, value=-rate, out=new)


@dataclass(frozen=True)
class Moments:
    """What Adam remembers of K clients, each of which may have taken another number of steps: tensors [K, ...]."""

    means: dict[str, Tensor]
    squares: dict[str, Tensor]
    taken: Tensor

    @staticmethod
    def of(parameters: Mapping[str, Tensor]) -> Moments:
        """Before the first step."""
        first = next(iter(parameters.values()))
        means, squares = (
            {name: torch.zeros_like(p) for name, p in parameters.items()} for _ in range(2)
        )
        return Moments(
            means, squares, torch.zeros(len(first), dtype=torch.float64, device=first.device)
        )

    def move(
        self,
        who: slice,
        parameters: Mapping[str, Tensor],
        gradients: Mapping[str, Tensor],
        lr: float,
    ) -> None:
        """One step of some clients, whose gradients these are; the parameters are everybody's."""
        taken = self.taken[who].add_(1)
        rates, roots = lr / (1 - B1**taken), (1 - B2**taken).sqrt()
        for name, gradient in gradients.items():
            mean = self.means[name][who].lerp_(gradient, 1 - B1)
            square = self.squares[name][who].mul_(B2).addcmul_(gradient, gradient, value=1 - B2)
            each = (-1, *(1,) * (mean.ndim - 1))
            below = square.sqrt().div_(roots.to(square).view(each)).add_(EPS)
            parameters[name][who].addcdiv_(mean * rates.to(mean).view(each), below, value=-1)
