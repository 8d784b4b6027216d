"""What a finished run says."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import nn

from udjfl import metrics
from udjfl.errors import SettingsError, did_you_mean
from udjfl.methods import Method, ServedModels
from udjfl.models import Mixture, from_vector
from udjfl.training.run_folder import History, RunFolder
from udjfl.uncertainty import without_nan


@dataclass(frozen=True)
class Result:
    """A finished run.

    model             the server's final model; where a method trains several side by side it has no meaning, `model_for` has
    model_for         the model that a client uses in the end
    metrics           the names of `udjfl.metrics.METRICS` -> percent (Pearson's r: -1 to 1); None where undefined, with the
                      reason in `undefined`; `psi` only where a reference was given
    client_accuracy   percent, on each client's own test data
    uncertainty       each client's uncertainty, as the method saw it; NaN where it was not told
    epistemic         each client's epistemic uncertainty, where an ensemble measured it
    history           every record of every round
    notes             what a reader has to know about the method on this federation
    served            the models that clients use in the end, where they differ between clients
    """

    method: Method
    seed: int
    model: nn.Module
    metrics: dict[str, float | None]
    undefined: dict[str, str]
    global_accuracy: float | None
    client_accuracy: dict[str, float]
    uncertainty: dict[str, float]
    epistemic: dict[str, float] | None
    history: History
    folder: RunFolder | None = None
    notes: list[str] = field(default_factory=list)
    served: ServedModels | None = None

    def model_for(self, client: str) -> nn.Module:
        """The model that a client uses in the end. For most methods everybody's is `model`."""
        if client not in self.uncertainty:
            raise SettingsError(
                f"client: there is no {client!r}.{did_you_mean(str(client), self.uncertainty)}"
            )
        if self.served is None:
            return self.model
        shares = self.served.shares[list(self.uncertainty).index(client)]
        members = []
        for vector, share in zip(self.served.models, shares.tolist(), strict=True):
            if share > 0:
                members.append(copy.deepcopy(self.model))
                from_vector(members[-1], vector)
        return members[0] if len(members) == 1 else Mixture(members, shares[shares > 0])


class Outcome(Protocol):
    """What tables show of a finished run: a `Result`, or what its folder says of it."""

    @property
    def method(self) -> Method: ...
    @property
    def seed(self) -> int: ...
    @property
    def metrics(self) -> Mapping[str, float | None]: ...
    @property
    def undefined(self) -> Mapping[str, str]: ...
    @property
    def client_accuracy(self) -> Mapping[str, float]: ...
    @property
    def uncertainty(self) -> Mapping[str, float]: ...
    @property
    def epistemic(self) -> Mapping[str, float] | None: ...
    @property
    def notes(self) -> Sequence[str]: ...


def final_metrics(
    global_accuracy: float | None,
    accuracies: list[float],
    uncertainties: list[float],
    before: list[float] | None,
) -> tuple[dict[str, float | None], dict[str, str]]:
    """All metrics, and why some are undefined. Those that rank clients leave out whoever has no uncertainty."""
    known = [i for i, u in enumerate(uncertainties) if math.isfinite(u)]
    ranked = (
        [accuracies[i] for i in known],
        [uncertainties[i] for i in known],
        before and [before[i] for i in known],
    )
    values: dict[str, float | None] = dict.fromkeys(metric.key for metric in metrics.METRICS)
    values |= {"global_accuracy": global_accuracy, "worst_accuracy": metrics.worst(accuracies)}
    values |= {"mean_accuracy": metrics.mean(accuracies), "std": metrics.std(accuracies)}
    if known:
        of_ranked = metrics.evaluate(global_accuracy, *ranked)
        values |= {
            key: of_ranked[key]
            for key in ("accuracy_most_uncertain", "accuracy_least_uncertain", "psi", "pearson_r")
        }
    if before is None:
        del values["psi"]
    why = {
        key: _why(key, global_accuracy, ranked if known else None)
        for key, value in values.items()
        if value is None
    }
    return values, why


def _why(key: str, global_accuracy: float | None, ranked: Any) -> str:
    """Why a metric is undefined. `ranked` is None where nobody has an uncertainty."""
    if key == "global_accuracy":
        return metrics.NO_GLOBAL_MODEL
    return (
        metrics.undefined_reason(key, global_accuracy, *ranked) if ranked else None
    ) or "No client has an uncertainty."


def summary(result: Outcome) -> dict[str, Any]:
    """A result as plain values, for files and for `--json`."""
    return {
        "method": result.method.name,
        "theory": list(result.method.theories),
        "label": result.method.label,
        "params": result.method.params,
        "grade": result.method.grade,
        "seed": result.seed,
        **result.metrics,
        "undefined": result.undefined,
        "notes": result.notes,
        "client_accuracy": result.client_accuracy,
        "uncertainty": without_nan(result.uncertainty),
        "epistemic": without_nan(result.epistemic),
    }
