"""The choice that a service makes for each client once training is over."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from udjfl.methods import ServedModels
from udjfl.training.server_state import ServerState
from udjfl.training.service import (
    Checkpoints,
    PriorService,
    choose_checkpoints,
    keep_checkpoint,
    mean_prior,
    prior_offset,
    service_text,
    targets,
)
from udjfl.training.state import Run


@dataclass(frozen=True)
class Serving:
    """The outcome of a service: what each client is served.

    models    as `ServedModels`
    changed   ids of the clients that are served something else than the common model
    facts     numbers by name and client, for the records
    notes     sentences for readers of the results
    prior     [C] the class frequencies of all clients, where the service moves models to others
    """

    models: ServedModels
    changed: list[str]
    facts: dict[str, dict[str, float]]
    notes: list[str]
    prior: Tensor | None = None


def serve(
    run: Run, server: ServerState, facts: Mapping[str, Tensor], uncertainties: Mapping[str, float]
) -> Serving:
    """Return what the run's service gives to each client.

    `facts` has what clients report for it: their class terms [C], or their scores of the final
    model [1]. A client without one, or without uncertainty, is served the common model.
    """
    ids, service = run.ids, run.spec.service
    unknown = torch.full_like(next(iter(facts.values())), math.nan)
    table = torch.stack([facts.get(name, unknown) for name in ids])
    known = [uncertainties.get(name, math.nan) for name in ids]
    u = torch.tensor(known, dtype=torch.float64)
    if isinstance(service, PriorService):
        return serve_prior(service, ids, server.vector, table, u)
    assert service is not None, "only used with a service"
    everybody, scores = torch.arange(len(ids)), table[:, 0]
    kept = keep_checkpoint(server.kept, server.round, server.vector, scores, everybody, len(ids))
    return serve_checkpoints(service, ids, kept, u)


def serve_prior(
    service: PriorService, ids: Sequence[str], model: Tensor, terms: Tensor, uncertainties: Tensor
) -> Serving:
    """Move the common model to clients' class frequencies; not for clients whose term is NaN."""
    kappas = torch.where(terms.isnan().any(dim=1), 0.0, service.kappas(uncertainties))
    prior, offsets = mean_prior(terms), torch.zeros_like(terms)
    changed = kappas.nonzero().flatten().tolist()
    for index in changed:
        offsets[index] = prior_offset(terms[index], prior, float(kappas[index]))
    sentence = (
        f"Served {service_text(service)}: {service.whom} the common model moved to its own class "
        "frequencies. The common model itself is unchanged."
    )
    shares = torch.ones(len(ids), 1, dtype=torch.float64)
    models = ServedModels(model[None], shares, offsets)
    facts = {"kappa": _by_client(ids, kappas)}
    return Serving(models, [ids[i] for i in changed], facts, [sentence], prior)


def serve_checkpoints(
    service: Checkpoints, ids: Sequence[str], kept: Mapping[str, Tensor], uncertainties: Tensor
) -> Serving:
    """Choose a model for each client among those kept, of which the last is the final one."""
    table = kept["scores"]
    wanted = targets(service.rho, uncertainties, table[-1])
    rows = choose_checkpoints(table, wanted, uncertainties)
    used = torch.unique(rows)  # sorted
    served = ServedModels(kept["models"][used], (rows[:, None] == used).to(torch.float64))
    changed = [ids[i] for i in (rows != len(table) - 1).nonzero().flatten().tolist()]
    facts = {
        "target": _by_client(ids, wanted),
        "served_round": _by_client(ids, kept["rounds"][rows]),
    }
    return Serving(served, changed, facts, _checkpoint_notes(service, wanted, uncertainties))


def _by_client(ids: Sequence[str], values: Tensor) -> dict[str, float]:
    return dict(zip(ids, values.to(torch.float64).tolist(), strict=True))


def _checkpoint_notes(service: Checkpoints, wanted: Tensor, uncertainties: Tensor) -> list[str]:
    notes = [
        f"Served {service_text(service)}: lowers on purpose what more uncertain clients are "
        f"served, the most uncertain one to {service.rho:g} of its final score; rho is the dial."
    ]
    known = wanted.isfinite() & uncertainties.isfinite()
    line = wanted[known][uncertainties[known].argsort()]
    if len(line) and line[-1] > line[0]:
        notes.append(
            f"At rho = {service.rho:g} the most uncertain client is still to be served better than "
            "the least uncertain one: a smaller rho is needed for desert."
        )
    return notes
