"""One round's question to clients: who is asked, what they are sent, and what came back, as reports.

`Terms` is what holds wherever the clients are; `Asking` puts the question to clients in this process.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from udjfl.data import Examples, Federation
from udjfl.engine import (
    PROBES,
    Engine,
    EvaluationSet,
    LocalResult,
    LocalTraining,
    LossAt,
    TrainJob,
    probe,
)
from udjfl.errors import SettingsError
from udjfl.methods import Method, Plan, Reports, State
from udjfl.methods.base import EXTRAS
from udjfl.methods.intake import ClientReport, collect
from udjfl.methods.reports import PER_CLIENT_FIELDS
from udjfl.seeds import numpy_stream
from udjfl.settings import TrainingSettings
from udjfl.uncertainty import Uncertainty


@dataclass(frozen=True)
class Roster:
    """What a server knows of a federation before round 1. Columns have one entry per client, in client order.

    ids, sizes      the clients, and how many training examples each has; NaN where that is not told
    sample          a few inputs of the shape of the data, to try models on
    has_groups      whether the train examples have a sensitive attribute; `has_validation`, whether the server has own data
    """

    ids: tuple[str, ...]
    sizes: tuple[float, ...]
    sample: Tensor
    n_classes: int
    has_groups: bool = False
    has_validation: bool = False

    @staticmethod
    def of(federation: Federation) -> Roster:
        return Roster(
            federation.ids,
            federation.sizes,
            federation.test.x[:2],
            federation.n_classes,
            federation.has_groups,
            federation.validation is not None,
        )

    @property
    def input_shape(self) -> tuple[int, ...]:
        return tuple(self.sample.shape[1:])


@dataclass(frozen=True)
class Question:
    """One round's question to the clients at these places, and what they have said already; no jobs: nobody is left to ask."""

    t: int
    model: Tensor
    buffers: Tensor
    state: State
    rows: Sequence[int]
    values: Mapping[str, Tensor]
    excluded: dict[str, str]
    jobs: list[TrainJob]


@dataclass(frozen=True)
class Answers:
    """What came of asking: the usable reports (None if there are none), the clients' mean buffers, who was left out and why,
    and the method's state, which may have changed while the question was put together."""

    reports: Reports | None
    buffers: Tensor
    excluded: dict[str, str]
    state: State


class Terms:
    """What a method asks of clients, and what its server makes of what they say. Holds what stays the same in every round."""

    def __init__(
        self, roster: Roster, method: Method, settings: TrainingSettings, seed: int
    ) -> None:
        self.roster, self.method, self.settings, self.seed = roster, method, settings, seed
        s = settings
        # A method that leaves the mean loss alone leaves the engine its plain path.
        own_objective = type(method).objective is not Method.objective
        self.extras = {
            *method.needs,
            *(method.needs_groups if roster.has_groups else ()),
        }.intersection(EXTRAS)
        if method.n_models > 1 and (method.probes or self.extras.intersection(PROBES)):
            raise SettingsError(
                f"{method.name}: trains {method.n_models} models side by side; of those only losses_of_each is known before "
                "training, not what it names in needs or probes"
            )
        self.work = LocalTraining(
            s.lr,
            s.momentum,
            s.batch_size,
            s.local_epochs,
            self._loss_at(),
            objective=method.objective if own_objective else None,
            first_step="first_deltas" in self.extras,
        )

    def _loss_at(self) -> LossAt:
        if self.settings.loss_at != "auto":
            return self.settings.loss_at
        uses_losses = {"losses", "losses_of_each"}.intersection(self.method.needs)
        return "received" if uses_losses else "running"

    def participants(self, t: int, state: State) -> tuple[list[int], list[int]]:
        """Which clients are asked in this round, and which of them answer; both in client order."""
        n = len(self.roster.ids)
        asked = list(range(n))
        if self.settings.participation < 1:
            count = max(1, round(self.settings.participation * n))
            asked = sorted(
                self.method.select(state, n, count, numpy_stream(self.seed, "participation", t))
            )
            if not asked or len(set(asked)) < len(asked) or not 0 <= asked[0] <= asked[-1] < n:
                raise SettingsError(
                    f"{self.method.name}: select gave the places {asked}; give some of 0 to {n - 1}, each once"
                )
        lost = numpy_stream(self.seed, "drop-out", t).random(n) < self.settings.drop_out
        return asked, [row for row in asked if not lost[row]]

    def sent(self, model: Tensor, state: State, rows: Sequence[int]) -> list[Tensor]:
        """The models that clients train: one for all [D], or one for each [K, D]; several for all, if side by side."""
        own = self.method.initial_models(state, torch.tensor(rows))
        if own is not None:
            if own.shape != (len(rows), len(model)):
                raise SettingsError(
                    f"{self.method.name}: received gave shape {list(own.shape)}; give one model for each of these clients, "
                    f"{[len(rows), len(model)]}"
                )
            return [own]
        return list(model.view(self.method.n_models, -1))

    def planned(self, plan: Plan, rows: Sequence[int]) -> LocalTraining:
        """How the clients at these places train under a plan."""
        multipliers = None if plan.multipliers is None else plan.multipliers[torch.tensor(rows)]
        work = replace(
            self.work, multipliers=multipliers, pull=plan.pull, pull_share=plan.pull_share
        )
        if plan.one_full_step:
            work = replace(work, momentum=0.0, epochs=1, batch_size=int(max(self.roster.sizes)))
        return work

    def mixed_losses(
        self, each: Tensor, model: Tensor, state: State, rows: Sequence[int]
    ) -> Tensor:
        """One loss for each client, from those [K, M] of the models side by side: mixed as the client is served."""
        served = self.method.served(state, model)
        shares = (
            torch.full_like(each, 1 / each.shape[1])
            if served is None
            else served.shares[torch.tensor(rows)].to(each)
        )
        return (shares * each).sum(dim=1)

    def scored(
        self,
        reports: Reports,
        state: State,
        buffers: Tensor,
        engine: Engine,
        validation: EvaluationSet,
    ) -> Reports:
        """The reports with the accuracies that the server measures itself."""
        models = [(model, buffers) for model in self.method.models_to_score(state, reports)]
        scores = torch.cat([accuracy for _, accuracy in engine.evaluate_many(models, validation)])
        left_out: dict[str, Any] = {
            name: None for name in PER_CLIENT_FIELDS if torch.isnan(getattr(reports, name)).any()
        }
        return replace(
            reports, extras={**reports.extras, "validation_accuracies": scores}, **left_out
        )


def of_training(results: Sequence[LocalResult], extras: Collection[str]) -> dict[str, Tensor]:
    """What local training says of each client beside its delta, given the results of the models side by side."""
    values = {"losses": results[0].losses, "steps": results[0].steps}
    if len(results) > 1 or "losses_of_each" in extras:
        values["losses_of_each"] = torch.stack([result.losses for result in results], dim=1)
    if results[0].first_deltas is not None:
        firsts = [
            result.first_deltas.cpu() for result in results if result.first_deltas is not None
        ]
        values["first_deltas"] = torch.cat(firsts, dim=1)
    return values


def joined_deltas(results: Sequence[LocalResult]) -> Tensor:
    """[K, D] the deltas of the models side by side, end to end."""
    deltas = (
        torch.cat([result.deltas for result in results], dim=1)
        if len(results) > 1
        else results[0].deltas
    )
    return deltas.cpu()


def mean_buffers(
    reports: Reports, ids: Sequence[str], of_clients: Tensor, before: Tensor
) -> Tensor:
    """The mean of the buffers [K, B] of these clients, over those whose report is used, by their number of examples."""
    if not before.numel():
        return before
    shares = reports.sizes / reports.sizes.sum()
    return shares @ of_clients[[ids.index(name) for name in reports.ids]]


class Asking(Terms):
    """Puts a method's question to the clients of a federation that is here. Holds what stays the same from round to round."""

    def __init__(
        self,
        federation: Federation,
        method: Method,
        settings: TrainingSettings,
        seed: int,
        engine: Engine,
        uncertainty: Uncertainty,
    ) -> None:
        super().__init__(Roster.of(federation), method, settings, seed)
        self.federation, self.engine, self.uncertainty = federation, engine, uncertainty

    @functools.cached_property
    def validation(self) -> EvaluationSet:
        """What the server scores models on: its own examples; without any, those that all clients train on, together."""
        own = self.federation.validation
        data = (
            Examples.joined([client.train for client in self.federation.clients])
            if own is None
            else own
        )
        return EvaluationSet([data.on(self.engine.device)])

    def question(
        self, t: int, model: Tensor, buffers: Tensor, state: State, rows: Sequence[int]
    ) -> Question:
        """What to ask the clients at these places, after probing them if the method wants that."""
        vectors = self.sent(model, state, rows)
        excluded: dict[str, str] = {}
        probed: Reports | None = None
        if self.method.probes:
            values = probe(self.engine, vectors[0], buffers, rows, self.method.probes)
            probed, excluded = self._collect(
                t, model, rows, values, torch.zeros(len(rows), len(model), dtype=model.dtype)
            )
            kept = [
                place for place, row in enumerate(rows) if self.federation.ids[row] not in excluded
            ]
            rows = [rows[place] for place in kept]
            vectors = [vector if vector.ndim == 1 else vector[kept] for vector in vectors]
        if not rows:
            return Question(t, model, buffers, state, [], {}, excluded, [])
        state, plan = self.method.plan(state, probed)
        work = self.planned(plan, rows)
        values = probe(self.engine, vectors[0], buffers, rows, self.extras)
        jobs = [
            TrainJob(vector, buffers, rows, work, (self.seed, "batches", t)) for vector in vectors
        ]
        return Question(t, model, buffers, state, rows, values, excluded, jobs)

    def answers(self, question: Question, results: Sequence[LocalResult]) -> Answers:
        """What the clients' work, one result for each job, says to the method."""
        q = question
        if not q.jobs:
            return Answers(None, q.buffers, q.excluded, q.state)
        values = {**q.values, **of_training(results, self.extras)}
        if "losses_of_each" in values:
            values["losses"] = self.mixed_losses(values["losses_of_each"], q.model, q.state, q.rows)
        buffers, momentum = results[0].buffers.cpu(), q.jobs[0].work.momentum
        reports, unusable = self._collect(
            q.t, q.model, q.rows, values, joined_deltas(results), momentum, buffers
        )
        excluded = q.excluded | unusable
        if reports is None:
            return Answers(None, q.buffers, excluded, q.state)
        if "validation_accuracies" in self.extras:
            reports = self.scored(reports, q.state, q.buffers, self.engine, self.validation)
        ids = [self.federation.ids[row] for row in q.rows]
        return Answers(reports, mean_buffers(reports, ids, buffers, q.buffers), excluded, q.state)

    def _collect(
        self,
        t: int,
        model: Tensor,
        rows: Sequence[int],
        values: Mapping[str, Tensor],
        deltas: Tensor,
        momentum: float | None = None,
        buffers: Tensor | None = None,
    ) -> tuple[Reports | None, dict[str, str]]:
        """The values of these clients as one `Reports`; and for each client left out the reason."""
        s = self.settings
        extras = {name: value for name, value in values.items() if name in EXTRAS}
        each_extras = {name: value.unbind(0) for name, value in extras.items()}
        each_buffers = (
            [torch.zeros(0)] * len(rows)
            if buffers is None or not buffers.numel()
            else buffers.unbind(0)
        )
        losses = values["losses"].tolist() if "losses" in values else [0.0] * len(rows)
        steps = values["steps"].tolist() if "steps" in values else [1.0] * len(rows)
        sent = [
            ClientReport(
                self.federation.ids[row],
                delta,
                losses[i],
                self.federation.sizes[row],
                self.uncertainty.values[self.federation.ids[row]],
                steps[i],
                extras={name: value[i] for name, value in each_extras.items()},
                buffers=each_buffers[i],
            )
            for i, (row, delta) in enumerate(zip(rows, deltas.unbind(0), strict=True))
        ]
        return collect(
            sent,
            self.federation.ids,
            len(model),
            t,
            s.lr,
            s.momentum if momentum is None else momentum,
            s.on_bad_report,
            needs=extras,
            model=model,
        )
