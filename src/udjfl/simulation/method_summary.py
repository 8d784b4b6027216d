"""`MethodSummary`: what one method gave over all seeds, beside FedAvg on the same seeds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from udjfl.methods import Method
from udjfl.metrics import METRICS
from udjfl.statistics import PairedTest, Summary, paired_test, summarise
from udjfl.tasks import ACCURACY, R2, ScoreKind
from udjfl.training.learned import common_warning
from udjfl.training.result import FinishedRun, metric_value, outcome_of
from udjfl.training.service import service_theories
from udjfl.training.small_test_parts import is_too_small
from udjfl.verdicts import LeastAdvantaged, PairedRuns, Promise


@dataclass(frozen=True)
class MethodSummary:
    """One method over all seeds.

    against_fedavg     a paired test for every metric; empty for the reference itself
    undefined          why a metric has no value on some seed
    failed             why the method did not finish its training, by seed
    notes              what a reader has to know about the method on this federation
    runs               its outcomes beside the reference's, on the seeds where both finished
    test_sizes         the smallest test part of each client over seeds; None if unknown
    interval_widths    the mean width over seeds of the 95% interval that each client's score has
                       from its test examples, in points; only where that is known
    n_classes          the number of classes; None if unknown
    expected_accuracy  as `client_scores`, with ambiguous test examples scored by all their
                       labels; None where that was not measured
    accuracy_alone     of each client's own model, on train examples that it did not see; None where
                       that was not measured
    score_alone        the same on their held-out examples, as the method was given it; None if it
                       was not
    service            what clients are served of the common model, as in the settings
    common_scores      as `client_scores`, of the common model; None without a service
    served_theories    theories that the service serves, if the reference is without it
    warning            says that nobody learned under the reference, and why
    score              what is judged: accuracies and metrics are of it
    """

    method: Method
    metrics: dict[str, Summary]
    against_fedavg: dict[str, PairedTest]
    client_scores: dict[str, Summary]
    uncertainty: dict[str, Summary]
    undefined: dict[str, list[str]]
    failed: dict[int, str]
    notes: list[str]
    runs: PairedRuns = field(default_factory=PairedRuns)
    test_sizes: dict[str, int] | None = None
    n_classes: int | None = None
    expected_accuracy: dict[str, Summary] | None = None
    accuracy_alone: dict[str, Summary] | None = None
    service: str = "none"
    common_scores: dict[str, Summary] | None = None
    served_theories: tuple[str, ...] = ()
    warning: str | None = None
    score: ScoreKind = ACCURACY
    score_alone: dict[str, Summary] | None = None
    interval_widths: dict[str, float] = field(default_factory=dict)

    @property
    def too_small(self) -> list[str]:
        """The clients whose test parts are too small, as `small_test_parts` has the rule."""
        sizes, widths = self.test_sizes or {}, self.interval_widths
        return [c for c in self.client_scores if is_too_small(sizes.get(c), widths.get(c))]

    @property
    def theories(self) -> tuple[str, ...]:
        """The theories that the method serves, and those of a service that the reference lacks."""
        own = self.method.theories
        return (*own, *(theory for theory in self.served_theories if theory not in own))

    @property
    def label(self) -> str:
        """The label of the method, and the service."""
        label = self.method.label
        return label if self.service == "none" else f"{label}, served {self.service}"

    @property
    def budget(self) -> float | None:
        """Points of mean accuracy that the method may cost, if it says so.

        None for a method that keeps to a score given as a number, not to FedAvg's.
        """
        budget: float | None = getattr(self.method, "budget", None)
        return budget if getattr(self.method, "limit", None) is None else None

    @property
    def promise(self) -> Promise | None:
        """The promise of the method to each client, if it makes one."""
        client_budget: float | None = getattr(self.method, "client_budget", None)
        alone = getattr(self.method, "floor", None) == "alone"
        return Promise(client_budget, alone) if client_budget is not None or alone else None

    def least_advantaged(self, default: LeastAdvantaged) -> LeastAdvantaged:
        """Return how the method chooses the least advantaged, if it says so.

        Of clients alone the scores count that the method was given, or else those of the measure of
        uncertainty. A client without one has NaN, and is not among the least advantaged.
        """
        advantage = getattr(self.method, "advantage", None)
        alone, better = self.accuracy_alone, self.score.better
        if self.score_alone is not None:
            alone, better = self.score_alone, 1
        if advantage == "alone" and alone is not None:
            return {c: math.nan if s.mean is None else -better * s.mean for c, s in alone.items()}
        return advantage if advantage in ("uncertainty", "fedavg") else default

    def to_dict(self, seeds: Sequence[int]) -> dict[str, Any]:
        """Return plain values, for JSON."""
        expected, alone = self.expected_accuracy, self.accuracy_alone
        common = self.common_scores
        service = {} if self.service == "none" else {"service": self.service}
        return {
            "method": self.method.name,
            "theory": list(self.theories),
            "label": self.label,
            "grade": self.method.grade,
            "params": self.method.params,
            **service,
            "seeds": list(seeds),
            **_plain(self.metrics),
            "client_scores": _plain(self.client_scores),
            **({} if common is None else {"common_scores": _plain(common)}),
            **({} if expected is None else {"expected_accuracy": _plain(expected)}),
            **({} if alone is None else {"accuracy_alone": _plain(alone)}),
            **({} if self.score_alone is None else {"score_alone": _plain(self.score_alone)}),
            "uncertainty": _plain(self.uncertainty),
            "against_fedavg": {key: asdict(test) for key, test in self.against_fedavg.items()},
            "too_small": self.too_small,
            "undefined": self.undefined,
            "failed": {str(seed): reason for seed, reason in self.failed.items()},
            "notes": self.notes,
        }


def interval_of(summary: Summary) -> dict[str, Any]:
    """Return the mean over seeds and its 95% interval as plain values, for JSON."""
    return {"mean": summary.mean, "ci95": list(summary.ci95) if summary.ci95 else None}


def _plain(summaries: Mapping[str, Summary]) -> dict[str, Any]:
    return {k: {**interval_of(s), "values": list(s.values)} for k, s in summaries.items()}


def summarise_method(
    method: Method, by_seed: Mapping[int, FinishedRun | str], references: Mapping[int, FinishedRun]
) -> MethodSummary:
    """Summarise one method over seeds, beside the reference on the same seeds.

    A text in place of an outcome is the reason why there is none.
    """
    results = {seed: result for seed, result in by_seed.items() if not isinstance(result, str)}
    ids = list(next(iter(references.values())).client_scores)

    def values(outcomes: Mapping[int, FinishedRun], key: str) -> list[float | None]:
        return [metric_value(outcomes[s], key) if s in outcomes else None for s in by_seed]

    def accuracies(client: str) -> list[float | None]:
        return [results[s].client_scores[client] if s in results else None for s in by_seed]

    def uncertainties(client: str) -> list[float | None]:
        known = [references[s].uncertainty[client] if s in references else None for s in by_seed]
        return [None if value is None or not math.isfinite(value) else value for value in known]

    runs = list(by_seed.values())
    is_reference = all(results.get(seed) is outcome for seed, outcome in references.items())
    undefined = sorted({key for outcome in results.values() for key in outcome.undefined})
    before = next(iter(references.values())).service
    service = next((outcome.service for outcome in results.values()), before)
    return MethodSummary(
        method=method,
        metrics={key: summarise(values(results, key)) for key in METRICS},
        against_fedavg={}
        if is_reference
        else {
            key: paired_test(values(results, key), values(references, key), metric.test_scale)
            for key, metric in METRICS.items()
        },
        client_scores={client: summarise(accuracies(client)) for client in ids},
        uncertainty={client: summarise(uncertainties(client)) for client in ids},
        undefined={
            key: sorted({r.undefined[key] for r in results.values() if key in r.undefined})
            for key in undefined
        },
        failed={seed: reason for seed, reason in by_seed.items() if isinstance(reason, str)},
        notes=sorted({note for outcome in results.values() for note in outcome.notes}),
        runs=_pair(ids, results, references),
        test_sizes=_smallest_test_parts(ids, references.values()),
        n_classes=next(iter(references.values())).n_classes,
        expected_accuracy=_by_client(ids, [_or_none(r, "expected_accuracy") for r in runs]),
        accuracy_alone=_by_client(ids, [_or_none(r, "accuracy_alone") for r in runs]),
        score_alone=_by_client(ids, [_or_none(r, "score_alone") for r in runs]),
        service=service,
        common_scores=_by_client(ids, [_or_none(r, "common_scores") for r in runs]),
        served_theories=() if service == before else service_theories(service),
        score=next(iter(references.values())).score,
        warning=common_warning({seed: run.warning for seed, run in references.items()}),
        interval_widths=_mean_widths(ids, results.values()),
    )


def _pair(
    ids: Sequence[str], results: Mapping[int, FinishedRun], references: Mapping[int, FinishedRun]
) -> PairedRuns:
    seeds = [seed for seed in results if seed in references]
    score = next(iter(references.values())).score
    factor = score.points_factor(
        value for run in references.values() for value in run.client_scores.values()
    )
    outcomes = [outcome_of(results[seed], references[seed]) for seed in seeds]
    before = [outcome_of(references[seed], references[seed]) for seed in seeds]
    alone = [_in_order(ids, _promised_alone(results[seed])) for seed in seeds]
    scale = factor * score.better
    return PairedRuns(
        tuple(ids),
        tuple(outcome.as_benefits(factor) for outcome in outcomes),
        tuple(outcome.as_benefits(factor) for outcome in before),
        tuple(None if own is None else [scale * value for value in own] for own in alone),
        score,
    )


def _promised_alone(run: FinishedRun) -> Mapping[str, float] | None:
    """Return what a promise of no less than alone is judged by.

    That is the number which the method was held to, if it was and that is the score that is judged;
    else the accuracy alone that the measure of uncertainty found.
    """
    is_same = run.score in (ACCURACY, R2)
    return run.score_alone if is_same and run.score_alone is not None else run.accuracy_alone


def _in_order(ids: Sequence[str], values: Mapping[str, float] | None) -> list[float] | None:
    return None if values is None or set(ids) - set(values) else [values[name] for name in ids]


def _smallest_test_parts(ids: Sequence[str], runs: Iterable[FinishedRun]) -> dict[str, int] | None:
    sizes = [run.test_sizes for run in runs]
    known = [size for size in sizes if size is not None]
    if not known:
        return None
    return {client: min(size[client] for size in known) for client in ids}


def _mean_widths(ids: Sequence[str], runs: Iterable[FinishedRun]) -> dict[str, float]:
    widths = [run.interval_widths for run in runs]
    known = {client: [of[client] for of in widths if client in of] for client in ids}
    return {client: math.fsum(of) / len(of) for client, of in known.items() if of}


def _or_none(run: FinishedRun | str, name: str) -> dict[str, float] | None:
    """Return numbers of a run by client; None if it failed, or has none."""
    values: dict[str, float] | None = None if isinstance(run, str) else getattr(run, name)
    return values


def _by_client(
    ids: Sequence[str], measured: Sequence[dict[str, float] | None]
) -> dict[str, Summary] | None:
    """Summarise numbers that some seeds have, client by client."""
    if not any(measured):
        return None
    return {
        client: summarise([scores.get(client) if scores else None for scores in measured])
        for client in ids
    }
