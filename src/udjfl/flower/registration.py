"""Who is there: which node is which client, what it said of itself, and how uncertain its data are.

A node is bound to the client it introduces itself as. One that did not answer is let go, and introduces itself again when it is
back; nothing it said before may have changed.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from udjfl._ids import id_sort_key
from udjfl.errors import ReportError
from udjfl.flower import messages as wire
from udjfl.flower.errors import QuorumError, absence, error_text
from udjfl.flower.messages import NUMBERS, Facts, Reply
from udjfl.flower.post import Post
from udjfl.training.run_folder import Record

logger = logging.getLogger("udjfl")

LOOK_EVERY = 0.5
# An uncertainty measured again, perhaps on another machine, may differ in its last digits.
SAME = 1e-6


@dataclass(frozen=True)
class Introduction:
    """What a client says of itself."""

    client: str
    input_shape: tuple[int, ...]
    n_classes: int
    has_groups: bool
    model: str
    size: float | None

    @staticmethod
    def of(reply: Reply) -> Introduction:
        about = reply.about
        shape = tuple(int(size) for size in about["input-shape"])
        size = reply.numbers.get(NUMBERS["sizes"])
        return Introduction(
            reply.id,
            shape,
            int(about["n-classes"]),
            bool(about["has-groups"]),
            str(about["model"]),
            size,
        )


class Said(NamedTuple):
    """What a node replied to a question: what could be read, or why it is to be refused."""

    node: int
    reply: Reply | None
    problem: str


class Meeting:
    """The clients of a run and the nodes they are at. `expected` has what all have to agree on, once that is known."""

    def __init__(self, facts: Facts, post: Post, timeout: float, patience: float) -> None:
        self.facts, self.post = facts, post
        # Introducing oneself takes no longer than loading data; to measure an uncertainty means to train.
        self.timeouts = {wire.INTRODUCE: min(timeout, patience), wire.UNCERTAINTY: timeout}
        self.nodes: dict[str, int] = {}
        self.told: set[str] = (
            set()
        )  # clients whose uncertainty was asked for since their node was bound
        self.known: dict[str, Introduction] = {}
        self.refused: dict[int, str] = {}
        self.uncertainties: dict[str, float] = {}
        self.epistemic: dict[str, float] = {}
        self.members: tuple[str, ...] | None = None
        self.expected: Introduction | None = None
        self.said: list[Record] = []

    def wait(self, grid: Grid, clients: int, patience: float, round: int) -> None:
        """Until so many clients have introduced themselves; or, if members are known, all the time there is for them."""
        end = time.monotonic() + patience
        while True:
            self.greet(grid, round, measure=False)
            if len(self.nodes) >= clients or time.monotonic() + LOOK_EVERY > end:
                return
            time.sleep(LOOK_EVERY)

    def require(self, clients: int, patience: float) -> None:
        if len(self.nodes) < clients:
            here = ", ".join(sorted(self.nodes, key=id_sort_key)) or "nobody"
            why = "".join(f"; {reason}" for reason in self.refused.values())
            raise QuorumError(
                f"{len(self.nodes)} of {clients} clients came within {patience:g} seconds ({here}){why}; start the others and "
                "run again, or set clients to how many there are. Nothing was trained yet"
            )

    def close(
        self,
        expected: Introduction,
        members: Sequence[str],
        sizes: Mapping[str, float | None],
        round: int,
    ) -> None:
        """From here on these are the clients, and this is what they agree on. Who does not is refused.

        `sizes` has the numbers of examples that clients told a run which is resumed, None if they were not asked.
        """
        self.expected, self.members = expected, tuple(members)
        for client, size in sizes.items():
            self.known[client] = replace(expected, client=client, size=size)
        for client, node in list(self.nodes.items()):
            problem = self._disagreement(self.known[client])
            if client not in self.members:
                problem = (
                    "id",
                    f"is of no client of this run, which has {', '.join(self.members)}; start it without",
                )
            if problem:
                self.lose(client)
                self._refuse(node, client, *problem, round)

    def greet(self, grid: Grid, round: int, measure: bool = True) -> None:
        """Let nodes that are new, or back, introduce themselves."""
        present = set(grid.get_node_ids())
        for client, node in list(self.nodes.items()):
            if node not in present:
                self.lose(client)
        new = sorted(present - set(self.nodes.values()) - set(self.refused))
        for node, reply, problem in self._ask(grid, wire.INTRODUCE, new, round):
            if reply is None:
                self._refuse(node, f"node {node}", "introduction", problem, round)
            else:
                self._bind(grid, node, reply, round)
        if measure:
            self.measure(grid, round)

    def measure(self, grid: Grid, round: int) -> None:
        """Ask those who have not been asked since they came for their uncertainty, if the run wants it."""
        if not self.facts.tells_uncertainty:
            return
        client_at = {node: client for client, node in self.nodes.items() if client not in self.told}
        for node, reply, problem in self._ask(grid, wire.UNCERTAINTY, sorted(client_at), round):
            client = client_at[node]
            wrong = (
                ("uncertainties", problem)
                if reply is None
                else self._uncertainty_problem(client, reply)
            )
            if wrong:
                self.lose(client)
                self._refuse(node, client, *wrong, round)
            else:
                self.told.add(client)
        for client in client_at.values():
            if client not in self.told:
                self.lose(client)

    def lose(self, client: str) -> None:
        """A client that is not there has to introduce itself again, and to tell its uncertainty."""
        self.nodes.pop(client, None)
        self.told.discard(client)

    def client_at(self, node: int) -> str | None:
        return next((client for client, at in self.nodes.items() if at == node), None)

    def _ask(self, grid: Grid, kind: str, nodes: Sequence[int], round: int) -> list[Said]:
        """What these nodes say; those that are away are left out."""
        facts = self.facts.text()
        contents = {node: wire.question(facts, {}, {"round": round}) for node in nodes}
        messages = self.post.messages(kind, contents, self.timeouts[kind])
        replies = self.post.by_node(self.post.exchange(grid, messages, self.timeouts[kind]))
        return [
            _said(node, reply, round)
            for node, reply in replies.items()
            if node in contents and absence(reply) is None
        ]

    def _bind(self, grid: Grid, node: int, reply: Reply, round: int) -> None:
        try:
            found = Introduction.of(reply)
        except (KeyError, TypeError, ValueError) as error:
            self._refuse(
                node,
                reply.id,
                "introduction",
                f"cannot be read ({error}); does it run the same udjfl?",
                round,
            )
            return
        problem = self._disagreement(found)
        if self.members is not None and found.client not in self.members:
            problem = "id", f"is of no client of this run, which has {', '.join(self.members)}"
        elif found.client in self.nodes and self._is_there(grid, found.client, round):
            problem = (
                "id",
                f"is that of node {self.nodes[found.client]} as well; give every client its own id",
            )
        if problem:
            self._refuse(node, found.client, *problem, round)
            return
        self.known.setdefault(found.client, found)
        self.lose(found.client)
        self.nodes[found.client] = node

    def _is_there(self, grid: Grid, client: str, round: int) -> bool:
        """Whether the node that a client was bound to still answers. A node that died can be listed for a while."""
        said = self._ask(grid, wire.INTRODUCE, [self.nodes[client]], round)
        return any(reply is not None and reply.id == client for _, reply, _ in said)

    def _disagreement(self, found: Introduction) -> tuple[str, str] | None:
        """The first thing that is not as the client said before, or not as the others have it."""
        before = self.known.get(found.client)
        if before is not None and before.size != found.size:
            return (
                "sizes",
                f"was {before.size} and is now {found.size}; its data must not change during a run",
            )
        e = self.expected
        if e is None:
            return None
        if found.input_shape != e.input_shape:
            return (
                "input_shape",
                f"is {list(found.input_shape)}, elsewhere {list(e.input_shape)}; bring features to one shape",
            )
        if found.n_classes != e.n_classes:
            return (
                "n_classes",
                f"is {found.n_classes}, elsewhere {e.n_classes}; say how many there are in the whole federation",
            )
        if found.has_groups != e.has_groups:
            return "sensitive attribute", "has to be there for every client, or for none"
        if found.model != e.model:
            return (
                "model",
                "differs from the server's; give client_app and server_app the same model",
            )
        return None

    def _uncertainty_problem(self, client: str, reply: Reply) -> tuple[str, str] | None:
        if reply.id != client:
            return "id", f"was {client!r} and is now {reply.id!r}; a client keeps its id"
        value = reply.numbers.get(NUMBERS["uncertainties"])
        if value is None:
            return "uncertainties", "is missing; this run needs it of every client"
        before = self.uncertainties.get(client)
        if before is not None and not (
            math.isclose(before, value, rel_tol=SAME) or (before != before and value != value)
        ):
            return (
                "uncertainties",
                f"was {before:g} and is now {value:g}; it is measured once, and its data must not change",
            )
        if not math.isfinite(value) and self.facts.settings.on_bad_report == "fail":
            return (
                "uncertainties",
                "could not be measured: training alone diverged; check its data, or try a smaller uncertainty-lr",
            )
        self.uncertainties.setdefault(client, value)
        if "epistemic" in reply.numbers:
            self.epistemic.setdefault(client, reply.numbers["epistemic"])
        return None

    def _refuse(self, node: int, client: str, field: str, problem: str, round: int) -> None:
        error = ReportError(client, field, problem)
        if self.facts.settings.on_bad_report == "fail":
            raise error
        logger.warning("Node %d is refused: %s", node, error)
        self.refused[node] = str(error)
        self.said.append(Record(round, client, "excluded", str(error)))


def _said(node: int, reply: Message, round: int) -> Said:
    if reply.has_error():
        return Said(node, None, error_text(reply))
    content: RecordDict = reply.content
    try:
        return Said(node, Reply.read(content, f"node {node}", round), "")
    except ReportError as error:
        return Said(node, None, error.problem)
