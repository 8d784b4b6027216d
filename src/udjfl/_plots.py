"""Charts of results and comparisons, for their methods `plot...`."""

from __future__ import annotations

import importlib
from typing import Any


def draw(name: str, subject: Any) -> Any:
    """Call a function of `udjfl.report.html.plots`, the package above all that can be drawn."""
    return getattr(importlib.import_module("udjfl.report.html.plots"), name)(subject)
