"""One round after another: ask clients, collect their reports, let the method aggregate, step, evaluate."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from udjfl.config import TrainingSettings
from udjfl.data import Federation
from udjfl.engine import Engine, LocalWork, Pooled
from udjfl.errors import DivergedError, SettingsError
from udjfl.history import History, Record, RunFolder
from udjfl.methods import Method, Reports, State
from udjfl.methods.intake import ClientReport, collect
from udjfl.seeds import numpy_stream
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
        self.work = LocalWork(settings.lr, settings.momentum, settings.batch_size, settings.local_epochs, settings.loss_at)
        parts = [client.test for client in federation.clients] + [federation.test]
        device = engine.device
        self.tests = Pooled([type(p)(p.x.to(device), p.y.to(device)) for p in parts])
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
        asked, answering = self._participants(t)
        records = [Record(t, self.federation.ids[row], "absent", 1.0) for row in asked if row not in answering]
        reports, buffers = None, server.buffers
        if answering:
            reports, buffers, excluded = self._collect(server, t, answering)
            records += [Record(t, client, "excluded", reason) for client, reason in excluded.items()]
        vector, state = server.vector, server.state
        if reports is not None:
            state, step, diagnostics = self.method.aggregate(state, reports)
            self._check_step(step, vector, t)
            vector = vector - step.to(vector)
            records += self._records(t, reports, step, diagnostics)
        server = Server(t, vector, buffers, state)
        if t % self.settings.eval_every == 0 or t == self.settings.rounds:
            records += self._evaluation(server)
        return server, records

    def _participants(self, t: int) -> tuple[list[int], list[int]]:
        """Which clients are asked in this round, and which of them answer; both in client order."""
        n = len(self.federation.clients)
        asked = list(range(n))
        if self.settings.participation < 1:
            count = max(1, round(self.settings.participation * n))
            drawn = numpy_stream(self.seed, "participation", t).choice(n, size=count, replace=False)
            asked = sorted(int(row) for row in drawn)
        lost = numpy_stream(self.seed, "drop-out", t).random(n) < self.settings.drop_out
        return asked, [row for row in asked if not lost[row]]

    def _collect(self, server: Server, t: int, rows: list[int]) -> tuple[Reports | None, Tensor, dict[str, str]]:
        """Local work of these clients, as reports; the average of their buffers; who was left out and why."""
        result = self.engine.train(server.vector, server.buffers, rows, self.work, (self.seed, "batches", t))
        ids = [self.federation.ids[row] for row in rows]
        deltas, losses, steps = result.deltas.cpu(), result.losses.tolist(), result.steps.tolist()
        buffers = result.buffers.cpu()
        sent = [
            ClientReport(
                name,
                deltas[i],
                losses[i],
                self.federation.sizes[row],
                self.uncertainty.values[name],
                steps[i],
                buffers=buffers[i],
            )
            for i, (row, name) in enumerate(zip(rows, ids, strict=True))
        ]
        s = self.settings
        reports, excluded = collect(sent, self.federation.ids, len(server.vector), t, s.lr, s.momentum, s.on_bad_report)
        if reports is None:
            return None, server.buffers, excluded
        kept = [ids.index(name) for name in reports.ids]
        shares = reports.sizes / reports.sizes.sum()
        return reports, shares @ buffers[kept], excluded

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

    def evaluate(self, server: Server) -> tuple[list[float], list[float]]:
        """Loss, and accuracy in percent, on each client's test data and (last) on the global test set."""
        losses, accuracies = self.engine.evaluate(server.vector, server.buffers, self.tests)
        return losses.tolist(), (100 * accuracies).tolist()


def _plain(value: float) -> float | None:
    """JSON has no NaN or infinity; a value that is neither finite nor an error is recorded as missing."""
    return value if abs(value) < float("inf") else None
