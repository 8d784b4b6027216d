"""Clients on other machines, reached through messages."""

import functools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from flwr.app import Array, Message
from torch import Tensor

from udjfl.errors import ReportError
from udjfl.flower.errors import absence_reason, shorten
from udjfl.flower.messages import (
    EVALUATE,
    PROBE,
    TRAIN,
    Reply,
    make_request,
    own_plan_tensors,
    plan_values,
    read_judged,
    read_message,
    required_numbers,
    send_and_receive,
    shared_plan_tensors,
    write_spec,
)
from udjfl.flower.registration import ClientRegistry
from udjfl.flower.server_evaluation import ServerEvaluation
from udjfl.flower.service import fact_limits, read_fact, served_tensors
from udjfl.flower.tensors import TensorLimit, allowed_tensors, to_array
from udjfl.methods import SERVER_SIDE
from udjfl.methods.reports import EXTRAS
from udjfl.tasks import Score
from udjfl.training.clients import Attendance, Replies, TrainRequest
from udjfl.training.evaluation import Evaluation
from udjfl.training.judging import JudgedClient, join_judged
from udjfl.training.limits import Limits
from udjfl.training.replies import stack_replies
from udjfl.training.serving import serve
from udjfl.training.state import Run, ServerState


@dataclass(frozen=True)
class ReportedScores:
    """Loss, accuracy (0 to 1) and the score that is judged, as a client reports them."""

    loss: float
    accuracy: float
    judged: JudgedClient | None = None


LATE = "did not reply in time"
NOT_CONNECTED = "is not connected"


class RemoteClients:
    """Clients that are reached through Flower's messages: see `training.clients.Clients`."""

    def __init__(
        self,
        run: Run,
        registry: ClientRegistry,
        server_evaluation: ServerEvaluation,
        n_buffers: int,
        timeout: float,
    ) -> None:
        self.run, self.registry, self.server_evaluation = run, registry, server_evaluation
        self.n_buffers, self.timeout = n_buffers, timeout
        self.numbers = required_numbers(run.spec, bool(n_buffers))
        self._spec_text = write_spec(run.spec)
        sizes = zip(run.ids, run.federation.sizes, strict=True)
        self._sizes = {client: size for client, size in sizes if not math.isnan(size)}

    def reach(self, round: int, client_indices: Sequence[int]) -> Attendance:
        """Register nodes that are new or back, and find out which clients are connected."""
        self.registry.round = round
        self.registry.register_new()
        ids, nodes = self.run.ids, self.registry.nodes
        excluded = self.registry.take_excluded()
        away = [ids[i] for i in client_indices if ids[i] not in nodes and ids[i] not in excluded]
        present = [i for i in client_indices if ids[i] in nodes]
        return Attendance(present, dict.fromkeys(away, NOT_CONNECTED), excluded)

    def probe(self, request: TrainRequest, names: Collection[str]) -> Replies:
        """Ask clients for quantities at the models in the request."""
        numbers = (self.numbers - {"losses", "steps"}) | ({"losses"} & set(names))
        return self._exchange(PROBE, request, numbers, set(names) - {"losses"})

    def train(self, request: TrainRequest) -> Replies:
        """Let clients train for one round."""
        extras = self.run.extras - SERVER_SIDE
        numbers = self.numbers - ({"losses"} if "losses_of_each" in extras else set())
        return self._exchange(TRAIN, request, numbers, extras)

    def score(self, models: Tensor, buffers: Tensor) -> Tensor:
        """Return the models' accuracies on the server's validation data."""
        return self.server_evaluation.score(models, buffers)

    def evaluate(self, server: ServerState) -> Evaluation:
        """Let each connected client evaluate what it is served, on its own test part."""
        ids, round = self.run.ids, server.round
        replies, absent, errors = self._send(
            EVALUATE,
            round,
            list(self.registry.nodes),
            *self._evaluation_tensors(server),
            allowed=self._fact_limits(round),
        )
        facts = self._service_facts(replies, round, errors)
        scores = self._scores(replies, round, errors, server.vector.dtype)
        problems = {client: str(error) for client, error in errors.items()}
        reasons = dict.fromkeys(ids, NOT_CONNECTED) | absent | problems
        evaluated = [name for name in ids if name in scores]
        evaluation = Evaluation.from_fractions(
            evaluated,
            [scores[name].loss for name in evaluated],
            [scores[name].accuracy for name in evaluated],
            self.server_evaluation.evaluate(server),
            {name: reasons[name] for name in ids if name not in scores},
            self.server_evaluation.no_global_reason,
        )
        judged = {name: scores[name].judged for name in evaluated}
        if facts:
            evaluation, own = self._serve(server, evaluation, facts)
            judged |= own
        known = {name: value for name, value in judged.items() if value is not None}
        if self._is_judged(round):
            shared = self.server_evaluation.judge(server, self._score)
            evaluation = replace(evaluation, judged=join_judged(known, shared))
        return evaluation

    @functools.cached_property
    def _score(self) -> Score:
        """The score that is judged."""
        return self.run.spec.task(self.run.federation).score

    def _is_judged(self, round: int) -> bool:
        """Tell whether clients report another score than accuracy: after the last round."""
        return round == self.run.settings.rounds and not self._score.kind.is_share

    def _scores(
        self,
        replies: Sequence[Reply],
        round: int,
        errors: dict[str, ReportError],
        dtype: torch.dtype,
    ) -> dict[str, ReportedScores]:
        """Return the scores by client; unusable ones are added to the errors."""
        scores: dict[str, ReportedScores] = {}
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
    ) -> tuple[Evaluation, dict[str, JudgedClient | None]]:
        """Let the clients that are served something else than the common model evaluate that.

        Return also the scores of these clients that are judged; None of those without one.
        """
        serving = serve(self.run, server, facts, self._readings)
        buffers = {"buffers": server.buffers} if len(server.buffers) else {}

        def own(index: int) -> dict[str, Tensor]:
            return served_tensors(serving, self.run.ids[index], index)

        replies, _, errors = self._send(EVALUATE, server.round, serving.changed, buffers, own)
        scores = self._scores(replies, server.round, errors, server.vector.dtype)
        pairs = {name: (own.loss, own.accuracy) for name, own in scores.items()}
        judged = {name: own.judged for name, own in scores.items()}
        missing = dict.fromkeys(name for name in serving.changed if name not in scores)
        return evaluation.with_served(serving, pairs), {**missing, **judged}

    def _evaluation_tensors(
        self, server: ServerState
    ) -> tuple[dict[str, Tensor], Callable[[int], dict[str, Tensor]]]:
        """Return the tensors that all clients get, and those that one client gets."""
        served = self.run.method.served(server.state, server.vector)
        buffers = {"buffers": server.buffers} if len(server.buffers) else {}
        if served is None:
            return {"model": server.vector, **buffers}, lambda _: {}

        def own(index: int) -> dict[str, Tensor]:
            used = served.shares[index] > 0
            return {"model": served.models[used], "shares": served.shares[index][used]}

        return buffers, own

    def _exchange(
        self, kind: str, request: TrainRequest, numbers: Collection[str], extras: Collection[str]
    ) -> Replies:
        """Send a request with its models and its plan; return the replies as columns."""
        model, plan, ids = request.models[0], request.plan, self.run.ids
        shared = shared_plan_tensors(plan)
        if len(request.buffers):
            shared["buffers"] = request.buffers
        if model.ndim == 1:
            shared["model"] = torch.cat(list(request.models))
        rows = {index: row for row, index in enumerate(request.client_indices)}

        def own(index: int) -> dict[str, Tensor]:
            own_model = {"model": model[rows[index]]} if model.ndim == 2 else {}
            return {**own_plan_tensors(plan, index), **own_model}

        n_parameters = model.shape[-1] * len(request.models)
        n_buffers = self.n_buffers if kind == TRAIN else None
        sizes = {name: self._extra_size(name, n_parameters) for name in extras}
        replies, absent, errors = self._send(
            kind,
            request.round,
            [ids[index] for index in rows],
            shared,
            own,
            plan_values(plan),
            allowed_tensors(n_parameters, model.dtype, n_buffers, sizes),
        )
        return stack_replies(
            [
                reply.to_client_reply(self._known_numbers(reply.id), extras, model.dtype)
                for reply in replies
            ],
            round=request.round,
            n_parameters=n_parameters,
            numbers=numbers,
            extras=extras,
            n_buffers=n_buffers or 0,
            has_update=kind == TRAIN,
            limits=Limits.of(self.run, plan, model.dtype),
            absent=absent,
            errors=errors,
        )

    def _extra_size(self, name: str, n_parameters: int) -> int:
        """Return the most numbers that an extra of one client has."""
        axes = EXTRAS.get(name, "").partition("]")[0]
        return {"[N": 1, "[N, M": self.run.method.n_models}.get(axes, n_parameters)

    @property
    def _readings(self) -> dict[str, float]:
        """The uncertainties reported so far, as methods read them."""
        known = self.registry.known_uncertainty(tuple(self.registry.uncertainties))
        return known.readings

    def _known_numbers(self, client: str) -> dict[str, float]:
        """Return the size and the uncertainty that a client reported when it registered."""
        columns = {"sizes": self._sizes, "uncertainties": self._readings}
        return {name: values[client] for name, values in columns.items() if client in values}

    def _send(
        self,
        kind: str,
        round: int,
        clients: Sequence[str],
        shared: Mapping[str, Tensor],
        own: Callable[[int], dict[str, Tensor]],
        values: Mapping[str, float | bool] | None = None,
        allowed: Mapping[str, TensorLimit] | None = None,
    ) -> tuple[list[Reply], dict[str, str], dict[str, ReportError]]:
        """Send clients a message; return readable replies, reasons of absence, and errors.

        All get the tensors of `shared`, and each those that `own` returns for its index. Clients
        without a reply are dropped from the registry. Replies may contain the tensors in `allowed`.
        """
        arrays: dict[str, Array] = {name: to_array(tensor) for name, tensor in shared.items()}
        nodes = {node: name for name, node in self.registry.nodes.items() if name in clients}
        contents = {
            node: make_request(
                self._spec_text,
                {**arrays, **own(self.run.ids.index(client))},
                {"round": round, **(values or {})},
            )
            for node, client in nodes.items()
        }
        messages = send_and_receive(self.registry.grid, kind, contents, self.timeout)
        received = [(nodes[node], message) for node, message in messages if node in nodes]
        return self._read(received, clients, round, allowed or {})

    def _read(
        self,
        received: Sequence[tuple[str, Message]],
        clients: Sequence[str],
        round: int,
        allowed: Mapping[str, TensorLimit],
    ) -> tuple[list[Reply], dict[str, str], dict[str, ReportError]]:
        absent = dict.fromkeys(clients, LATE)
        errors: dict[str, ReportError] = {}
        replies: list[Reply] = []
        for client, message in sorted(received, key=lambda pair: self.run.ids.index(pair[0])):
            reason = absence_reason(message)
            if reason is not None:
                absent[client] = reason
                continue
            absent.pop(client, None)
            try:
                replies.append(read_reply(message, client, round, allowed))
            except ReportError as error:
                errors[client] = error
        for client in absent:
            self.registry.drop(client)
        return replies, absent, errors


def read_reply(
    message: Message, client: str, round: int, allowed: Mapping[str, TensorLimit]
) -> Reply:
    """Read a reply, and check that it is this client's and of this round."""
    reply = read_message(message, client, round=round, allowed=allowed)
    if reply.id != client:
        problem = f"is {reply.id!r} in its reply, and was {client!r} before; a client keeps its id"
        raise ReportError(client, "id", problem, round)
    found = reply.values.get("round")
    if found != round:
        problem = f"is {shorten(repr(found))} in its reply; the server is in round {round}"
        raise ReportError(client, "round", problem, round)
    return reply


def _read_scores(
    reply: Reply, round: int, dtype: torch.dtype, is_regression: bool
) -> tuple[float, float]:
    """Read loss and accuracy, or of a regression R2, which may be negative."""
    loss, accuracy = reply.numbers.get("test-loss"), reply.numbers.get("test-accuracy")
    least = -torch.finfo(dtype).max if is_regression else 0
    if loss is None or accuracy is None or not least <= accuracy <= 1:
        possible = "at most 1" if is_regression else "from 0 to 1"
        raise ReportError(reply.id, "test accuracy", f"is {accuracy}; it must be {possible}", round)
    if torch.finfo(dtype).max < loss < math.inf:
        problem = f"is {loss:.4g}; it may be at most {torch.finfo(dtype).max:.4g}"
        raise ReportError(reply.id, "test loss", problem, round)
    return loss, accuracy
