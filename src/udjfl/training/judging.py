"""The score that is judged, of what clients are served: in the simulator and on Flower alike."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from udjfl.data import Examples, Federation
from udjfl.engine import Engine
from udjfl.errors import DataError
from udjfl.seeds import torch_stream
from udjfl.settings import TrainingSettings
from udjfl.tasks import SCORES, Score, as_predictions
from udjfl.training.evaluation import JudgedScores
from udjfl.uncertainty.alone import task_of


@dataclass(frozen=True)
class JudgedClient:
    """A client's score, and its 95% bootstrap interval; None where too few samples have one."""

    value: float
    interval: tuple[float, float] | None = None


@dataclass(frozen=True)
class Judge:
    """Computes a score of models on examples, in the units that a table gave its labels in."""

    score: Score
    engine: Engine
    federation: Federation
    seed: int

    def judge_client(
        self,
        client: str,
        models: Tensor,
        shares: Tensor,
        buffers: Tensor,
        test: Examples,
        offset: Tensor | None = None,
    ) -> JudgedClient:
        """Judge a mixture of models [M, D] on the test part of a client."""
        outputs = self.engine.mix_predictions(models, shares, buffers, test, offset)
        restore = self.federation.restore_labels
        labels = restore(test.y.cpu().numpy())
        predicted = restore(as_predictions(outputs, self.engine.criterion.is_regression))
        interval = self.score.interval(labels, predicted, (self.seed, client))
        return JudgedClient(self.score.compute(labels, predicted), interval)

    def judge_shared(self, model: Tensor, buffers: Tensor, test: Examples) -> float:
        """Judge one model on a test set of no client."""
        outputs = self.engine.mix_predictions(model[None], torch.ones(1), buffers, test, None)
        restore = self.federation.restore_labels
        predicted = restore(as_predictions(outputs, self.engine.criterion.is_regression))
        return self.score.compute(restore(test.y.cpu().numpy()), predicted)


def join_judged(clients: Mapping[str, JudgedClient], shared: float | None) -> JudgedScores:
    """Return the scores of all clients, and that on the shared test set, as an evaluation has."""
    intervals = {name: own.interval for name, own in clients.items()}
    return JudgedScores(
        {name: own.value for name, own in clients.items()},
        {name: interval for name, interval in intervals.items() if interval is not None},
        shared,
    )


def check_score(federation: Federation, settings: TrainingSettings) -> None:
    """Raise an error if the score that is judged is not defined for a client's test part."""
    task = task_of(federation, settings)
    score = task.score
    if score.kind.is_share:
        return
    for client in federation.clients:
        labels, n = client.test.y.cpu(), len(client.test)
        outputs = torch.randn(n, task.n_outputs, generator=torch_stream(0, "guess", client.id))
        # A function of a user's, such as a correlation, may have no value for equal predictions.
        guesses = [outputs, torch.zeros_like(outputs)] if score.kind.name in SCORES else [outputs]
        is_regression, restore = task.criterion.is_regression, federation.restore_labels
        predicted = [restore(as_predictions(guess, is_regression)) for guess in guesses]
        truth = restore(labels.numpy())
        if not all(math.isfinite(score.compute(truth, guess)) for guess in predicted):
            why = f"of {n} example{'' if n == 1 else 's'}"
            if n > 1 and bool((labels == labels[0]).all()):
                why = "whose labels are all the same"
            raise DataError(
                f"client {client.id!r}: {score.kind.title} is not defined for its test part, "
                f"{why}; choose another score, or leave the client out"
            )
