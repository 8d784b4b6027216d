"""Evaluation on the server's own data."""

import copy
import functools

import torch
from torch import Tensor, nn

from udjfl.data import Client, Examples, Federation
from udjfl.engine import Demands, Engine, EvaluationSet, make_engine
from udjfl.flower.data import ServerData
from udjfl.methods import Method
from udjfl.tasks import Score
from udjfl.training.judging import Judge
from udjfl.training.server_state import ServerState


class ServerEvaluation:
    """The server's test and validation data, and an engine to evaluate models on them."""

    def __init__(
        self,
        module: nn.Module,
        data: ServerData | None,
        method: Method,
        demands: Demands | None = None,
    ) -> None:
        self.method, self._module, self._demands = method, module, demands or Demands()
        self._preprocessing = None if data is None else data.preprocessing
        self.test = data.test if data and isinstance(data.test, Examples) else None
        self.validation = (
            data.validation if data and isinstance(data.validation, Examples) else None
        )

    @functools.cached_property
    def _engine(self) -> Engine:
        data = self.test or self.validation
        assert data is not None, "only used where there are data"
        module, clients = copy.deepcopy(self._module), [Client("server", data, data)]
        return make_engine(module, clients, workers=1, demands=self._demands)

    @property
    def no_global_reason(self) -> str | None:
        """The reason for a missing global accuracy, if the server has no test data."""
        if self.method.global_model and self.test is None:
            return "The server has no test data."
        return None

    def evaluate(self, server: ServerState) -> tuple[float, float] | None:
        """Return loss and accuracy, 0 to 1, of the server's model on its test data.

        None without test data, or for a method without a single model.
        """
        if self.test is None or not self.method.global_model:
            return None
        losses, accuracies = self._engine.evaluate(
            server.vector, server.buffers, EvaluationSet([self.test])
        )
        return float(losses[0]), float(accuracies[0])

    def judge(self, server: ServerState, score: Score) -> float | None:
        """Return the score that is judged on the test data; None as in `evaluate`."""
        if self.test is None or not self.method.global_model:
            return None
        federation = Federation(
            "server",
            (Client("server", self.test, self.test),),
            self.test,
            (),
            preprocessing=self._preprocessing,
            is_checked=True,
        )
        judge = Judge(score, self._engine, federation, 0)
        return judge.judge_shared(server.vector, server.buffers, self.test)

    def score(self, models: Tensor, buffers: Tensor) -> Tensor:
        """Return the accuracies of models on the validation data."""
        assert self.validation is not None, "a method that needs it was rejected"
        scores = self._engine.evaluate_many(
            [(model, buffers) for model in models], EvaluationSet([self.validation])
        )
        return torch.cat([accuracies for _, accuracies in scores])
