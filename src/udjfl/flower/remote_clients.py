"""Clients on other machines, reached through messages."""

from collections.abc import Callable, Collection, Mapping, Sequence

import torch
from flwr.app import Array, Message
from torch import Tensor

from udjfl.errors import ReportError
from udjfl.flower.errors import absence_reason, error_text
from udjfl.flower.messages import (
    EVALUATE,
    PROBE,
    TRAIN,
    Reply,
    make_request,
    plan_tensors,
    plan_values,
    required_numbers,
    send_and_receive,
    to_array,
    write_spec,
)
from udjfl.flower.registration import ClientRegistry
from udjfl.flower.server_evaluation import ServerEvaluation
from udjfl.methods import SERVER_SIDE
from udjfl.training.clients import Attendance, Replies, TrainRequest
from udjfl.training.evaluation import Evaluation
from udjfl.training.replies import ClientReply, stack_replies
from udjfl.training.state import Run, ServerState

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
        rows, absent, errors = self._exchange(PROBE, request, {}, lambda _: {})
        numbers = (self.numbers - {"losses", "steps"}) | ({"losses"} & set(names))
        return stack_replies(
            self._client_replies(rows, set(names) - {"losses"}, request.models[0].dtype),
            round=request.round,
            n_parameters=_count(request),
            has_update=False,
            numbers=numbers,
            extras=set(names) - {"losses"},
            absent=absent,
            errors=errors,
        )

    def train(self, request: TrainRequest) -> Replies:
        """Let clients train for one round."""
        plan = request.plan
        shared = {} if plan.pull is None else {"pull": plan.pull}
        rows, absent, errors = self._exchange(
            TRAIN, request, shared, lambda index: plan_tensors(plan, index), plan_values(plan)
        )
        extras = self.run.extras - SERVER_SIDE
        model = request.models[0]
        return stack_replies(
            self._client_replies(rows, extras, model.dtype),
            round=request.round,
            n_parameters=_count(request),
            numbers=self.numbers - ({"losses"} if "losses_of_each" in extras else set()),
            extras=extras,
            n_buffers=self.n_buffers,
            max_update_norm=self.run.spec.max_update_norm,
            absent=absent,
            errors=errors,
        )

    def score(self, models: Tensor, buffers: Tensor) -> Tensor:
        """Return the models' accuracies on the server's validation data."""
        return self.server_evaluation.score(models, buffers)

    def evaluate(self, server: ServerState) -> Evaluation:
        """Let each connected client evaluate what it is served, on its own test part."""
        ids, nodes = self.run.ids, dict(self.registry.nodes)
        replies = self._send(EVALUATE, server.round, *self._evaluation_tensors(server), nodes)
        reasons = dict.fromkeys(ids, NOT_CONNECTED) | dict.fromkeys(nodes, LATE)
        scores: dict[str, tuple[float, float]] = {}
        arrived: set[str] = set()
        for client, message in replies:
            reason = absence_reason(message)
            if reason is not None:
                reasons[client] = reason
                continue
            arrived.add(client)
            try:
                scores[client] = _score(read_reply(message, client, server.round), server.round)
            except ReportError as error:
                if self.run.settings.on_bad_report == "fail":
                    raise
                reasons[client] = str(error)
        for client in set(nodes) - arrived:
            self.registry.drop(client)
        evaluated = [name for name in ids if name in scores]
        return Evaluation.from_fractions(
            evaluated,
            [scores[name][0] for name in evaluated],
            [scores[name][1] for name in evaluated],
            self.server_evaluation.evaluate(server),
            {name: reasons[name] for name in ids if name not in scores},
            self.server_evaluation.no_global_reason,
        )

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
        self,
        kind: str,
        request: TrainRequest,
        shared: Mapping[str, Tensor],
        own: Callable[[int], dict[str, Tensor]],
        values: Mapping[str, float | bool] | None = None,
    ) -> tuple[list[Reply], dict[str, str], dict[str, ReportError]]:
        """Send a request with its models; return readable replies, reasons of absence, errors."""
        model = request.models[0]
        everybody = dict(shared)
        if len(request.buffers):
            everybody["buffers"] = request.buffers
        if model.ndim == 1:
            everybody["model"] = torch.cat(list(request.models))
        rows = {index: row for row, index in enumerate(request.client_indices)}

        def tensors(index: int) -> dict[str, Tensor]:
            return {**own(index), **({"model": model[rows[index]]} if model.ndim == 2 else {})}

        ids = self.run.ids
        nodes = {ids[i]: self.registry.nodes[ids[i]] for i in rows if ids[i] in self.registry.nodes}
        messages = self._send(kind, request.round, everybody, tensors, nodes, values)
        absent = dict.fromkeys((ids[index] for index in rows), LATE)
        errors: dict[str, ReportError] = {}
        replies: list[Reply] = []
        for client, message in sorted(messages, key=lambda pair: ids.index(pair[0])):
            reason = absence_reason(message)
            if reason is not None:
                absent[client] = reason
                continue
            absent.pop(client, None)
            try:
                replies.append(read_reply(message, client, request.round))
            except ReportError as error:
                errors[client] = error
        for client in absent:
            self.registry.drop(client)
        return replies, absent, errors

    def _send(
        self,
        kind: str,
        round: int,
        shared: Mapping[str, Tensor],
        own: Callable[[int], dict[str, Tensor]],
        nodes: Mapping[str, int],
        values: Mapping[str, float | bool] | None = None,
    ) -> list[tuple[str, Message]]:
        """Send a message to each of these clients; return the replies with their clients."""
        arrays: dict[str, Array] = {name: to_array(tensor) for name, tensor in shared.items()}
        contents = {
            node: make_request(
                self._spec_text,
                {**arrays, **own(self.run.ids.index(client))},
                {"round": round, **(values or {})},
            )
            for client, node in nodes.items()
        }
        clients = {node: client for client, node in nodes.items()}
        replies = send_and_receive(self.registry.grid, kind, contents, self.timeout)
        return [(clients[node], message) for node, message in replies if node in clients]

    def _client_replies(
        self, replies: Sequence[Reply], extras: Collection[str], dtype: torch.dtype
    ) -> list[ClientReply]:
        """Add the sizes and uncertainties that clients reported when they registered."""
        sizes = dict(zip(self.run.ids, self.run.federation.sizes, strict=True))
        rows = []
        for reply in replies:
            known: dict[str, float] = {}
            if sizes[reply.id] == sizes[reply.id]:
                known["sizes"] = sizes[reply.id]
            if reply.id in self.registry.uncertainties:
                known["uncertainties"] = self.registry.uncertainties[reply.id]
            rows.append(reply.to_client_reply(known, extras, dtype))
        return rows


def read_reply(message: Message, client: str, round: int) -> Reply:
    """Read a reply, and check that it is this client's and of this round."""
    if message.has_error():
        raise ReportError(client, "reply", error_text(message), round)
    reply = Reply.read(message.content, client, round)
    if reply.id != client:
        problem = f"is {reply.id!r} in its reply, and was {client!r} before; a client keeps its id"
        raise ReportError(client, "id", problem, round)
    if reply.values.get("round") != round:
        found = reply.values.get("round")
        problem = f"is {found!r} in its reply; the server is in round {round}"
        raise ReportError(client, "round", problem, round)
    return reply


def _count(request: TrainRequest) -> int:
    """Return the number of parameters that a client trains."""
    return request.models[0].shape[-1] * len(request.models)


def _score(reply: Reply, round: int) -> tuple[float, float]:
    loss, accuracy = reply.numbers.get("test-loss"), reply.numbers.get("test-accuracy")
    if loss is None or accuracy is None or not 0 <= accuracy <= 1:
        problem = f"is {accuracy}; it must be from 0 to 1"
        raise ReportError(reply.id, "test accuracy", problem, round)
    return loss, accuracy
