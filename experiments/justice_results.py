"""Files of results of the experiments on theories."""

from __future__ import annotations

import csv
from pathlib import Path

RESULTS = Path(__file__).parent / "results"
BUDGET = 2.0
Row = dict[str, str]


def read(name: str) -> list[Row]:
    """Return the rows of a file of results; none if there is no such file."""
    path = RESULTS / f"{name}.csv"
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))
