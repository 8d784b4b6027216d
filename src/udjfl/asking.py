"""One round's question to clients: who is asked, what they are sent, and what came back, as reports."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from udjfl.config import TrainingSettings
from udjfl.data import Examples, Federation
from udjfl.engine import Engine, LocalResult, LocalWork, Pooled, probe
from udjfl.methods import Method, Plan, Reports, State
from udjfl.methods.base import EXTRAS
from udjfl.methods.intake import ClientReport, collect
from udjfl.seeds import numpy_stream
from udjfl.uncertainty import Uncertainty


@dataclass(frozen=True)
class Answers:
    """What came of asking: the usable reports (None if there are none), the clients' mean buffers, who was left out and why,
    and the method's state, which may have changed while the question was put together."""

    reports: Reports | None
    buffers: Tensor
    excluded: dict[str, str]
    state: State


class Asking:
    """Puts a method's question to the clients of a federation. Holds what stays the same from round to round."""

    def __init__(
        self,
        federation: Federation,
        method: Method,
        settings: TrainingSettings,
        seed: int,
        engine: Engine,
        uncertainty: Uncertainty,
    ) -> None:
        self.federation, self.method, self.settings, self.seed, self.engine = federation, method, settings, seed, engine
        self.uncertainty = uncertainty
        s = settings
        # A method that leaves the mean loss alone leaves the engine its plain path.
        own_objective = type(method).objective is not Method.objective
        self.extras = {*method.needs, *(method.needs_groups if federation.has_groups else ())}.intersection(EXTRAS)
        self.work = LocalWork(
            s.lr, s.momentum, s.batch_size, s.local_epochs, s.loss_at,
            objective=method.objective if own_objective else None,
            first_step="first_deltas" in self.extras,
        )  # fmt: skip

    @functools.cached_property
    def validation(self) -> Pooled:
        """What the server scores models on: its own examples; without any, those that all clients train on, together."""
        own = self.federation.validation
        data = Examples.joined([client.train for client in self.federation.clients]) if own is None else own
        return Pooled([data.on(self.engine.device)])

    def participants(self, t: int, state: State) -> tuple[list[int], list[int]]:
        """Which clients are asked in this round, and which of them answer; both in client order."""
        n = len(self.federation.clients)
        asked = list(range(n))
        if self.settings.participation < 1:
            count = max(1, round(self.settings.participation * n))
            asked = sorted(self.method.select(state, n, count, numpy_stream(self.seed, "participation", t)))
        lost = numpy_stream(self.seed, "drop-out", t).random(n) < self.settings.drop_out
        return asked, [row for row in asked if not lost[row]]

    def ask(self, t: int, model: Tensor, buffers: Tensor, state: State, rows: Sequence[int]) -> Answers:
        """Local work of the clients at these places."""
        vectors = self._sent(model, state, rows)
        probed: Reports | None = None
        excluded: dict[str, str] = {}
        if self.method.probes:
            values = probe(self.engine, vectors, buffers, rows, self.method.probes)
            probed, excluded = self._collect(t, model, rows, values, torch.zeros(len(rows), len(model), dtype=model.dtype))
            if probed is None:
                return Answers(None, buffers, excluded, state)
            kept = [place for place, row in enumerate(rows) if self.federation.ids[row] not in excluded]
            rows, vectors = [rows[place] for place in kept], vectors if vectors.ndim == 1 else vectors[kept]
        state, plan = self.method.plan(state, probed)
        work = self._planned(plan, rows)
        values = probe(self.engine, vectors, buffers, rows, self.extras)
        result = self._train(t, vectors, buffers, rows, work)
        deltas = result.deltas.cpu().view(len(rows), -1)
        values |= self._of_training(result, model, state, rows)
        reports, unusable = self._collect(t, model, rows, values, deltas, work.momentum, result.buffers.cpu())
        excluded |= unusable
        if reports is None:
            return Answers(None, buffers, excluded, state)
        if "validation_accuracies" in self.extras:
            scores = self._validated(self.method.validated(state, reports), buffers)
            reports = replace(reports, extras={**reports.extras, "validation_accuracies": scores})
        return Answers(reports, self._mean_buffers(reports, rows, result.buffers.cpu(), buffers), excluded, state)

    def _sent(self, model: Tensor, state: State, rows: Sequence[int]) -> Tensor:
        """The models that clients start from: one for all [D]; or one for each [K, D]; or M for each [K * M, D]."""
        own = self.method.received(state, torch.tensor(rows))
        if own is not None:
            return own
        n_models = self.method.n_models
        return model if n_models == 1 else model.view(n_models, -1).repeat(len(rows), 1)

    def _planned(self, plan: Plan, rows: Sequence[int]) -> LocalWork:
        multipliers = None if plan.multipliers is None else plan.multipliers[torch.tensor(rows)]
        if multipliers is not None and self.method.n_models > 1:
            multipliers = multipliers.repeat_interleave(self.method.n_models)
        work = replace(self.work, multipliers=multipliers, pull=plan.pull, pull_share=plan.pull_share)
        if plan.one_full_step:
            work = replace(work, momentum=0.0, epochs=1, batch_size=max(self.federation.sizes))
        return work

    def _train(self, t: int, vectors: Tensor, buffers: Tensor, rows: Sequence[int], work: LocalWork) -> LocalResult:
        repeated = [row for row in rows for _ in range(self.method.n_models)]
        return self.engine.train(vectors, buffers, repeated, work, (self.seed, "batches", t))

    def _of_training(self, result: LocalResult, model: Tensor, state: State, rows: Sequence[int]) -> dict[str, Tensor]:
        """What local training says of each client beside its delta."""
        n_models = self.method.n_models
        values = {"losses": result.losses, "steps": result.steps.view(-1, n_models)[:, 0]}
        if n_models > 1 or "losses_of_each" in self.extras:
            each = result.losses.view(-1, n_models)
            served = self.method.served(state, model)
            shares = torch.full_like(each, 1 / n_models) if served is None else served.shares[torch.tensor(rows)].to(each)
            values |= {"losses_of_each": each, "losses": (shares * each).sum(dim=1)}
        if result.first_deltas is not None:
            values["first_deltas"] = result.first_deltas.cpu()
        return values

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
        losses = values["losses"].tolist() if "losses" in values else [0.0] * len(rows)
        steps = values["steps"].tolist() if "steps" in values else [1.0] * len(rows)
        sent = [
            ClientReport(
                self.federation.ids[row],
                deltas[i],
                losses[i],
                self.federation.sizes[row],
                self.uncertainty.values[self.federation.ids[row]],
                steps[i],
                extras={name: value[i] for name, value in extras.items()},
                buffers=torch.zeros(0) if buffers is None else buffers[i],
            )
            for i, row in enumerate(rows)
        ]
        reports, excluded = collect(
            sent, self.federation.ids, len(model), t, s.lr, s.momentum if momentum is None else momentum, s.on_bad_report
        )
        return (None if reports is None else replace(reports, model=model)), excluded

    def _validated(self, models: Tensor, buffers: Tensor) -> Tensor:
        return torch.cat([self.engine.evaluate(model, buffers, self.validation)[1] for model in models])

    def _mean_buffers(self, reports: Reports, rows: Sequence[int], of_clients: Tensor, before: Tensor) -> Tensor:
        if not before.numel():
            return before
        ids = [self.federation.ids[row] for row in rows]
        shares = reports.sizes / reports.sizes.sum()
        return shares @ of_clients[[ids.index(name) for name in reports.ids]]
