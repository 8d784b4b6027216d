"""`Comparison`: methods side by side over seeds, with paired tests against FedAvg."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from udjfl.methods import Method
from udjfl.metrics import METRICS
from udjfl.settings import CompareSettings, DataSettings
from udjfl.statistics import (
    THEORY_METRIC,
    PairedTest,
    Summary,
    metric_of,
    paired_test,
    rank_methods,
    summarise,
)
from udjfl.training.lifecycle import versions
from udjfl.training.result import FinishedRun, metric_value


@dataclass(frozen=True)
class MethodSummary:
    """One method over all seeds.

    against_fedavg   a paired test for every metric; empty for the reference itself
    undefined        why a metric has no value on some seed
    failed           why the method did not finish its training, by seed
    notes            what a reader has to know about the method on this federation
    """

    method: Method
    metrics: dict[str, Summary]
    against_fedavg: dict[str, PairedTest]
    client_accuracy: dict[str, Summary]
    uncertainty: dict[str, Summary]
    undefined: dict[str, list[str]]
    failed: dict[int, str]
    notes: list[str]

    def to_dict(self, seeds: Sequence[int]) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return {
            "method": self.method.name,
            "theory": list(self.method.theories),
            "label": self.method.label,
            "grade": self.method.grade,
            "params": self.method.params,
            "seeds": list(seeds),
            **_plain(self.metrics),
            "client_accuracy": _plain(self.client_accuracy),
            "uncertainty": _plain(self.uncertainty),
            "against_fedavg": {key: asdict(test) for key, test in self.against_fedavg.items()},
            "undefined": self.undefined,
            "failed": {str(seed): reason for seed, reason in self.failed.items()},
            "notes": self.notes,
        }


@dataclass(frozen=True)
class Comparison:
    """Methods side by side; the reference, FedAvg, is the first row.

    With `own_data` the data are not those that the settings name.
    """

    data: str
    seeds: tuple[int, ...]
    settings: CompareSettings
    rows: tuple[MethodSummary, ...]
    own_data: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        left_out = set(DataSettings.model_fields) if self.own_data else set()
        settings = self.settings.to_flat()
        return {
            "data": self.data,
            "seeds": list(self.seeds),
            "settings": {key: value for key, value in settings.items() if key not in left_out},
            "versions": versions(),
            "reference": self.rows[0].method.label,
            "methods": [row.to_dict(self.seeds) for row in self.rows],
            "rankings": {theory: _rank(theory, self.rows) for theory in THEORY_METRIC},
        }


def _interval(summary: Summary) -> dict[str, Any]:
    return {"mean": summary.mean, "ci95": list(summary.ci95) if summary.ci95 else None}


def _plain(summaries: Mapping[str, Summary]) -> dict[str, Any]:
    return {k: {**_interval(s), "values": list(s.values)} for k, s in summaries.items()}


def _rank(theory: str, rows: Sequence[MethodSummary]) -> dict[str, Any]:
    metric = metric_of(theory)
    order = []
    for entry in rank_methods(theory, [row.metrics for row in rows]):
        method = rows[entry.index].method
        order.append(
            {
                "rank": entry.rank,
                "label": method.label,
                "method": method.name,
                "grade": method.grade,
                "serves": theory in method.theories,
                **_interval(entry.value),
                "seeds": entry.value.n,
            }
        )
    better = "higher" if metric.better > 0 else "lower"
    return {"metric": metric.key, "better": better, "order": order}


def summarise_method(
    method: Method, by_seed: Mapping[int, FinishedRun | str], references: Mapping[int, FinishedRun]
) -> MethodSummary:
    """Summarise one method over seeds, beside the reference on the same seeds.

    A text in place of an outcome is the reason why there is none.
    """
    results = {seed: result for seed, result in by_seed.items() if not isinstance(result, str)}
    ids = list(next(iter(references.values())).client_accuracy)

    def values(outcomes: Mapping[int, FinishedRun], key: str) -> list[float | None]:
        return [metric_value(outcomes[s], key) if s in outcomes else None for s in by_seed]

    def accuracies(client: str) -> list[float | None]:
        return [results[s].client_accuracy[client] if s in results else None for s in by_seed]

    def uncertainties(client: str) -> list[float | None]:
        known = [outcome.uncertainty[client] for outcome in references.values()]
        return [value if math.isfinite(value) else None for value in known]

    is_reference = all(results.get(seed) is outcome for seed, outcome in references.items())
    keys = list(METRICS)
    undefined = sorted({key for outcome in results.values() for key in outcome.undefined})
    return MethodSummary(
        method=method,
        metrics={key: summarise(values(results, key)) for key in keys},
        against_fedavg={}
        if is_reference
        else {key: paired_test(values(results, key), values(references, key)) for key in keys},
        client_accuracy={client: summarise(accuracies(client)) for client in ids},
        uncertainty={client: summarise(uncertainties(client)) for client in ids},
        undefined={
            key: sorted({r.undefined[key] for r in results.values() if key in r.undefined})
            for key in undefined
        },
        failed={seed: reason for seed, reason in by_seed.items() if isinstance(reason, str)},
        notes=sorted({note for outcome in results.values() for note in outcome.notes}),
    )
