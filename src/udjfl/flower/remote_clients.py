"""Clients on other machines, reached through messages."""

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from udjfl.flower.exchange import Exchange, Request
from udjfl.flower.messages import (
    PROBE,
    TRAIN,
    own_plan_tensors,
    plan_values,
    required_numbers,
    shared_plan_tensors,
)
from udjfl.flower.remote_evaluation import NOT_CONNECTED, RemoteEvaluation
from udjfl.flower.server_evaluation import ServerEvaluation
from udjfl.flower.tensors import allowed_tensors
from udjfl.methods import SERVER_SIDE
from udjfl.methods.reports import EXTRAS
from udjfl.training.clients import Attendance, Replies, TrainRequest
from udjfl.training.evaluation import Evaluation
from udjfl.training.limits import ReplyLimits
from udjfl.training.replies import stack_replies
from udjfl.training.server_state import ServerState
from udjfl.training.state import Run


class RemoteClients:
    """Clients that are reached through Flower's messages: see `training.clients.Clients`."""

    def __init__(
        self, run: Run, exchange: Exchange, server_evaluation: ServerEvaluation, n_buffers: int
    ) -> None:
        self.run, self.exchange, self.registry = run, exchange, exchange.registry
        self.server_evaluation, self.n_buffers = server_evaluation, n_buffers
        self.evaluation = RemoteEvaluation(run, exchange, server_evaluation)
        self.numbers = required_numbers(run.spec, bool(n_buffers))

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
        return self.evaluation.evaluate(server)

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
        sent = Request(
            kind,
            request.round,
            [ids[index] for index in rows],
            shared,
            own,
            plan_values(plan),
            allowed_tensors(n_parameters, model.dtype, n_buffers, sizes),
        )
        if kind == TRAIN:
            outcome = self.evaluation.train_and_evaluate(sent, request)
        else:
            (outcome,) = self.exchange.send(sent)
        known = self.exchange.known_numbers
        return stack_replies(
            [r.to_client_reply(known(r.id), extras, model.dtype) for r in outcome.replies],
            round=request.round,
            n_parameters=n_parameters,
            numbers=numbers,
            extras=extras,
            n_buffers=n_buffers or 0,
            has_update=kind == TRAIN,
            limits=ReplyLimits.of(self.run, plan, model.dtype),
            absent=outcome.absent,
            errors=outcome.errors,
        )

    def _extra_size(self, name: str, n_parameters: int) -> int:
        """Return the most numbers that an extra of one client has."""
        axes = EXTRAS.get(name, "").partition("]")[0]
        return {"[N": 1, "[N, M": self.run.method.n_models}.get(axes, n_parameters)
