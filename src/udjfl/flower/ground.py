"""What a run stands on: refusals before anything is sent, and everything that follows from who the clients are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn

from udjfl.errors import NotDefinedError, SettingsError
from udjfl.flower.data import ServerData
from udjfl.flower.messages import Facts
from udjfl.flower.registration import Introduction
from udjfl.flower.server_evaluation import Scoring
from udjfl.methods import METHODS, Method
from udjfl.models import ModelChoice
from udjfl.settings import TrainingSettings
from udjfl.training.asking import Roster, Terms
from udjfl.training.rounds import Server, beginning, fitting_model


@dataclass(frozen=True)
class Ground:
    """What stays the same from round to round, and `first`, the server before round 1."""

    roster: Roster
    terms: Terms
    module: nn.Module
    first: Server
    notes: list[str]
    owed: frozenset[str]
    scoring: Scoring

    @property
    def ids(self) -> tuple[str, ...]:
        return self.roster.ids


def settled(
    facts: Facts,
    agreed: Introduction,
    sizes: Mapping[str, float | None],
    data: ServerData | None,
    model: ModelChoice | None,
) -> Ground:
    """The ground of a run with these clients. A method that is not defined for them refuses."""
    numbers = tuple(float("nan") if size is None else float(size) for size in sizes.values())
    sample = torch.zeros(2, *agreed.input_shape)
    has_validation = data is not None and data.validation is not None
    roster = Roster(
        tuple(sizes), numbers, sample, agreed.n_classes, agreed.has_groups, has_validation
    )
    terms = Terms(roster, facts.method, facts.settings, facts.seed)
    plain = fitting_model(roster, facts.settings, facts.seed, model)
    module, first, notes = beginning(roster, facts.method, facts.settings, facts.seed, model, plain)
    owed = frozenset(facts.owed(bool(len(first.buffers))))
    return Ground(roster, terms, module, first, notes, owed, Scoring(module, data, facts.method))


def refuse(
    method: Method, settings: TrainingSettings, data: ServerData | None, clients: int, quorum: int
) -> None:
    """Refuse, before anything is sent, what cannot be run across machines."""
    asked = max(1, round(settings.participation * clients))
    mistakes = []
    if clients < 1:
        mistakes.append(f"clients: is {clients}; give how many there are")
    elif not 1 <= quorum <= asked:
        mistakes.append(
            f"quorum: is {quorum}; give a number from 1 to {asked}, of the clients asked in a round"
        )
    if settings.drop_out:
        mistakes.append("drop-out: leave it at 0; across machines clients drop out by themselves")
    if METHODS.get(method.name) is not type(method):
        mistakes.append(
            f"{method.name}: is not in udjfl.methods.METHODS; clients build the method from its name: add it there in both apps"
        )
    if mistakes:
        raise SettingsError(mistakes)
    if "validation_accuracies" in method.needs and (data is None or data.validation is None):
        raise NotDefinedError(
            f"{method.name}: scores clients' models on data of the server's own, and the server has none (it cannot take those "
            "of clients, which stay with them); give ServerData(validation=(x, y)), or choose another method"
        )
    if method.n_models > 1 and "losses" in method.needs:
        raise NotDefinedError(
            f"{method.name}: trains {method.n_models} models; it has to ask for losses_of_each, not losses"
        )
