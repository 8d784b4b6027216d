"""One exchange with clients: requests that are sent together, and what came of each."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from flwr.app import Message, RecordDict
from torch import Tensor

from udjfl.errors import ReportError
from udjfl.flower.errors import absence_reason, shorten
from udjfl.flower.messages import (
    Reply,
    address_message,
    make_request,
    read_message,
    write_spec,
)
from udjfl.flower.registration import ClientRegistry
from udjfl.flower.sending import send_and_receive
from udjfl.flower.tensors import TensorLimit, pack
from udjfl.training.state import Run

LATE = "did not reply in time"


@dataclass(frozen=True)
class Request:
    """One kind of message to some clients.

    shared    tensors that all of them get
    own       returns the tensors that the client with an index alone gets
    values    further numbers that all of them get
    allowed   the tensors that replies may contain
    """

    kind: str
    round: int
    clients: Sequence[str]
    shared: Mapping[str, Tensor]
    own: Callable[[int], Mapping[str, Tensor]] = lambda _: {}
    values: Mapping[str, float | bool] = field(default_factory=dict)
    allowed: Mapping[str, TensorLimit] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """Readable replies in the order of the run's ids, reasons of absence, and errors."""

    replies: list[Reply]
    absent: dict[str, str]
    errors: dict[str, ReportError]


class Exchange:
    """Sends requests to the clients of a run, which the registry finds."""

    def __init__(self, run: Run, registry: ClientRegistry, timeout: float) -> None:
        self.run, self.registry, self.timeout = run, registry, timeout
        self._spec_text = write_spec(run.spec)
        sizes = zip(run.ids, run.federation.sizes, strict=True)
        self._sizes = {client: size for client, size in sizes if not math.isnan(size)}

    @property
    def readings(self) -> dict[str, float]:
        """The uncertainties reported so far, as methods read them."""
        known = self.registry.known_uncertainty(tuple(self.registry.uncertainties))
        return known.readings

    def known_numbers(self, client: str) -> dict[str, float]:
        """Return the size and the uncertainty that a client reported when it registered."""
        columns = {"sizes": self._sizes, "uncertainties": self.readings}
        return {name: values[client] for name, values in columns.items() if client in values}

    def send(self, *requests: Request) -> list[Outcome]:
        """Send requests at the same time, each to other clients; return what came of each.

        Clients without a reply are dropped from the registry.
        """
        messages: dict[int, Message] = {}
        for request in requests:
            messages |= {
                node: address_message(content, node, request.kind, self.timeout)
                for node, content in self._write(request).items()
            }
        clients = {node: name for name, node in self.registry.nodes.items() if node in messages}
        received: dict[str, list[Message]] = {}
        for node, message in send_and_receive(self.registry.grid, messages, self.timeout):
            if node in clients:
                received.setdefault(clients[node], []).append(message)
        return [self._read(request, received) for request in requests]

    def _write(self, request: Request) -> dict[int, RecordDict]:
        """Return the content of the message to each node of a request."""
        packed, nodes = pack(request.shared), self.registry.nodes
        return {
            nodes[client]: make_request(
                self._spec_text,
                packed,
                {"round": request.round, **request.values},
                request.own(self.run.ids.index(client)),
            )
            for client in nodes
            if client in request.clients
        }

    def _read(self, request: Request, received: Mapping[str, Sequence[Message]]) -> Outcome:
        absent = dict.fromkeys(request.clients, LATE)
        errors: dict[str, ReportError] = {}
        replies: list[Reply] = []
        for client in sorted(set(request.clients) & received.keys(), key=self.run.ids.index):
            for message in received[client]:
                reason = absence_reason(message)
                if reason is not None:
                    absent[client] = reason
                    continue
                absent.pop(client, None)
                try:
                    replies.append(read_reply(message, client, request.round, request.allowed))
                except ReportError as error:
                    errors[client] = error
        for client in absent:
            self.registry.drop(client)
        return Outcome(replies, absent, errors)


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
