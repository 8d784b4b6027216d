"""The registry of clients: which node is which client, and how uncertain its data are.

A node is bound to the client it introduces itself as. A node that does not reply is dropped, and
introduces itself again when it is back; nothing it reported before may have changed.
"""

import contextlib
import logging
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
from flwr.app import Message
from flwr.serverapp import Grid

from udjfl._ids import id_sort_key
from udjfl.errors import QuorumError, ReportError
from udjfl.flower.client_info import ClientInfo
from udjfl.flower.errors import absence_reason
from udjfl.flower.messages import (
    INTRODUCE,
    NUMBERS,
    UNCERTAINTY,
    Reply,
    address_message,
    make_request,
    read_message,
    write_spec,
)
from udjfl.flower.sending import send_and_receive
from udjfl.methods.reports import check_numbers
from udjfl.training.state import RunSpec
from udjfl.uncertainty import Uncertainty, largest_uncertainty

logger = logging.getLogger("udjfl")

POLL_INTERVAL = 0.5
# An uncertainty measured again, perhaps on another machine, may differ in its last digits.
TOLERANCE = 1e-6


class ClientRegistry:
    """The clients of a run and the nodes they are at.

    nodes          the node of each client that is connected
    uncertainties  as reported; kept when a client leaves
    members        the ids of the run's clients, once `freeze` was called
    excluded       reasons for nodes rejected since the last round began, by client
    """

    def __init__(self, spec: RunSpec, grid: Grid, timeout: float, wait_timeout: float) -> None:
        self.spec, self.grid, self.wait_timeout = spec, grid, wait_timeout
        # An introduction takes no longer than loading data; measuring an uncertainty is training.
        self.timeouts = {INTRODUCE: min(timeout, wait_timeout), UNCERTAINTY: timeout}
        self.nodes: dict[str, int] = {}
        self.infos: dict[str, ClientInfo] = {}
        self.rejected_nodes: dict[int, str] = {}
        self.uncertainties: dict[str, float] = {}
        self.epistemic: dict[str, float] = {}
        self.unreliable: set[str] = set()
        self.members: tuple[str, ...] | None = None
        self.expected: ClientInfo | None = None
        self.excluded: dict[str, str] = {}
        self.round = 1
        # The client that each node has been, the names that the operator gave to nodes, and when
        # each was connected, which tells that it was started again.
        self._client_of: dict[int, str] = {}
        self._names: dict[int, str] = {}
        self._connected_at: dict[int, str] = {}
        # Clients that reported their uncertainty since their node was bound.
        self._measured: set[str] = set()

    def wait_for(self, clients: int) -> None:
        """Wait until so many clients are registered, or until the time is over."""
        end, told = time.monotonic() + self.wait_timeout, -1
        while True:
            self.register_new(measure=False)
            left = end - time.monotonic()
            if len(self.nodes) >= clients or left < POLL_INTERVAL:
                return
            if len(self.nodes) != told:
                told = len(self.nodes)
                logger.info("%d of %d clients are here; waiting %.0f s more", told, clients, left)
            time.sleep(POLL_INTERVAL)

    def check_enough(self, clients: int) -> None:
        """Raise an error if fewer clients than this are registered."""
        if len(self.nodes) >= clients:
            return
        present = ", ".join(sorted(self.nodes, key=id_sort_key)) or "none"
        reasons = "".join(f"; {reason}" for reason in self.rejected_nodes.values())
        raise QuorumError(
            f"{len(self.nodes)} of {clients} clients came within {self.wait_timeout:g} seconds "
            f"({present}){reasons}; start the others and run again, or set clients to how many "
            "there are. Nothing was trained yet"
        )

    def freeze(
        self, expected: ClientInfo, members: Sequence[str], sizes: Mapping[str, float | None]
    ) -> None:
        """Fix the clients of the run, and what they have to agree on; reject all others.

        `sizes` has the numbers of examples that clients reported to a run which is resumed.
        """
        self.expected, self.members = expected, tuple(members)
        for client, size in sizes.items():
            self.infos[client] = replace(expected, client=client, size=size)
        for client, node in list(self.nodes.items()):
            with self._rejecting(node):
                self._check(self.infos[client])

    def register_new(self, measure: bool = True) -> None:
        """Register nodes that are new or back, and drop those that are gone."""
        present = self._find_nodes()
        for client, node in list(self.nodes.items()):
            if node not in present:
                self.drop(client)
        new = sorted(present - set(self.nodes.values()) - set(self.rejected_nodes))
        for node, message in self._ask(INTRODUCE, new).items():
            with self._rejecting(node):
                self._bind(node, read_message(message, f"node {node}", "introduction"))
        if measure:
            self.request_uncertainties()

    def _find_nodes(self) -> set[int]:
        """Return the nodes that are connected, and keep the names they are registered under.

        Those that were started again, perhaps with other data, have to introduce themselves again.
        """
        nodes = list(self.grid.get_nodes())
        self._names |= {node.node_id: node.name for node in nodes if node.name}
        since = {node.node_id: node.last_activated_at for node in nodes}
        back = {node for node, at in since.items() if self._connected_at.get(node, at) != at}
        self._connected_at |= since
        for client in [client for client, node in self.nodes.items() if node in back]:
            self.drop(client)
        for node in back:
            self.rejected_nodes.pop(node, None)
        return set(since)

    def request_uncertainties(self) -> None:
        """Ask clients for their uncertainty, once after each registration, if the run needs it."""
        if not self.spec.needs_uncertainties:
            return
        clients = {node: name for name, node in self.nodes.items() if name not in self._measured}
        for node, message in self._ask(UNCERTAINTY, sorted(clients)).items():
            with self._rejecting(node):
                self._keep_uncertainty(
                    clients[node], read_message(message, clients[node], "uncertainties")
                )
        for client in set(clients.values()) - self._measured:
            self.drop(client)

    def drop(self, client: str) -> None:
        """Forget a client's node: it has to introduce itself again."""
        self.nodes.pop(client, None)
        self._measured.discard(client)

    def take_excluded(self) -> dict[str, str]:
        """Return the reasons for nodes rejected since the last call, by client."""
        excluded, self.excluded = self.excluded, {}
        return excluded

    def known_uncertainty(self, ids: Sequence[str]) -> Uncertainty:
        """Return all uncertainties reported so far; NaN where there is none."""
        values = {name: self.uncertainties.get(name, math.nan) for name in ids}
        return Uncertainty(
            self.spec.settings.uncertainty,
            values,
            {name: self.epistemic.get(name, math.nan) for name in ids} if self.epistemic else None,
            unreliable=tuple(name for name in ids if name in self.unreliable),
        )

    def _ask(self, kind: str, nodes: Sequence[int]) -> dict[int, Message]:
        """Send a query to nodes; those that are away are left out of the replies."""
        text = write_spec(self.spec)
        content, timeout = make_request(text, b"", {"round": self.round}), self.timeouts[kind]
        messages = {node: address_message(content, node, kind, timeout) for node in nodes}
        replies = dict(send_and_receive(self.grid, messages, timeout))
        return {
            node: replies[node]
            for node in sorted(replies.keys() & messages.keys())
            if absence_reason(replies[node]) is None
        }

    @contextlib.contextmanager
    def _rejecting(self, node: int) -> Iterator[None]:
        """Reject a node for which the block raises a `ReportError`, or stop the run."""
        try:
            yield
        except ReportError as error:
            if self.spec.settings.on_bad_report == "fail":
                raise
            if self.nodes.get(error.client) == node:
                self.drop(error.client)
            logger.warning("Node %d is rejected: %s", node, error)
            self.rejected_nodes[node] = self.excluded[error.client] = str(error)

    def _bind(self, node: int, reply: Reply) -> None:
        """Bind a node to the client that it introduces itself as."""
        self._check_owner(node, reply.id)  # first: no other error may name another's client
        try:
            info = ClientInfo.of(reply)
        except (KeyError, TypeError, ValueError) as error:
            problem = f"cannot be read ({error}); does it run the same udjfl?"
            raise ReportError(reply.id, "introduction", problem) from None
        if info.size is not None:
            check_numbers(info.client, {"sizes": info.size})
        if info.client in self.nodes and self._still_replies(info.client):
            other = self.nodes[info.client]
            problem = f"is that of node {other} as well; give every client its own id"
            raise ReportError(info.client, "id", problem)
        self._check(info)
        self.infos.setdefault(info.client, info)
        self.drop(info.client)
        self.nodes[info.client] = node
        self._client_of[node] = info.client

    def _check_owner(self, node: int, client: str) -> None:
        """Raise an error for a node that claims the id of another.

        A name is bound to a node's key when that is registered (`flwr supernode register --name`).
        """
        before, name = self._client_of.get(node, client), self._names.get(node)
        if before != client:
            problem = f"was {before!r} and is now {client!r}; a client keeps its id"
            raise ReportError(before, "id", problem)
        if name is not None and name != client:
            problem = f"is {client!r}, and its key is registered as {name!r}; use that as its id"
            raise ReportError(name, "id", problem)
        if name is None and client in self._names.values():
            problem = f"is claimed by node {node}; another node's key is registered under that name"
            raise ReportError(client, "id", problem)

    def _still_replies(self, client: str) -> bool:
        """Ask the node a client is bound to: a node that died can be listed for a while."""
        messages = self._ask(INTRODUCE, [self.nodes[client]]).values()
        with contextlib.suppress(ReportError):
            return any(read_message(message, client).id == client for message in messages)
        return False

    def _check(self, info: ClientInfo) -> None:
        """Raise an error for a client that is not of this run, has changed, or does not fit."""
        if self.members is not None and info.client not in self.members:
            names = ", ".join(self.members)
            problem = f"is of no client of this run, which has {names}; start it without"
            raise ReportError(info.client, "id", problem)
        before, expected = self.infos.get(info.client, info), self.expected or info
        info.check_agreement(before, expected)

    def _keep_uncertainty(self, client: str, reply: Reply) -> None:
        """Store a client's uncertainty, or raise an error if it cannot be used."""
        value = reply.numbers.get(NUMBERS["uncertainties"])
        if reply.id != client:
            problem = f"was {client!r} and is now {reply.id!r}; a client keeps its id"
            raise ReportError(client, "id", problem)
        if value is None:
            problem = "is missing; this run needs it of every client"
            raise ReportError(client, "uncertainties", problem)
        epistemic = {k: v for k, v in reply.numbers.items() if k == "epistemic"}
        self._check_possible(client, {"uncertainties": value, **epistemic})
        before = self.uncertainties.setdefault(client, value)
        if not np.isclose(value, before, rtol=TOLERANCE, atol=0, equal_nan=True):
            raise ReportError(
                client,
                "uncertainties",
                f"was {before:g} and is now {value:g}; it is measured once, and its data must not "
                "change",
            )
        if not math.isfinite(value) and self.spec.settings.on_bad_report == "fail":
            raise ReportError(
                client,
                "uncertainties",
                "could not be measured: training alone diverged; check its data, or try a smaller "
                "uncertainty-lr",
            )
        if "epistemic" in reply.numbers:
            self.epistemic.setdefault(client, reply.numbers["epistemic"])
        if reply.numbers.get("unreliable"):
            self.unreliable.add(client)
        self._measured.add(client)

    def _check_possible(self, client: str, values: Mapping[str, float]) -> None:
        """Raise an error for an uncertainty that no data with so many classes have.

        NaN is that of a client whose training diverged.
        """
        n_classes = 0 if self.expected is None else self.expected.n_classes
        largest = largest_uncertainty(self.spec.settings.uncertainty, n_classes)
        for name, value in values.items():
            if value < 0:
                raise ReportError(client, name, f"is {value:.4g}; it cannot be negative")
            if value > largest * (1 + TOLERANCE):
                raise ReportError(
                    client,
                    name,
                    f"is {value:.4g}; with {n_classes} classes it is at most {largest:.4g} "
                    "(are its features scaled?)",
                )
