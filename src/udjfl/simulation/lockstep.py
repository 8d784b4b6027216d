"""Several methods round by round in lockstep, so that their training is computed together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import nn

from udjfl.engine import train_together
from udjfl.errors import DivergedError, NotDefinedError, ReportError
from udjfl.simulation.local_clients import (
    LocalClients,
    PreparedTraining,
    evaluate_async,
    score_together,
)
from udjfl.training.clients import Replies
from udjfl.training.evaluation import Evaluation
from udjfl.training.lifecycle import RunLog
from udjfl.training.records import OnProgress, Progress, Record
from udjfl.training.round import OpenRound, close_round, open_round
from udjfl.training.server_state import ServerState
from udjfl.training.state import Run

# Errors that stop one method of several without touching the others.
Failure = DivergedError | ReportError | NotDefinedError
FAILURES = (DivergedError, ReportError, NotDefinedError)


@dataclass
class MethodRun:
    """One method's run: its current server, its log, and the error that stopped it, if any.

    `module` is the network that it trains; its parameters are overwritten.
    """

    run: Run
    module: nn.Module
    clients: LocalClients
    log: RunLog
    notes: list[str]
    on_progress: OnProgress | None = None
    failure: Failure | None = None
    evaluation: Evaluation | None = None  # after the last round, if it ran here
    server: ServerState = field(init=False)

    def __post_init__(self) -> None:
        self.server = self.log.server
        self.label = self.run.method.label

    @property
    def is_running(self) -> bool:
        """Tell whether rounds are left."""
        return self.failure is None and self.server.round < self.run.settings.rounds

    def report(self, stage: str, round: int, records: Sequence[Record] = ()) -> None:
        """Send a progress event."""
        if self.on_progress:
            rounds = self.run.settings.rounds
            seed = self.run.seed
            self.on_progress(Progress(self.label, seed, stage, round, rounds, tuple(records)))

    def fail(self, error: Failure) -> None:
        """Stop, keeping the error without its traceback, which holds the round's tables."""
        self.failure = error.with_traceback(None)


def run_lockstep(method_runs: Sequence[MethodRun]) -> None:
    """Run all rounds that are left. A method that fails keeps its error; the others go on.

    Methods that are behind catch up first: only methods in the same round see the same batches,
    and can share their training.
    """
    for method_run in method_runs:
        if method_run.server.round:
            method_run.report("resumed", method_run.server.round)
    pending: PendingEvaluation | None = None
    try:
        while running := [m for m in method_runs if m.is_running]:
            round = min(m.server.round for m in running)
            pending = _run_round([m for m in running if m.server.round == round], pending)
    finally:  # whatever stopped the next round, this one is complete
        if pending:
            pending.flush()


class PendingEvaluation:
    """A round that is still being evaluated; `flush` waits for that and writes the round down."""

    def __init__(self, rounds: Sequence[tuple[MethodRun, list[Record]]]) -> None:
        self.rounds = rounds
        self.evaluated = [
            (m, records) for m, records in rounds if m.run.is_evaluated(m.server.round)
        ]
        follows = any(m.is_running for m, _ in rounds)
        pairs = [(m.clients, m.server) for m, _ in self.evaluated]
        self.wait = evaluate_async(pairs, training_follows=follows)

    def flush(self) -> None:
        """Write the round down, once."""
        rounds, self.rounds = self.rounds, ()
        if not rounds:
            return
        for (method_run, records), evaluation in zip(self.evaluated, self.wait(), strict=True):
            server = method_run.server
            if server.round == method_run.run.settings.rounds:
                evaluation = method_run.clients.complete(server, evaluation)
            method_run.evaluation = evaluation
            records += evaluation.records(server.round)
        for method_run, records in rounds:
            method_run.log.write(method_run.server, records)
            method_run.report("training", method_run.server.round, records)


@dataclass
class _OpenMethod:
    """One method's round before training."""

    method_run: MethodRun
    opened: OpenRound
    prepared: PreparedTraining | None


def _run_round(
    method_runs: Sequence[MethodRun], pending: PendingEvaluation | None
) -> PendingEvaluation:
    """Run a round of every method. The previous one is written down before this one is closed."""
    opened = _open(method_runs)
    replies = _train(opened)
    if pending:
        pending.flush()
    rounds = []
    for part, reply in zip(opened, replies, strict=True):
        m = part.method_run
        try:
            result = close_round(m.run, m.server, m.clients, part.opened, reply)
        except FAILURES as error:
            m.fail(error)
            continue
        m.server = result.server
        rounds.append((m, result.records))
    return PendingEvaluation(rounds)


def _open(method_runs: Sequence[MethodRun]) -> list[_OpenMethod]:
    """Open a round of every method, and prepare its training."""
    started: list[tuple[MethodRun, OpenRound]] = []
    for m in method_runs:
        try:
            started.append((m, open_round(m.run, m.server, m.clients)))
        except FAILURES as error:
            m.fail(error)
    requests = [(m.clients, o.request) for m, o in started if o.request is not None]
    scores = iter(score_together(requests))
    opened = []
    for m, its_round in started:
        request = its_round.request
        try:
            prepared = None if request is None else m.clients.prepare(request, next(scores))
            opened.append(_OpenMethod(m, its_round, prepared))
        except FAILURES as error:
            m.fail(error)
    return opened


def _train(opened: Sequence[_OpenMethod]) -> list[Replies]:
    """Train the clients of all methods together."""
    jobs = [
        (part.method_run.clients.engine, job)
        for part in opened
        if part.prepared is not None
        for job in part.prepared.jobs
    ]
    results = iter(train_together(jobs))
    replies = []
    for part in opened:
        request, prepared = part.opened.request, part.prepared
        if request is None or prepared is None:
            replies.append(Replies())
            continue
        own = [next(results) for _ in prepared.jobs]
        replies.append(part.method_run.clients.read(request, prepared, own))
    return replies
