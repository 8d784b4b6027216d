"""One round after another: ask clients, collect their reports, let the method aggregate, step, evaluate."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from udjfl.asking import Asking
from udjfl.config import TrainingSettings
from udjfl.data import Federation
from udjfl.engine import Engine, Pooled
from udjfl.errors import DivergedError, SettingsError
from udjfl.history import History, Record, RunFolder
from udjfl.methods import Method, Reports, State
from udjfl.uncertainty import Uncertainty

logger = logging.getLogger("udjfl")
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Server:
    """All that passes from one round to the next."""

    round: int
    vector: Tensor
    buffers: Tensor
    state: State

    def tensors(self) -> dict[str, Tensor]:
        named = {f"state.{name}": value for name, value in self.state.items()}
        return {"vector": self.vector, "buffers": self.buffers, **named}

    @staticmethod
    def from_tensors(round: int, tensors: Mapping[str, Tensor]) -> Server:
        state = {name.removeprefix("state."): t for name, t in tensors.items() if name.startswith("state.")}
        return Server(round, tensors["vector"], tensors["buffers"], state)


class Loop:
    """Plays rounds. Holds what stays the same from round to round."""

    def __init__(
        self,
        federation: Federation,
        method: Method,
        settings: TrainingSettings,
        seed: int,
        engine: Engine,
        uncertainty: Uncertainty,
    ) -> None:
        self.federation, self.method, self.settings, self.seed, self.engine = federation, method, settings, seed, engine
        self.uncertainty = uncertainty
        self.asking = Asking(federation, method, settings, seed, engine, uncertainty)
        self.client_tests = [client.test.on(engine.device) for client in federation.clients]
        self.global_test = Pooled([federation.test.on(engine.device)])
        self.tests = Pooled([*self.client_tests, federation.test.on(engine.device)])
        self.floor_said = False

    def play(self, server: Server, history: History, folder: RunFolder | None, progress: Progress | None) -> Server:
        """All rounds that are left."""
        rounds = self.settings.rounds
        if progress and server.round:
            progress("resumed", server.round, rounds)
        while server.round < rounds:
            server, records = self.round(server)
            history.records.extend(records)
            if folder:
                folder.append(records)
                if server.round % self.settings.checkpoint_every == 0 or server.round == rounds:
                    folder.save_checkpoint(server.round, server.tensors())
            if progress:
                progress("training", server.round, rounds)
        return server

    def round(self, server: Server) -> tuple[Server, list[Record]]:
        """One round: ask clients, collect, aggregate, step, evaluate. Returns the next server and what to record."""
        t = server.round + 1
        vector, buffers, state = server.vector, server.buffers, server.state
        asked, answering = self.asking.participants(t, state)
        records = [Record(t, self.federation.ids[row], "absent", 1.0) for row in asked if row not in answering]
        if answering:
            answers = self.asking.ask(t, vector, buffers, state, answering)
            buffers, state = answers.buffers, answers.state
            records += [Record(t, client, "excluded", reason) for client, reason in answers.excluded.items()]
            if answers.reports is not None:
                state, step, diagnostics = self.method.aggregate(state, answers.reports)
                self._check_step(step, vector, t)
                vector = vector - step.to(vector)
                records += self._records(t, answers.reports, step, diagnostics)
        server = Server(t, vector, buffers, state)
        if t % self.settings.eval_every == 0 or t == self.settings.rounds:
            records += self._evaluation(server)
        return server, records

    def _check_step(self, step: Tensor, vector: Tensor, t: int) -> None:
        if step.shape != vector.shape:
            raise SettingsError(
                f"{self.method.label}: its step has shape {list(step.shape)}; "
                f"it must have one number per parameter, {list(vector.shape)}"
            )
        if not torch.isfinite(step).all():
            raise DivergedError(
                f"{self.method.label}: the server's step is not finite in round {t}; try a smaller lr or another step rule"
            )

    def _records(self, t: int, reports: Reports, step: Tensor, diagnostics: Mapping[str, Tensor]) -> list[Record]:
        records = [Record(t, c, "train_loss", v) for c, v in zip(reports.ids, reports.losses.tolist(), strict=True)]
        for name, values in diagnostics.items():
            if name == "floored":
                self._say_floored([c for c, v in zip(reports.ids, values.tolist(), strict=True) if v])
            if values.ndim == 0:
                records.append(Record(t, None, name, _plain(float(values))))
            else:
                records += [Record(t, c, name, _plain(v)) for c, v in zip(reports.ids, values.tolist(), strict=True)]
        records.append(Record(t, None, "step_norm", float(step.to(torch.float64).norm())))
        return records

    def _say_floored(self, clients: Sequence[str]) -> None:
        if clients and not self.floor_said:
            self.floor_said = True
            logger.warning(
                "%s: the uncertainty of %s is below a hundredth of the largest; the floor is used in its place, "
                "so that one client does not get everything.", self.method.label, ", ".join(clients),
            )  # fmt: skip

    def _evaluation(self, server: Server) -> list[Record]:
        losses, accuracies = self.evaluate(server)
        who = [*self.federation.ids, None]
        return [
            Record(server.round, client, metric, _plain(value))
            for metric, values in (("test_accuracy", accuracies), ("test_loss", losses))
            for client, value in zip(who, values, strict=True)
        ]

    def evaluate(self, server: Server) -> tuple[list[float | None], list[float | None]]:
        """Loss, and accuracy in percent, on each client's test data and (last) on the global test set.

        Each client with the model it is served; the last is None for a method that has no model for everybody.
        """
        served = self.method.served(server.state, server.vector)
        if served is None:
            losses, accuracies = self.engine.evaluate(server.vector, server.buffers, self.tests)
            return [*losses.tolist()], [*(100 * accuracies).tolist()]
        pairs: list[tuple[float | None, float | None]] = []
        for shares, test in zip(served.shares, self.client_tests, strict=True):
            loss, accuracy = self.engine.evaluate_mixture(served.models, shares, server.buffers, test)
            pairs.append((loss, 100 * accuracy))
        if self.method.global_model:
            shared_loss, shared_accuracy = self.engine.evaluate(server.vector, server.buffers, self.global_test)
            pairs.append((float(shared_loss[0]), 100 * float(shared_accuracy[0])))
        else:
            pairs.append((None, None))
        return [loss for loss, _ in pairs], [accuracy for _, accuracy in pairs]


def _plain(value: float | None) -> float | None:
    """JSON has no NaN or infinity; a value that is neither finite nor an error is recorded as missing."""
    return value if value is not None and abs(value) < float("inf") else None
