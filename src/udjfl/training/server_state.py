"""The server between rounds: before round 1, and as a checkpoint has it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from udjfl.errors import NotDefinedError
from udjfl.methods import Setup, State
from udjfl.methods.reports import SHARES
from udjfl.models import buffers_to_vector, to_vector, trainable
from udjfl.training.service import Checkpoints
from udjfl.training.state import Run


@dataclass(frozen=True)
class ServerState:
    """Everything that passes from one round to the next.

    `kept` has the models of earlier rounds, for a service that chooses among them; `optimizer` the
    state of the server's optimiser.
    """

    round: int
    vector: Tensor
    buffers: Tensor
    state: State
    kept: State = field(default_factory=dict)
    optimizer: State = field(default_factory=dict)

    def to_tensors(self) -> dict[str, Tensor]:
        """Return all tensors by name, for a checkpoint."""
        parts = {"state": self.state, "kept": self.kept, "optimizer": self.optimizer}
        named = {f"{part}.{name}": t for part in parts for name, t in parts[part].items()}
        return {"vector": self.vector, "buffers": self.buffers, **named}

    @staticmethod
    def from_tensors(round: int, tensors: Mapping[str, Tensor]) -> ServerState:
        """Restore a server from a checkpoint."""

        def below(prefix: str) -> State:
            named = tensors.items()
            return {k.removeprefix(prefix): t for k, t in named if k.startswith(prefix)}

        parts = below("state."), below("kept."), below("optimizer.")
        return ServerState(round, tensors["vector"], tensors["buffers"], *parts)


def initial_state(
    run: Run,
    base_model: nn.Module,
    reference: Tensor | None = None,
    alone: Tensor | None = None,
) -> tuple[nn.Module, ServerState, list[str]]:
    """Return the network that the method trains, the server before round 1, and the notes.

    `reference` [rounds, N] has FedAvg's scores by round, `alone` [N] those of clients' own models.
    """
    method, federation, settings = run.method, run.federation, run.settings
    shares = sorted(method.needs.intersection(SHARES) - {"scores"})
    if shares and run.is_regression:
        raise NotDefinedError(
            f"{method.label}: weighs clients by the share of right predictions ({shares[0]}), "
            "which a regression does not have; choose another method"
        )
    module = run.spec.adapt_model(base_model)
    starts = [to_vector(module)]
    for number in range(1, method.n_models):
        another = run.spec.build_model(federation, f"model {number}")
        starts.append(to_vector(run.spec.adapt_model(another, number)))
    setup = Setup(
        ids=federation.ids,
        sizes=torch.tensor(federation.sizes, dtype=torch.float64),
        model=torch.cat(starts),
        layers=tuple(p.numel() for p in trainable(module)),
        rounds=settings.rounds,
        participation=settings.participation,
        drop_out=settings.drop_out,
        has_groups=federation.has_groups,
        has_validation=federation.has_validation,
        reference=reference,
        alone=alone,
    )
    server = ServerState(
        0,
        setup.model,
        buffers_to_vector(module),
        method.init(setup),
        optimizer=run.spec.server_optimizer.init(len(setup.model)),
    )
    if len(server.buffers) and method.served(server.state, server.vector) is not None:
        raise NotDefinedError(
            f"model: has buffers (such as batch norm's), and {method.title} trains several models, "
            "which cannot share them; use a model without"
        )
    if len(server.buffers) and isinstance(run.spec.service, Checkpoints):
        raise NotDefinedError(
            "service: checkpoints are kept without the model's buffers (such as batch norm's); use "
            "a model without, or another service"
        )
    return module, server, method.notes(setup)
