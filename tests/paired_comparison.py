"""A comparison of given numbers, without training, for the tests of reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from paired_runs import FEDAVG, LEVELS, UNCERTAINTIES, WIGGLES

from udjfl.methods import FedAvg, Method
from udjfl.metrics import compute_metrics
from udjfl.settings import CompareSettings
from udjfl.simulation.comparison import Comparison
from udjfl.simulation.method_summary import MethodSummary, summarise_method
from udjfl.statistics import summarise
from udjfl.tasks import ACCURACY, ScoreKind
from udjfl.training.result import FinishedRun, outcome_of


def compare_gains(
    gains: Mapping[Method, Sequence[float]],
    seeds: int = 5,
    test_sizes: Sequence[int] | None = (80,) * 5,
    n_classes: int | None = 10,
    score: ScoreKind = ACCURACY,
    **changes: Any,
) -> Comparison:
    """Compare methods with FedAvg whose clients gain so many points, up to a wiggle by seed.

    If less of a score is better, or if it is no percentage, FedAvg's errors in hundredths are in
    place of its accuracies, and a gain of a point is one hundredth less.
    """
    references = {
        seed: _make_run(FedAvg(), seed, [0.0] * 5, None, test_sizes, n_classes, score)
        for seed in range(seeds)
    }
    rows = [summarise_method(FedAvg(), references, references)]
    for method, of_clients in gains.items():
        runs = {
            seed: _make_run(
                method,
                seed,
                [gain + WIGGLES[seed % 5] for gain in of_clients],
                reference,
                test_sizes,
                n_classes,
                score,
            )
            for seed, reference in references.items()
        }
        rows.append(summarise_method(method, runs, references))
    return Comparison("by hand", tuple(range(seeds)), CompareSettings(), tuple(rows), **changes)


def _make_run(
    method: Method,
    seed: int,
    gains: Sequence[float],
    reference: FinishedRun | None,
    test_sizes: Sequence[int] | None,
    n_classes: int | None,
    score: ScoreKind,
) -> FinishedRun:
    names = [f"client-{number}" for number in range(1, 6)]
    level = LEVELS[seed % 5]

    def judged(accuracy: float) -> float:
        return accuracy if score.percent else (100 - accuracy) / 100

    run = FinishedRun(
        method=method,
        seed=seed,
        metrics={"global_accuracy": judged(95.0 + level + sum(gains) / 5)},
        undefined={},
        client_scores={
            name: judged(a + level + gain)
            for name, a, gain in zip(names, FEDAVG, gains, strict=True)
        },
        score=score,
        uncertainty=dict(zip(names, UNCERTAINTIES, strict=True)),
        test_sizes=None if test_sizes is None else dict(zip(names, test_sizes, strict=True)),
        n_classes=n_classes,
    )
    metrics, undefined = compute_metrics(outcome_of(run, reference))
    run.metrics.update(metrics)
    run.undefined.update(undefined)
    return run


def with_alone(comparison: Comparison, alone: dict[str, float]) -> Comparison:
    """Give every client the same accuracy alone on every seed."""

    def add(row: MethodSummary) -> MethodSummary:
        outcomes = tuple(replace(o, alone=list(alone.values())) for o in row.runs.outcomes)
        summaries = {client: summarise([value]) for client, value in alone.items()}
        return replace(row, runs=replace(row.runs, outcomes=outcomes), accuracy_alone=summaries)

    return replace(comparison, rows=tuple(map(add, comparison.rows)))
