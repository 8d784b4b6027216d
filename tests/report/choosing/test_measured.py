"""The measured numbers in the package are those of the studies."""

from __future__ import annotations

from pathlib import Path

from script_modules import load_script

from udjfl.report.choosing import read_measurements
from udjfl.report.choosing.measured import STUDIES

ROOT = Path(__file__).parents[3]


def test_the_packaged_numbers_are_those_of_the_studies() -> None:
    """If this fails after a study was repeated, run `make docs`."""
    script = load_script(ROOT / "scripts" / "make_choosing_page.py")
    assert read_measurements() == script.read_studies()
    page = (ROOT / "experiments" / "JUSTICE.md").read_text(encoding="utf-8")
    assert all(measurement.sentence in page for measurement in read_measurements())


def test_no_study_is_left_out() -> None:
    files = (ROOT / "experiments" / "results").glob("justice-*.csv")
    studies = {path.stem.removeprefix("justice-") for path in files}
    assert {study for study in studies if not study.endswith("-seeds")} == set(STUDIES)
