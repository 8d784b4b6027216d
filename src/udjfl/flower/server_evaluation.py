"""What the server measures on data of its own."""

from __future__ import annotations

import copy
import functools

from torch import nn

from udjfl.data import Client, Examples
from udjfl.engine import Engine, EvaluationSet, make_engine
from udjfl.flower.data import ServerData
from udjfl.methods import Method
from udjfl.training.rounds import Server


class Scoring:
    """The server's test and validation data, and an engine to evaluate models on them."""

    def __init__(self, module: nn.Module, data: ServerData | None, method: Method) -> None:
        self.method = method
        self.test = data.test if data is not None and isinstance(data.test, Examples) else None
        self.own = (
            data.validation if data is not None and isinstance(data.validation, Examples) else None
        )
        self._module = module

    @functools.cached_property
    def engine(self) -> Engine:
        data = self.test or self.own
        assert data is not None, "asked for only where there are data"
        return make_engine(copy.deepcopy(self._module), [Client("server", data, data)], workers=1)

    @functools.cached_property
    def validation(self) -> EvaluationSet:
        assert self.own is not None, "a method that needs it was refused"
        return EvaluationSet([self.own])

    @functools.cached_property
    def _tests(self) -> EvaluationSet:
        assert self.test is not None
        return EvaluationSet([self.test])

    @property
    def why_no_global(self) -> str | None:
        """Why there is no global accuracy, where that is for want of data."""
        return (
            "The server has no test data."
            if self.method.global_model and self.test is None
            else None
        )

    def everybody(self, server: Server) -> tuple[float | None, float | None]:
        """Loss, and accuracy in percent, of the server's model on its test data; None without one or the other."""
        if self.test is None or not self.method.global_model:
            return None, None
        losses, accuracies = self.engine.evaluate(server.vector, server.buffers, self._tests)
        return float(losses[0]), 100 * float(accuracies[0])
