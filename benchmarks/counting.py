"""The work that a contender really does, counted by hooks that torch calls."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook

from benchmarks.work import FEATURES, Work


@dataclass
class Counts:
    """Optimiser steps, and examples in forward passes of training and of testing."""

    steps: int = 0
    examples: int = 0
    tested: int = 0

    def as_dict(self) -> dict[str, int]:
        return {"steps": self.steps, "examples": self.examples, "tested": self.tested}


def _is_first_layer(module: nn.Module) -> bool:
    """Return whether this layer sees the data; every model of `benchmarks.work` has one such."""
    if isinstance(module, nn.Linear):
        return module.in_features == FEATURES
    return isinstance(module, nn.Conv2d) and module.in_channels == 1


@contextmanager
def count_work(momentum: float) -> Iterator[Counts]:
    """Count the work of this process within the block; hooks cost time, so never time it.

    A step counts if it has this momentum: a server's own optimiser takes no local steps, and a
    client without momentum does other work.
    """
    counts = Counts()

    def before_forward(module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        if _is_first_layer(module):
            if module.training:
                counts.examples += len(inputs[0])
            else:
                counts.tested += len(inputs[0])

    def after_step(optimiser: torch.optim.Optimizer, *_: object) -> None:
        counts.steps += optimiser.param_groups[0].get("momentum") == momentum

    handles = [
        register_module_forward_pre_hook(before_forward),
        register_optimizer_step_post_hook(after_step),
    ]
    try:
        yield counts
    finally:
        for handle in handles:
            handle.remove()


class Contender:
    """Base class: a check is a run with the hooks in place."""

    work: Work

    def prepare(self) -> None:
        """Go back to the initial model."""

    def run(self, rounds: int) -> dict[str, float]:
        raise NotImplementedError

    def stop(self) -> None:
        """End: no command will follow."""

    def check(self, rounds: int) -> dict[str, float]:
        self.prepare()
        with count_work(self.work.momentum) as counts:
            outcome = self.run(rounds)
        return {**outcome, **counts.as_dict()}
