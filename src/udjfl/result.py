"""What a finished run says."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from torch import nn

from udjfl import metrics
from udjfl.history import History, RunFolder
from udjfl.methods import Method
from udjfl.uncertainty import without_nan


@dataclass(frozen=True)
class Result:
    """A finished run.

    model             the final model
    metrics           the names of `udjfl.metrics.METRICS` -> percent (Pearson's r: -1 to 1); None where undefined, with the
                      reason in `undefined`; `psi` only where a reference was given
    client_accuracy   percent, on each client's own test data
    uncertainty       each client's uncertainty, as the method saw it
    epistemic         each client's epistemic uncertainty, where an ensemble measured it
    history           every record of every round
    """

    method: Method
    seed: int
    model: nn.Module
    metrics: dict[str, float | None]
    undefined: dict[str, str]
    global_accuracy: float
    client_accuracy: dict[str, float]
    uncertainty: dict[str, float]
    epistemic: dict[str, float] | None
    history: History
    folder: RunFolder | None = None


def final_metrics(
    global_accuracy: float, accuracies: list[float], uncertainties: list[float], before: list[float] | None
) -> tuple[dict[str, float | None], dict[str, str]]:
    """All metrics, and why some are undefined. Those that rank clients leave out whoever has no uncertainty."""
    known = [i for i, u in enumerate(uncertainties) if math.isfinite(u)]
    ranked = ([accuracies[i] for i in known], [uncertainties[i] for i in known], before and [before[i] for i in known])
    values: dict[str, float | None] = dict.fromkeys(metric.key for metric in metrics.METRICS)
    values |= {"global_accuracy": global_accuracy, "worst_accuracy": metrics.worst(accuracies)}
    values |= {"mean_accuracy": metrics.mean(accuracies), "std": metrics.std(accuracies)}
    if known:
        of_ranked = metrics.evaluate(global_accuracy, *ranked)
        values |= {key: of_ranked[key] for key in ("accuracy_most_uncertain", "accuracy_least_uncertain", "psi", "pearson_r")}
    if before is None:
        del values["psi"]
    why = {
        key: (metrics.undefined_reason(key, global_accuracy, *ranked) if known else None) or "No client has an uncertainty."
        for key, value in values.items()
        if value is None
    }
    return values, why


def summary(result: Result) -> dict[str, Any]:
    """A result as plain values, for files and for `--json`."""
    return {
        "method": result.method.name,
        "theory": result.method.theory,
        "label": result.method.label,
        "params": result.method.params,
        "grade": result.method.grade,
        "seed": result.seed,
        **result.metrics,
        "undefined": result.undefined,
        "client_accuracy": result.client_accuracy,
        "uncertainty": without_nan(result.uncertainty),
        "epistemic": without_nan(result.epistemic),
    }
