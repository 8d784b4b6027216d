"""One round of one method, in two halves: what to ask clients, and what to make of their answers. And evaluation."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from udjfl.asking import Asking, Question
from udjfl.engine import Job, LocalResult, Pooled
from udjfl.errors import DivergedError, SettingsError
from udjfl.history import Record
from udjfl.methods import Reports, Served, State

logger = logging.getLogger("udjfl")


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


@dataclass(frozen=True)
class Opened:
    """A round half-way: what is recorded so far, and what clients are asked (None: nobody answers)."""

    records: list[Record]
    question: Question | None

    @property
    def jobs(self) -> list[Job]:
        return [] if self.question is None else self.question.jobs


@dataclass(frozen=True)
class Evaluated:
    """Loss, and accuracy in percent, on each client's test data and (last) on the global test set.

    The last is None for a method that has no model for everybody.
    """

    losses: Sequence[float | None]
    accuracies: Sequence[float | None]


class Loop:
    """The rounds of one method. Holds what stays the same from round to round."""

    def __init__(self, asking: Asking) -> None:
        self.asking = asking
        self.method, self.settings, self.seed = asking.method, asking.settings, asking.seed
        self.federation, self.engine, self.uncertainty = asking.federation, asking.engine, asking.uncertainty
        federation, engine = self.federation, self.engine
        self.client_tests = [client.test.on(engine.device) for client in federation.clients]
        self.global_test = Pooled([federation.test.on(engine.device)])
        self.tests = Pooled([*self.client_tests, federation.test.on(engine.device)])
        self.floor_said = False

    def begin(self, server: Server) -> Opened:
        """The first half of a round: who is asked, and what."""
        t = server.round + 1
        asked, answering = self.asking.participants(t, server.state)
        answers = set(answering)
        records = [Record(t, self.federation.ids[row], "absent", 1.0) for row in asked if row not in answers]
        if not answering:
            return Opened(records, None)
        return Opened(records, self.asking.question(t, server.vector, server.buffers, server.state, answering))

    def finish(self, server: Server, opened: Opened, results: Sequence[LocalResult]) -> tuple[Server, list[Record]]:
        """The second half: collect, aggregate, step. Returns the next server and what to record."""
        t, records = server.round + 1, opened.records
        vector, buffers, state = server.vector, server.buffers, server.state
        if opened.question is not None:
            answers = self.asking.answers(opened.question, results)
            buffers, state = answers.buffers, answers.state
            records += [Record(t, client, "excluded", reason) for client, reason in answers.excluded.items()]
            if answers.reports is not None:
                state, step, diagnostics = self.method.aggregate(state, answers.reports)
                self._check_step(step, vector, t)
                vector = vector - step.to(vector)
                records += self._records(t, answers.reports, step, diagnostics)
        return Server(t, vector, buffers, state), records

    def is_evaluated(self, t: int) -> bool:
        """Whether the model is evaluated after this round."""
        return t % self.settings.eval_every == 0 or t == self.settings.rounds

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

    def evaluation_records(self, t: int, evaluated: Evaluated) -> list[Record]:
        who = [*self.federation.ids, None]
        return [
            Record(t, client, metric, _plain(value))
            for metric, values in (("test_accuracy", evaluated.accuracies), ("test_loss", evaluated.losses))
            for client, value in zip(who, values, strict=True)
        ]

    def evaluate_served(self, server: Server, served: Served) -> Evaluated:
        """Each client with the model it is served."""
        pairs: list[tuple[float | None, float | None]] = []
        for shares, test in zip(served.shares, self.client_tests, strict=True):
            loss, accuracy = self.engine.evaluate_mixture(served.models, shares, server.buffers, test)
            pairs.append((loss, 100 * accuracy))
        if self.method.global_model:
            shared_loss, shared_accuracy = self.engine.evaluate(server.vector, server.buffers, self.global_test)
            pairs.append((float(shared_loss[0]), 100 * float(shared_accuracy[0])))
        else:
            pairs.append((None, None))
        return Evaluated([loss for loss, _ in pairs], [accuracy for _, accuracy in pairs])


def evaluate(loops: Sequence[Loop], servers: Sequence[Server]) -> list[Evaluated]:
    """What each loop's clients get from its model; loops of one federation. Models of one engine are evaluated together."""
    found: dict[int, Evaluated] = {}
    shared: dict[int, list[int]] = {}
    for place, (loop, server) in enumerate(zip(loops, servers, strict=True)):
        served = loop.method.served(server.state, server.vector)
        if served is not None:
            found[place] = loop.evaluate_served(server, served)
        else:
            shared.setdefault(id(loop.engine), []).append(place)
    for places in shared.values():
        models = [(servers[place].vector, servers[place].buffers) for place in places]
        first = loops[places[0]]
        for place, (losses, accuracies) in zip(places, first.engine.evaluate_together(models, first.tests), strict=True):
            found[place] = Evaluated(losses.tolist(), (100 * accuracies).tolist())
    return [found[place] for place in range(len(loops))]


def _plain(value: float | None) -> float | None:
    """JSON has no NaN or infinity; a value that is neither finite nor an error is recorded as missing."""
    return value if value is not None and abs(value) < float("inf") else None
