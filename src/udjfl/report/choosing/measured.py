"""The effects of the theories in the studies of experiments/JUSTICE.md."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

MEASURED = Path(__file__).parent / "measured.json"
# "fresh": other seeds and more of them; "holdout": examples held out of training are scored.
STUDIES = (
    *("scanners", "dirty-digits", "dirty-digits-fresh", "heart", "heart-fresh"),
    *("signs", "signs-fresh", "signs-holdout", "dirty-mnist"),
)


@dataclass(frozen=True)
class Measurement:
    """One theory in one study: the verdict over seeds, and what it cost.

    mean_change      points of the clients' mean accuracy, against FedAvg
    within_budget    runs whose mean ended within 2 points of FedAvg's, of `seeds`
    """

    data: str
    theory: str
    has_budget: bool
    kind: str
    sentence: str
    seeds: int
    mean_change: float
    within_budget: int


def read_measurements() -> list[Measurement]:
    """Return the measurements of all studies."""
    return [Measurement(**row) for row in json.loads(MEASURED.read_text(encoding="utf-8"))]


def measurements_of(study: str, rows: Iterable[Mapping[str, str]]) -> list[Measurement]:
    """Make measurements of the lines of a study's CSV file (results/justice-STUDY.csv)."""
    return [
        Measurement(
            data=study,
            theory=row["theory"],
            has_budget="budget=" in row["method"],
            kind=row["kind"],
            sentence=row["sentence"],
            seeds=int(row["seeds"]),
            mean_change=float(row["mean_change"]),
            within_budget=int(row["within_budget"]),
        )
        for row in rows
    ]


def write_measurements(measurements: Iterable[Measurement]) -> None:
    """Write the file that `read_measurements` reads."""
    rows = [asdict(measurement) for measurement in measurements]
    MEASURED.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
