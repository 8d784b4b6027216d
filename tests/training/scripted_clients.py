"""Clients that follow a script: the third implementation of `training.clients.Clients`.

Client i has a target vector t_i. It trains by one plain step towards it, so its update is
lr * (model - t_i), and its loss is half the squared distance. A script lists the faults by round
and client; everything else works. Fault logic is tested in milliseconds, against the real round.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from udjfl import Method, method
from udjfl.settings import TrainingSettings
from udjfl.training.clients import Attendance, Replies, TrainRequest
from udjfl.training.evaluation import Evaluation
from udjfl.training.federation_info import FederationInfo
from udjfl.training.lifecycle import RunLog
from udjfl.training.limits import ReplyLimits
from udjfl.training.replies import ClientReply, stack_replies
from udjfl.training.round import run_round
from udjfl.training.run_folder import RunFolder
from udjfl.training.server_state import ServerState
from udjfl.training.state import Run, RunSpec

NUMBERS = ("losses", "sizes", "uncertainties", "steps")
# A fault changes the replies of one client in one round.
Fault = Callable[[ClientReply], Sequence[ClientReply]]


def lost(_: ClientReply) -> Sequence[ClientReply]:
    """The reply does not arrive in time."""
    return ()


def twice(reply: ClientReply) -> Sequence[ClientReply]:
    """The reply arrives twice, with another loss the second time."""
    return reply, with_numbers(losses=9.0)(reply)[0]


def with_numbers(**numbers: float) -> Fault:
    """The reply has other numbers."""
    return lambda reply: (replace(reply, numbers={**reply.numbers, **numbers}),)


def without(name: str) -> Fault:
    """A number is missing in the reply."""
    return lambda reply: (
        replace(reply, numbers={k: v for k, v in reply.numbers.items() if k != name}),
    )


def with_delta(change: Callable[[Tensor], Tensor]) -> Fault:
    """The reply has another update."""
    return lambda reply: (replace(reply, delta=change(_delta(reply))),)


def as_client(name: str) -> Fault:
    """The reply pretends to be another client's."""
    return lambda reply: (replace(reply, id=name),)


def _delta(reply: ClientReply) -> Tensor:
    assert reply.delta is not None
    return reply.delta


@dataclass
class Script:
    """The faults of a run.

    away        clients that cannot be reached, by round
    faults      faults in training replies, by (round, client)
    probe       faults in replies to probes, by (round, client)
    order       how the replies of a round are ordered; default: as they were asked
    unseen      clients that cannot be evaluated, by round
    """

    away: Mapping[int, Collection[str]] | None = None
    faults: Mapping[tuple[int, str], Fault] | None = None
    probe: Mapping[tuple[int, str], Fault] | None = None
    order: Callable[[list[ClientReply]], list[ClientReply]] = list
    unseen: Mapping[int, Collection[str]] | None = None


class ScriptedClients:
    """Clients with targets [N, D] that follow a script. `asked` lists the requests, in order."""

    def __init__(self, run: Run, targets: Tensor, script: Script) -> None:
        self.run, self.targets, self.script = run, targets, script
        self.asked: list[tuple[str, int, list[str]]] = []

    def reach(self, round: int, client_indices: Sequence[int]) -> Attendance:
        away = set((self.script.away or {}).get(round, ()))
        ids = self.run.ids
        absent = {ids[i]: "is not connected" for i in client_indices if ids[i] in away}
        return Attendance([i for i in client_indices if ids[i] not in away], absent)

    def probe(self, request: TrainRequest, names: Collection[str]) -> Replies:
        numbers = [n for n in NUMBERS if n != "steps" and (n != "losses" or n in names)]
        extras = set(names) - {"losses"}
        return self._exchange("probe", request, numbers, extras, self.script.probe)

    def train(self, request: TrainRequest) -> Replies:
        return self._exchange("train", request, NUMBERS, self.run.extras, self.script.faults)

    def score(self, models: Tensor, buffers: Tensor) -> Tensor:
        raise AssertionError("no method here has models to score")

    def evaluate(self, server: ServerState) -> Evaluation:
        unseen = set((self.script.unseen or {}).get(server.round, ()))
        seen = [i for i, name in enumerate(self.run.ids) if name not in unseen]
        losses = [float((server.vector - self.targets[i]).square().sum() / 2) for i in seen]
        ids = [self.run.ids[i] for i in seen]
        reasons = {name: "did not reply in time" for name in self.run.ids if name in unseen}
        accuracies = [1 / (1 + loss) for loss in losses]
        return Evaluation.from_fractions(ids, losses, accuracies, None, reasons)

    def _exchange(
        self,
        kind: str,
        request: TrainRequest,
        numbers: Sequence[str],
        extras: Collection[str],
        faults: Mapping[tuple[int, str], Fault] | None,
    ) -> Replies:
        ids = [self.run.ids[i] for i in request.client_indices]
        self.asked.append((kind, request.round, ids))
        replies, absent = [], {}
        for row, index in enumerate(request.client_indices):
            fault = (faults or {}).get((request.round, self.run.ids[index]), lambda r: (r,))
            arrived = fault(self._reply(request, row, index))
            replies += arrived
            if not arrived:
                absent[self.run.ids[index]] = "did not reply in time"
        return stack_replies(
            self.script.order(replies),
            round=request.round,
            n_parameters=self.targets.shape[1],
            numbers=numbers,
            extras=extras,
            has_update=kind == "train",
            limits=ReplyLimits.of(self.run, request.plan, request.models[0].dtype),
            absent=absent,
        )

    def _reply(self, request: TrainRequest, row: int, index: int) -> ClientReply:
        model = request.models[0] if request.models[0].ndim == 1 else request.models[0][row]
        gradient = model - self.targets[index]
        numbers = {
            "losses": float(gradient.square().sum() / 2),
            "sizes": 10.0 * (index + 1),
            "uncertainties": 0.1 * (index + 1),
            "steps": 1.0,
        }
        return ClientReply(
            self.run.ids[index],
            self.run.settings.lr * gradient,
            numbers,
            # One step is the whole of local training.
            {
                "gradients": gradient.to(torch.float64),
                "first_deltas": self.run.settings.lr * gradient,
                "scores": torch.tensor(1 / (1 + numbers["losses"]), dtype=torch.float64),
                "score_sizes": torch.tensor(numbers["sizes"], dtype=torch.float64),
            },
        )


@dataclass
class Played:
    """A scripted run: the log with all records, and the clients with what they were asked."""

    log: RunLog
    clients: ScriptedClients

    @property
    def vector(self) -> Tensor:
        return self.log.server.vector


def play(
    script: Script,
    name: str | Method = "fedavg",
    *,
    n_clients: int = 3,
    rounds: int = 4,
    folder: RunFolder | None = None,
    quorum: int = 0,
    max_update_norm: float | None = None,
    max_update_ratio: float | None = None,
    **settings: Any,
) -> Played:
    """Play a script with the real round, writing rounds down as real runs do."""
    training = TrainingSettings(**{"rounds": rounds, "lr": 0.1, "momentum": 0.0, **settings})
    spec = RunSpec(
        method(name) if isinstance(name, str) else name,
        training,
        quorum=quorum,
        max_update_norm=max_update_norm,
        max_update_ratio=max_update_ratio,
    )
    ids = tuple(f"client-{i + 1}" for i in range(n_clients))
    sizes = tuple(10.0 * (i + 1) for i in range(n_clients))
    run = Run(spec, FederationInfo(ids, sizes, torch.zeros(2, 2), 2))
    targets = torch.tensor([[float(i + 1), -float(i)] for i in range(n_clients)])
    clients = ScriptedClients(run, targets, script)
    log = RunLog(training, ServerState(0, torch.zeros(2), torch.zeros(0), {}), folder)
    try:
        while log.server.round < rounds:
            result = run_round(run, log.server, clients)
            evaluation = clients.evaluate(result.server)
            records = [*result.records, *evaluation.records(result.server.round)]
            log.write(result.server, records)
    finally:
        log.save_checkpoint()
    return Played(log, clients)
