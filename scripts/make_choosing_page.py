"""Write docs/choosing.md, and the measured numbers in it from the studies: make docs

Run it after a change of src/udjfl/report/choosing or of experiments/results/justice-*.csv.
"""

from __future__ import annotations

import csv
from pathlib import Path

from udjfl.report.choosing.markdown import choosing_markdown
from udjfl.report.choosing.measured import (
    STUDIES,
    Measurement,
    measurements_of,
    write_measurements,
)

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "choosing.md"


def read_studies() -> list[Measurement]:
    """Read what was measured, study by study."""
    measurements = []
    for study in STUDIES:
        path = ROOT / "experiments" / "results" / f"justice-{study}.csv"
        with path.open(encoding="utf-8", newline="") as file:
            measurements += measurements_of(study, csv.DictReader(file))
    return measurements


if __name__ == "__main__":
    write_measurements(read_studies())
    PAGE.write_text(choosing_markdown(), encoding="utf-8")
