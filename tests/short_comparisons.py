"""Settings of short comparisons, and a comparison as plain values."""

from __future__ import annotations

import json
from typing import Any

from udjfl.settings import CompareSettings
from udjfl.simulation.comparison import Comparison

SHORT: dict[str, Any] = {"rounds": 3, "hidden": 5, "uncertainty_epochs": 2}


def make_settings(**changes: Any) -> CompareSettings:
    return CompareSettings(**{**SHORT, "methods": ["rawls", "fedavg"], "seeds": [0, 3], **changes})


def to_plain(compared: Comparison) -> dict[str, Any]:
    """Convert to JSON and back; NaN, infinities and values that are not plain raise an error."""
    document: dict[str, Any] = json.loads(json.dumps(compared.as_dict(), allow_nan=False))
    return document
