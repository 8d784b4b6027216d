"""Limits of what a client on another machine may report, beyond what can never be used.

They are wide: no honest training comes near them, as a client that is served badly has a large loss
and a long update, and must not be left out for that. A lie within them cannot be told from the
truth.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from udjfl.methods import Plan
from udjfl.training.state import Run

# A cross-entropy beyond so many times that of a guess, ln(classes), is no result of training,
# unless others have it too: features that were never scaled can make it a hundred thousand times.
GUESSES = 1e6
# With fewer replies the largest has too much of a say in their median.
FEWEST_REPLIES = 3


@dataclass(frozen=True)
class ReplyLimits:
    """The most that replies may contain. The default allows anything finite.

    number        largest loss, and largest absolute value in an extra
    guess         loss of a guess: one beyond `GUESSES` times this, and times the round's median, is
                  too large; None: losses have no scale
    steps         most optimiser steps of each client, where it is known
    update_norm   longest update; None: any
    update_ratio  longest update, as a multiple of the median length in the round; None: any
    """

    number: float = math.inf
    guess: float | None = None
    steps: Mapping[str, int] = field(default_factory=dict)
    update_norm: float | None = None
    update_ratio: float | None = None

    @staticmethod
    def of(run: Run, plan: Plan, dtype: torch.dtype) -> ReplyLimits:
        """Return the limits of a round of a run under a plan, for models of this dtype."""
        n_classes = run.federation.n_classes
        has_guess = run.spec.task(run.federation).criterion.is_plain and n_classes > 1
        return ReplyLimits(
            torch.finfo(dtype).max,
            math.log(n_classes) if has_guess else None,
            count_steps(run, plan),
            run.spec.max_update_norm,
            run.spec.max_update_ratio,
        )

    def find_problem(
        self, client: str, numbers: Mapping[str, float], extras: Mapping[str, Tensor]
    ) -> tuple[str, str] | None:
        """Return the first value beyond its limit: the field, and what is wrong with it."""
        loss, steps = numbers.get("losses", 0.0), numbers.get("steps", 0.0)
        # What is not finite is reported as that.
        if self.number < loss < math.inf:
            return "losses", f"is {loss:.4g}; it may be at most {self.number:.4g}"
        if self.steps.get(client, math.inf) < steps < math.inf:
            return "steps", f"is {steps:g}; its training has {self.steps[client]} steps"
        for name, values in sorted(extras.items()):
            largest = float(values.abs().max()) if values.numel() else 0.0
            if self.number < largest < math.inf:
                return name, f"has {largest:.4g}; it may have at most {self.number:.4g}"
        return None

    def find_large_losses(self, losses: Sequence[float]) -> dict[int, str]:
        """Return what is wrong with each loss that is too large, by its index.

        A model that is broken has a large loss everywhere: then clients who say so are right.
        """
        known = {index: loss for index, loss in enumerate(losses) if math.isfinite(loss)}
        if self.guess is None or len(known) < FEWEST_REPLIES:
            return {}
        limit = GUESSES * max(self.guess, statistics.median(known.values()))
        problem = "is {:.4g}, more than a million times that of a guess and of the other clients"
        return {index: problem.format(known[index]) for index in _find_above(known, limit)}

    def find_long_updates(self, deltas: Sequence[Tensor]) -> dict[int, str]:
        """Return what is wrong with each update that is too long, by its index.

        Updates that are not finite are reported elsewhere, and have no say in the median.
        """
        if self.update_norm is None and self.update_ratio is None:
            return {}
        norms = {
            index: float(delta.to(torch.float64).norm())
            for index, delta in enumerate(deltas)
            if torch.isfinite(delta).all()
        }
        problems: dict[int, str] = {}
        if self.update_ratio is not None and len(norms) >= FEWEST_REPLIES:
            median = statistics.median(norms.values())
            for index in _find_above(norms, self.update_ratio * median if median else math.inf):
                problems[index] = (
                    f"has length {norms[index]:.4g}, above max_update_ratio, "
                    f"{self.update_ratio:g}, times the round's median of {median:.4g}"
                )
        if self.update_norm is not None:
            for index in _find_above(norms, self.update_norm):
                problems[index] = (
                    f"has length {norms[index]:.4g}, above max_update_norm, {self.update_norm:g}"
                )
        return problems


def _find_above(values: Mapping[int, float], limit: float) -> list[int]:
    return [index for index, value in values.items() if value > limit]


def count_steps(run: Run, plan: Plan) -> dict[str, int]:
    """Return how many optimiser steps clients take under a plan, where that is known."""
    if plan.one_full_step or run.settings.local_steps:
        return dict.fromkeys(run.ids, 1 if plan.one_full_step else run.settings.local_steps)
    training = run.local_training(Plan(), [])
    return {
        client: training.count_steps(int(size))
        for client, size in zip(run.ids, run.federation.sizes, strict=True)
        if not math.isnan(size)
    }
