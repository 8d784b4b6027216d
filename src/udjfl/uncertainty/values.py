"""The uncertainties of a federation's clients, as a value that run folders keep."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

# A model can be certain to the last bit, as for a client with one class: its uncertainty is small,
# not zero.
SMALLEST = 1e-12


@dataclass(frozen=True)
class Uncertainty:
    """One number per client, in client order, and how it was measured; NaN where it failed."""

    kind: str
    values: dict[str, float]
    epistemic: dict[str, float] | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, with null in place of NaN."""
        return {
            "kind": self.kind,
            "values": without_nan(self.values),
            "epistemic": without_nan(self.epistemic),
        }

    @staticmethod
    def from_dict(kept: Mapping[str, Any]) -> Uncertainty:
        def numbers(column: Mapping[str, float | None]) -> dict[str, float]:
            return {
                name: math.nan if value is None else float(value) for name, value in column.items()
            }

        epistemic = kept.get("epistemic")
        return Uncertainty(
            kept["kind"], numbers(kept["values"]), None if epistemic is None else numbers(epistemic)
        )


def without_nan(values: Mapping[str, float] | None) -> dict[str, float | None] | None:
    """Replace numbers that are not finite by None."""
    return (
        None
        if values is None
        else {name: value if math.isfinite(value) else None for name, value in values.items()}
    )


def mean_uncertainty(values: Tensor) -> float:
    """Return the mean over examples, but not less than the smallest uncertainty; NaN stays NaN."""
    mean = float(values.mean())
    return SMALLEST if mean < SMALLEST else mean
