"""The task of a run: what its labels are, how many outputs its model has, and its loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from udjfl.errors import SettingsError
from udjfl.tasks.criterion import CROSS_ENTROPY, Criterion, TaskName, make_criterion
from udjfl.tasks.scores import SCORES, Score, make_score


@dataclass(frozen=True)
class Task:
    """A choice of what is predicted, and how that is measured.

    name       classification, binary or regression
    n_outputs  that a built-in model has, and that a function which makes a model is told: one per
               class, also for two classes; in regression 1, or 2 with the loss `gaussian`
    criterion  what clients minimise
    score      what is judged
    """

    name: TaskName
    n_outputs: int
    criterion: Criterion = CROSS_ENTROPY
    score: Score = SCORES["accuracy"]

    @property
    def one_logit(self) -> bool:
        """True if a model may have one output for two classes."""
        return self.name == "binary"

    @staticmethod
    def of(
        chosen: Literal["auto", "classification", "binary", "regression"],
        loss: str | Callable[..., Any],
        n_classes: int,
        labels_are_numbers: bool,
        score: str | Callable[..., Any] = "auto",
    ) -> Task:
        """Return the task that settings choose, for these labels."""
        name: TaskName = "regression" if labels_are_numbers else "classification"
        if chosen != "auto":
            if (chosen == "regression") != labels_are_numbers:
                kind = "numbers" if labels_are_numbers else "classes"
                raise SettingsError(
                    f"task: is {chosen}, and the labels are {kind}; for numbers make the "
                    "federation with task='regression'"
                )
            name = chosen
        if name == "binary" and n_classes != 2:
            raise SettingsError(f"task: binary is for two classes, the data has {n_classes}")
        n_outputs = n_classes
        if labels_are_numbers:
            n_outputs = 2 if loss == "gaussian" else 1
        return Task(name, n_outputs, make_criterion(name, loss), make_score(score, name))
