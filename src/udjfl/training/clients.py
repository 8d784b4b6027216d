"""The interface between a server and its clients, in this process or on other machines.

`training.round` talks to clients through this protocol alone. `simulation.local_clients` reaches
them through an engine, `flower.remote_clients` through messages, and the tests have a third,
scripted implementation.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from torch import Tensor

from udjfl.errors import ReportError
from udjfl.methods import Plan
from udjfl.training.evaluation import Evaluation
from udjfl.training.server_state import ServerState


@dataclass(frozen=True)
class TrainRequest:
    """One round's request to the clients at `client_indices`.

    models    one model [D] for all or one for each client [K, D]; several where the method trains
              several side by side
    buffers   [B] the model's buffers, such as the statistics of batch norm
    plan      changes to local training in this round
    """

    round: int
    client_indices: Sequence[int]
    models: Sequence[Tensor]
    buffers: Tensor
    plan: Plan = field(default_factory=Plan)

    def keep(self, client_indices: Collection[int]) -> TrainRequest:
        """Return the same request for fewer clients."""
        rows = [row for row, index in enumerate(self.client_indices) if index in client_indices]
        if len(rows) == len(self.client_indices):
            return self
        models = [model if model.ndim == 1 else model[rows] for model in self.models]
        return replace(self, client_indices=[self.client_indices[r] for r in rows], models=models)


@dataclass(frozen=True)
class Replies:
    """Replies to a request, as columns: row i is a reply of client `ids[i]`.

    ids       clients with a readable reply; a client that replied twice is there twice
    deltas    [K, D]; a probe has none
    columns   further values by their names in `Reports`
    buffers   [K, B] the clients' buffers after training
    absent    the reason for each client without a reply
    errors    the error of each client whose reply could not be read
    """

    ids: Sequence[str] = ()
    deltas: Tensor | None = None
    columns: Mapping[str, Tensor] = field(default_factory=dict)
    buffers: Tensor | None = None
    absent: Mapping[str, str] = field(default_factory=dict)
    errors: Mapping[str, ReportError] = field(default_factory=dict)


@dataclass(frozen=True)
class Attendance:
    """The selected clients that can be reached, and the reasons for the others."""

    client_indices: Sequence[int]
    absent: Mapping[str, str] = field(default_factory=dict)
    excluded: Mapping[str, str] = field(default_factory=dict)


class Clients(Protocol):
    """The way a server reaches its clients: an engine in this process, or messages."""

    def reach(self, round: int, client_indices: Sequence[int]) -> Attendance:
        """Find out which of the selected clients can take part in this round."""

    def probe(self, request: TrainRequest, names: Collection[str]) -> Replies:
        """Ask for quantities at the models in the request, before any training."""

    def train(self, request: TrainRequest) -> Replies:
        """Let clients train for one round."""

    def score(self, models: Tensor, buffers: Tensor) -> Tensor:
        """Return the accuracy, 0 to 1, of models [K, D] on the server's validation data."""

    def evaluate(self, server: ServerState) -> Evaluation:
        """Evaluate what each client is served, and the server's model on the shared test set."""
