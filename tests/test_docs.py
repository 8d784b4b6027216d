"""What the documents quote is what the measurements say."""

from __future__ import annotations

import csv
import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
STEPS = (ROOT / "docs" / "steps.md").read_text(encoding="utf-8")


def measure_steps():
    spec = importlib.util.spec_from_file_location(
        "measure_steps", ROOT / "experiments" / "measure_steps.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "path", sorted((ROOT / "experiments").glob("steps-*.csv")), ids=lambda path: path.stem
)
def test_the_tables_on_steps_are_the_measurements(path: Path) -> None:
    assert f"experiments/{path.name}" in STEPS  # the command that made it
    assert measure_steps().markdown(path) in STEPS


def test_the_default_step_rule_is_the_one_the_documents_name() -> None:
    from udjfl.methods.udj import DEFAULT_STEP

    assert f"Hence `{DEFAULT_STEP}`." in STEPS
    assert f"why `{DEFAULT_STEP}` is the default" in (ROOT / "README.md").read_text(
        encoding="utf-8"
    )


def test_the_catalogue_is_the_registry() -> None:
    """`make docs` makes the tables anew after a change."""
    from udjfl.methods import METHODS
    from udjfl.report.methods import catalogue_markdown

    page = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8")
    assert catalogue_markdown() in page
    _, _, partial = page.partition("## When not everybody answers")
    table = partial.partition("## ")[0]
    assert [kind.title for kind in METHODS.values() if kind.title not in table] == []


@pytest.mark.parametrize(
    "page",
    sorted(
        str(p.relative_to(ROOT))
        for p in [ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("experiments/*.md")]
    ),
)
def test_links_lead_somewhere(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#:]+)\)", text):
        assert ((ROOT / page).parent / target).exists(), target


@pytest.mark.parametrize(
    ("method", "metric", "pages"),
    [
        ("UDJ-FL rawls", "psi", ("README.md", "docs/steps.md")),
        ("UDJ-FL egalitarian", "std", ("README.md", "docs/steps.md")),
        ("UDJ-FL utilitarian", "global_accuracy", ("docs/steps.md",)),
        ("UDJ-FL utilitarian (gamma=-0.5)", "global_accuracy", ("docs/steps.md",)),
        ("UDJ-FL utilitarian (beta=0.1)", "global_accuracy", ("docs/steps.md",)),
        ("UDJ-FL desert", "pearson_r", ("docs/steps.md",)),
    ],
)
def test_the_differences_quoted_in_words_are_the_measured_ones(
    method: str, metric: str, pages: tuple[str, ...]
) -> None:
    with (ROOT / "experiments" / "steps-points-dirty-digits.csv").open(encoding="utf-8") as file:
        (row,) = [
            row
            for row in csv.DictReader(file)
            if (row["method"], row["metric"]) == (method, metric)
        ]
    for page in pages:
        assert f"{abs(float(row['difference'])):.2f}" in (ROOT / page).read_text(encoding="utf-8")
