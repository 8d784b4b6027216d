"""Flower without a network: a grid whose nodes are apps in this process, and ways to break them.

The tests' imports from `udjfl.flower` are collected here where possible.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch
from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity
from small_runs import make_federation

import udjfl
from udjfl import Examples, Federation, TrainingSettings
from udjfl.flower import ClientData, MethodStrategy, ServerData, client_app
from udjfl.flower.tensors import make_records, pack, tensors_of, values_of
from udjfl.methods import Method
from udjfl.methods import method as build_method

# Messages contain the ids of the run and the task; outside a run Flower refuses to make them.
TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1

FAST = {"rounds": 3, "hidden": 5, "uncertainty_epochs": 2, "lr": 0.1, "batch_size": 8}
FIRST_NODE = 101
Tamper = Callable[[Message, Message], Message | None]


class InProcessGrid(Grid):
    """A grid of nodes 101, 102, ..., one for each client of a federation.

    `tamper(message, reply)` may return another reply, or None to lose it.
    """

    def __init__(
        self, federation: Federation, model: Any = "mlp", tamper: Tamper | None = None
    ) -> None:
        self.tamper = tamper
        self.apps: dict[int, ClientApp] = {}
        self.contexts: dict[int, Context] = {}
        self.replies: dict[str, Message] = {}
        # Message type, node, content and reply of everything that was sent.
        self.log: list[tuple[str, int, RecordDict, Message | None]] = []
        self.pulls = 0
        for index, client in enumerate(federation.clients):
            self.add(FIRST_NODE + index, client_data(federation, client.id), model)

    def add(self, node: int, data: ClientData, model: Any = "mlp") -> None:
        """Let a node join, or come back as a new process."""
        self.apps[node] = client_app(model, lambda context: data)
        self.contexts[node] = Context(1, node, {}, RecordDict(), {})

    def remove(self, node: int) -> None:
        del self.apps[node]

    def set_run(self, run: Any) -> None: ...

    @property
    def run(self) -> Any:
        return None

    def create_message(self, *args: Any, **others: Any) -> Message:
        raise NotImplementedError

    def get_node_ids(self) -> list[int]:
        return sorted(self.apps, reverse=True)  # the order is arbitrary

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        names = []
        for message in messages:
            names.append(f"message-{len(self.log)}-{len(self.replies)}")
            message.metadata.__dict__["_message_id"] = names[-1]
            node = message.metadata.dst_node_id
            reply = self._reply(message) if node in self.apps else None
            if reply is not None and self.tamper:
                reply = self.tamper(message, reply)
            self.log.append((message.metadata.message_type, node, message.content, reply))
            if reply is not None:
                self.replies[names[-1]] = reply
        return names

    def _reply(self, message: Message) -> Message:
        node = message.metadata.dst_node_id
        try:
            return self.apps[node](message, self.contexts[node])
        except Exception as error:  # as a SuperNode does
            return Message(
                Error(2, f"Traceback\n{type(error).__name__}: {error}"), reply_to=message
            )

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        self.pulls += 1
        return [self.replies.pop(name) for name in list(message_ids) if name in self.replies]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        return self.pull_messages(self.push_messages(list(messages)))

    def sent(self, kind: str) -> list[tuple[int, RecordDict, Message | None]]:
        """Return node, content and reply of every message of one type."""
        return [(node, content, reply) for type_, node, content, reply in self.log if type_ == kind]


def with_tensors(content: RecordDict, tensors: Mapping[str, torch.Tensor] | bytes) -> RecordDict:
    """Return a message with other tensors."""
    packed = tensors if isinstance(tensors, bytes) else pack(tensors)
    return RecordDict({**content, **make_records(values_of(content), packed)})


def client_data(federation: Federation, client_id: str, **changes: Any) -> ClientData:
    """Return the data of one client of a federation."""
    client = next(client for client in federation.clients if client.id == client_id)
    defaults = {
        "id": client.id,
        "train": client.train,
        "test": client.test,
        "n_classes": federation.n_classes,
        "preprocessing": federation.preprocessing,
    }
    return ClientData(**{**defaults, **changes}, allow_duplicates=True)


def server_data(federation: Federation) -> ServerData:
    """Return the server's data of a federation."""
    return ServerData(
        federation.test,
        federation.validation,
        federation.input_shape,
        federation.n_classes,
        federation.preprocessing,
    )


def with_validation(federation: Federation) -> Federation:
    """Return the same clients with a server that has validation data of its own."""
    rng = np.random.default_rng(7)
    x = rng.normal(size=(30, *federation.input_shape)).astype(np.float32)
    y = rng.integers(0, federation.n_classes, 30)
    clients = {c.id: (c.train.x, c.train.y, c.test.x, c.test.y) for c in federation.clients}
    test = (federation.test.x, federation.test.y)
    return Federation.from_arrays(
        clients,
        test,
        federation.class_names,
        validation=(x, y),
        allow_duplicates=federation.allow_duplicates,
    )


def with_groups(federation: Federation) -> Federation:
    """Return the same clients with a sensitive attribute: the sign of the first feature."""
    clients = {c.id: (c.train.x, c.train.y, c.test.x, c.test.y) for c in federation.clients}
    groups = {c.id: (c.train.x.flatten(1)[:, 0] > 0).long() for c in federation.clients}
    return Federation.from_arrays(
        clients, (federation.test.x, federation.test.y), federation.class_names, sensitive=groups
    )


def make_strategy(
    federation: Federation, method: Method | str = "fedavg", **changes: Any
) -> MethodStrategy:
    """Make a strategy for all clients of a federation.

    `changes` are training settings; names that are not are arguments of the strategy.
    """
    arguments = {
        key: changes.pop(key)
        for key in list(changes)
        if key not in TrainingSettings.model_fields or key == "model"
    }
    rule = build_method(method) if isinstance(method, str) else method
    defaults = {
        "settings": TrainingSettings(**{**FAST, **changes}),
        "clients": len(federation.clients),
        "server_data": server_data(federation),
        "timeout": 0.3,
        "wait_timeout": 0.1,
        "model": "mlp",
    }
    return MethodStrategy(rule, **{**defaults, **arguments})


def run_strategy(
    federation: Federation,
    method: Method | str = "fedavg",
    grid: Grid | None = None,
    **changes: Any,
) -> MethodStrategy:
    """Make a strategy, run it and return it."""
    strategy = make_strategy(federation, method, **changes)
    strategy.start(grid or InProcessGrid(federation))
    return strategy


def simulate_small(
    federation: Federation, method: Method | str = "fedavg", **changes: Any
) -> udjfl.Result:
    """Simulate with the settings of `make_strategy`."""
    return udjfl.simulate(federation, method, **{**FAST, **changes})


__all__ = [
    "FAST",
    "FIRST_NODE",
    "Examples",
    "InProcessGrid",
    "client_data",
    "make_federation",
    "make_strategy",
    "run_strategy",
    "server_data",
    "simulate_small",
    "tensors_of",
    "with_groups",
    "with_tensors",
    "with_validation",
]
