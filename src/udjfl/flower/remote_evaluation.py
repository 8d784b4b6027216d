"""Evaluation by clients on other machines, each on its own test part.

The model of a round is evaluated along with the next round's training: clients get both requests
in one message. Those that do not train in that round get the other request alone, at the same
time. After the last round all are asked apart.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from udjfl.errors import ReportError
from udjfl.flower.errors import shorten
from udjfl.flower.exchange import Exchange, Outcome, Request
from udjfl.flower.messages import (
    EVALUATE,
    EVALUATE_ROUND,
    EVALUATED,
    EVALUATION_ERROR,
    Reply,
    read_judged,
)
from udjfl.flower.server_evaluation import ServerEvaluation
from udjfl.flower.service import fact_limits, read_fact, served_tensors
from udjfl.flower.tensors import TensorLimit
from udjfl.tasks import Score
from udjfl.training.clients import TrainRequest
from udjfl.training.evaluation import Evaluation
from udjfl.training.judging import JudgedClient, join_judged
from udjfl.training.records import Record
from udjfl.training.server_state import ServerState
from udjfl.training.serving import serve
from udjfl.training.state import Run

NOT_CONNECTED = "is not connected"


@dataclass(frozen=True)
class ReportedScores:
    """Loss, accuracy (0 to 1) and the score that is judged, as a client reports them."""

    loss: float
    accuracy: float
    judged: JudgedClient | None = None


Scores = dict[str, ReportedScores]


class RemoteEvaluation:
    """Evaluates the server's model, or what clients are served, through messages."""

    def __init__(self, run: Run, exchange: Exchange, server_evaluation: ServerEvaluation) -> None:
        self.run, self.exchange, self.server_evaluation = run, exchange, server_evaluation
        self._postponed: ServerState | None = None
        self._done: tuple[int, Evaluation] | None = None

    def evaluate(self, server: ServerState) -> Evaluation:
        """Let each connected client evaluate what it is served, now."""
        (outcome,) = self.exchange.send(self._request(server, list(self.exchange.registry.nodes)))
        errors = dict(outcome.errors)
        facts = self._service_facts(outcome.replies, server.round, errors)
        scores = self._scores(outcome.replies, server, errors)
        evaluation = self._evaluation(server, scores, outcome.absent, errors)
        if facts:
            evaluation, served = self._serve(server, evaluation, facts)
            scores = {name: own for name, own in scores.items() if name not in served} | {
                name: own for name, own in served.items() if own is not None
            }
        if not self._is_judged(server.round):
            return evaluation
        judged = {name: own.judged for name, own in scores.items() if own.judged is not None}
        shared = self.server_evaluation.judge(server, self._score)
        return replace(evaluation, judged=join_judged(judged, shared))

    def postpone(self, server: ServerState) -> None:
        """Evaluate a model along with the next round's training."""
        self._postponed = server

    def train_and_evaluate(self, training: Request, request: TrainRequest) -> Outcome:
        """Send a round's training request, along with the evaluation that was postponed."""
        server, self._postponed = self._postponed, None
        if server is None:
            return self.exchange.send(training)[0]
        others = [name for name in self.exchange.registry.nodes if name not in training.clients]
        joined = self._join(training, request, server)
        trained, evaluated = self.exchange.send(joined, self._request(server, others))
        errors = dict(evaluated.errors)  # those of training are the round's
        scores = self._scores([*trained.replies, *evaluated.replies], server, errors)
        absent = trained.absent | evaluated.absent
        evaluation = self._evaluation(server, scores, absent, trained.errors | errors)
        self._done = server.round, evaluation
        return trained

    def take_records(self) -> list[Record]:
        """Return the records of an evaluation that was postponed, if it is there by now.

        One that was not sent along, because there was no training, is asked for apart.
        """
        if self._postponed is not None:
            server, self._postponed = self._postponed, None
            self._done = server.round, self.evaluate(server)
        if self._done is None:
            return []
        (round, evaluation), self._done = self._done, None
        return evaluation.records(round)

    @functools.cached_property
    def _score(self) -> Score:
        """The score that is judged."""
        return self.run.spec.task(self.run.federation).score

    def _is_judged(self, round: int) -> bool:
        """Tell whether clients report another score than accuracy: after the last round."""
        return round == self.run.settings.rounds and not self._score.kind.is_share

    def _request(self, server: ServerState, clients: Sequence[str]) -> Request:
        shared, own = self._tensors(server)
        limits = self._fact_limits(server.round)
        return Request(EVALUATE, server.round, clients, shared, own, allowed=limits)

    def _join(self, training: Request, request: TrainRequest, server: ServerState) -> Request:
        """Add to a training request what is evaluated, unless it is the model that is trained."""
        values = {**training.values, EVALUATE_ROUND: server.round}
        shared, own = self._tensors(server)
        model = shared.get("model")
        if model is not None and len(request.models) == 1 and request.models[0].ndim == 1:
            same_model = torch.equal(request.models[0], model)
            if same_model and torch.equal(request.buffers, server.buffers):
                return replace(training, values=values)

        def both(index: int) -> dict[str, Tensor]:
            return {**training.own(index), **_rename(own(index))}

        return replace(
            training, shared={**training.shared, **_rename(shared)}, own=both, values=values
        )

    def _tensors(
        self, server: ServerState
    ) -> tuple[dict[str, Tensor], Callable[[int], dict[str, Tensor]]]:
        """Return the tensors that all clients get to evaluate, and those that one client gets."""
        served = self.run.method.served(server.state, server.vector)
        buffers = {"buffers": server.buffers} if len(server.buffers) else {}
        if served is None:
            return {"model": server.vector, **buffers}, lambda _: {}

        def own(index: int) -> dict[str, Tensor]:
            used = served.shares[index] > 0
            return {"model": served.models[used], "shares": served.shares[index][used]}

        return buffers, own

    def _scores(
        self, replies: Sequence[Reply], server: ServerState, errors: dict[str, ReportError]
    ) -> Scores:
        """Return the scores by client; unusable ones are added to the errors."""
        scores: Scores = {}
        round, dtype = server.round, server.vector.dtype
        is_regression = self.run.federation.labels_are_numbers
        for reply in replies:
            try:
                loss, accuracy = _read_scores(reply, round, dtype, is_regression)
                judged = read_judged(reply, round) if self._is_judged(round) else None
                scores[reply.id] = ReportedScores(loss, accuracy, judged)
            except ReportError as error:
                errors[reply.id] = error
        if errors and self.run.settings.on_bad_report == "fail":
            raise next(iter(errors.values()))
        return scores

    def _evaluation(
        self,
        server: ServerState,
        scores: Scores,
        absent: Mapping[str, str],
        errors: Mapping[str, ReportError],
    ) -> Evaluation:
        ids = self.run.ids
        problems = {client: str(error) for client, error in errors.items()}
        reasons = {**dict.fromkeys(ids, NOT_CONNECTED), **absent, **problems}
        evaluated = [name for name in ids if name in scores]
        return Evaluation.from_fractions(
            evaluated,
            [scores[name].loss for name in evaluated],
            [scores[name].accuracy for name in evaluated],
            self.server_evaluation.evaluate(server),
            {name: reasons[name] for name in ids if name not in scores},
            self.server_evaluation.no_global_reason,
        )

    def _service_facts(
        self, replies: Sequence[Reply], round: int, errors: dict[str, ReportError]
    ) -> dict[str, Tensor]:
        """Return what clients report for the service after the last round, empty before.

        Unusable ones are added to the errors.
        """
        service, facts = self.run.spec.service, {}
        if service is None or not self._fact_limits(round):
            return {}
        for reply in replies:
            try:
                facts[reply.id] = read_fact(service, self.run.federation.n_classes, reply, round)
            except ReportError as error:
                errors[reply.id] = error
        return facts

    def _fact_limits(self, round: int) -> dict[str, TensorLimit]:
        """Return the tensors that clients report for the service: none before the last round."""
        service = self.run.spec.service
        if service is None or round < self.run.settings.rounds:
            return {}
        return fact_limits(service, self.run.federation.n_classes)

    def _serve(
        self, server: ServerState, evaluation: Evaluation, facts: Mapping[str, Tensor]
    ) -> tuple[Evaluation, dict[str, ReportedScores | None]]:
        """Let the clients that are served something else than the common model evaluate that.

        Return also their scores; None of those without one.
        """
        serving = serve(self.run, server, facts, self.exchange.readings)
        buffers = {"buffers": server.buffers} if len(server.buffers) else {}

        def own(index: int) -> dict[str, Tensor]:
            return served_tensors(serving, self.run.ids[index], index)

        (outcome,) = self.exchange.send(
            Request(EVALUATE, server.round, serving.changed, buffers, own)
        )
        scores = self._scores(outcome.replies, server, dict(outcome.errors))
        pairs = {name: (own.loss, own.accuracy) for name, own in scores.items()}
        reported = {name: scores.get(name) for name in serving.changed}
        return evaluation.with_served(serving, pairs), reported


def _rename(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors to evaluate under names beside those to train with."""
    return {EVALUATED + name: value for name, value in tensors.items()}


def _read_scores(
    reply: Reply, round: int, dtype: torch.dtype, is_regression: bool
) -> tuple[float, float]:
    """Read loss and accuracy, or of a regression R2, which may be negative."""
    problem = reply.values.get(EVALUATION_ERROR)
    if problem is not None:
        raise ReportError(reply.id, "reply", f"is an error: {shorten(str(problem))}", round)
    loss, accuracy = reply.numbers.get("test-loss"), reply.numbers.get("test-accuracy")
    least = -torch.finfo(dtype).max if is_regression else 0
    if loss is None or accuracy is None or not least <= accuracy <= 1:
        possible = "at most 1" if is_regression else "from 0 to 1"
        raise ReportError(reply.id, "test accuracy", f"is {accuracy}; it must be {possible}", round)
    # A model that diverged has a loss that is NaN or infinite.
    if loss < 0 or torch.finfo(dtype).max < loss < math.inf:
        problem = f"is {loss:.4g}; it must be from 0 to {torch.finfo(dtype).max:.4g}"
        raise ReportError(reply.id, "test loss", problem, round)
    return loss, accuracy
