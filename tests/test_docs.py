"""The documents: quoted numbers are the measured ones, and links and paths exist."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest
from conftest import load_script

ROOT = Path(__file__).parent.parent
STEPS = (ROOT / "experiments" / "STEPS.md").read_text(encoding="utf-8")
ADVICE = (ROOT / "docs" / "steps.md").read_text(encoding="utf-8")
PATTERNS = (
    "*.md",
    "docs/*.md",
    "experiments/*.md",
    "benchmarks/*.md",
    "apps/**/*.md",
    "tests/**/*.md",
)
PAGES = sorted(str(page.relative_to(ROOT)) for pattern in PATTERNS for page in ROOT.glob(pattern))
FOLDERS = "src|tests|apps|benchmarks|scripts|examples|experiments|docs"
# CONTRIBUTING.md proposes to create these.
NEW_FILES = {
    "src/udjfl/data/sources/schools.py",
    "src/udjfl/methods/trimmed_mean.py",
    "tests/data/sources/test_schools.py",
    "tests/methods/test_trimmed_mean.py",
}


@pytest.mark.parametrize(
    "path", sorted((ROOT / "experiments").glob("steps-*.csv")), ids=lambda path: path.stem
)
def test_the_tables_of_step_rules_are_the_measured_ones(path: Path) -> None:
    assert f"experiments/{path.name}" in STEPS  # in the command that makes it
    assert load_script(ROOT / "experiments" / "measure_steps.py").markdown(path) in STEPS


def test_the_default_step_rule_is_the_one_the_documents_name() -> None:
    from udjfl.methods.udj import DEFAULT_STEP

    assert f"Hence `{DEFAULT_STEP}`." in ADVICE
    assert f"why `{DEFAULT_STEP}` is the default" in (ROOT / "README.md").read_text(
        encoding="utf-8"
    )


def test_the_catalogue_lists_the_registered_methods() -> None:
    """If this fails after a change of a method, run `make docs`."""
    from udjfl.methods import METHODS
    from udjfl.report.methods import catalogue_markdown

    page = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8")
    assert catalogue_markdown() in page
    _, _, partial = page.partition("## Partial participation")
    table = partial.partition("## ")[0]
    assert [cls.title for cls in METHODS.values() if cls.title not in table] == []


def without_code_blocks(text: str) -> str:
    return re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)


@pytest.mark.parametrize("page", PAGES)
def test_relative_links_exist(page: str) -> None:
    text = without_code_blocks((ROOT / page).read_text(encoding="utf-8"))
    missing = [
        target
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text)
        if not ((ROOT / page).parent / target).exists()
    ]
    assert missing == []


@pytest.mark.parametrize("page", PAGES)
def test_named_files_of_the_repository_exist(page: str) -> None:
    """Paths in code spans and commands, such as `src/udjfl/settings.py`; NEW_FILES are examples."""
    text = (ROOT / page).read_text(encoding="utf-8")
    named = re.findall(rf"(?<![\w./-])(?:{FOLDERS})/[\w./-]+\.(?:py|toml|md|csv)\b", text)
    assert sorted({path for path in named if not (ROOT / path).exists()} - NEW_FILES) == []


@pytest.mark.parametrize("page", PAGES)
def test_named_make_targets_exist(page: str) -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
    text = (ROOT / page).read_text(encoding="utf-8")
    blocks = "".join(re.findall(r"^```.*?^```", text, re.M | re.S))
    named = re.findall(r"^make ([a-z-]+)", blocks, re.M) + re.findall(r"`make ([a-z-]+)", text)
    assert sorted(set(named) - set(targets)) == []


def measured(name: str, method: str, metric: str) -> dict[str, str]:
    """Return one line of a CSV file of the experiments."""
    with (ROOT / "experiments" / name).open(encoding="utf-8") as file:
        lines = csv.DictReader(file)
        (row,) = [line for line in lines if (line["method"], line["metric"]) == (method, metric)]
    return row


@pytest.mark.parametrize(
    ("method", "metric", "pages"),
    [
        ("UDJ-FL rawls", "psi", ("experiments/STEPS.md",)),
        ("UDJ-FL egalitarian", "std", ("experiments/STEPS.md",)),
        ("UDJ-FL utilitarian", "global_accuracy", ("experiments/STEPS.md",)),
        ("UDJ-FL utilitarian (gamma=-0.5)", "global_accuracy", ("experiments/STEPS.md",)),
        ("UDJ-FL utilitarian (beta=0.1)", "global_accuracy", ("experiments/STEPS.md",)),
        ("UDJ-FL desert", "pearson_r", ("experiments/STEPS.md",)),
    ],
)
def test_the_differences_in_the_text_are_the_measured_ones(
    method: str, metric: str, pages: tuple[str, ...]
) -> None:
    row = measured("steps-points-dirty-digits.csv", method, metric)
    for page in pages:
        assert f"{abs(float(row['difference'])):.2f}" in (ROOT / page).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("method", "metric", "column"),
    [
        ("FedAvg", "accuracy_most_uncertain", "mean"),
        *(
            (f"UDJ-FL {name}", "global_accuracy", "mean")
            for name in (
                *("rawls", "rawls (step=paper)", "rawls (step=safe)", "rawls (step=normalised)"),
                *("desert", "desert (step=paper)", "desert (step=authors)", "desert (step=safe)"),
                *("desert (step=normalised)", "utilitarian", "utilitarian (step=paper)"),
            )
        ),
        ("UDJ-FL rawls (step=safe)", "std", "mean"),
        ("UDJ-FL rawls (step=safe)", "accuracy_most_uncertain", "mean"),
        ("UDJ-FL utilitarian", "accuracy_most_uncertain", "mean"),
        ("UDJ-FL utilitarian (step=paper)", "accuracy_most_uncertain", "mean"),
        ("UDJ-FL rawls", "psi", "difference"),
        ("UDJ-FL rawls", "global_accuracy", "difference"),
    ],
)
def test_the_advice_on_step_rules_quotes_the_measurement(
    method: str, metric: str, column: str
) -> None:
    row = measured("steps-rules-dirty-digits.csv", method, metric)
    assert f"{abs(float(row[column])):.2f}" in ADVICE


@pytest.mark.parametrize(
    ("method", "metrics"),
    [
        ("UDJ-FL rawls (gamma=2)", ("psi", "global_accuracy")),
        ("UDJ-FL rawls (beta=0.5)", ("psi", "global_accuracy", "accuracy_most_uncertain")),
        ("UDJ-FL egalitarian (gamma=2)", ("std", "global_accuracy")),
        ("UDJ-FL egalitarian (gamma=0.5)", ("std", "global_accuracy")),
        ("UDJ-FL utilitarian (gamma=-0.5)", ("global_accuracy",)),
    ],
)
def test_the_advice_on_beta_and_gamma_quotes_the_measurement(
    method: str, metrics: tuple[str, ...]
) -> None:
    for metric in metrics:
        row = measured("steps-points-dirty-digits.csv", method, metric)
        assert f"{float(row['difference']):+.2f}".lstrip("+") in ADVICE


@pytest.mark.parametrize(
    ("method", "metric"),
    [
        ("UDJ-FL rawls", "psi"),
        ("UDJ-FL egalitarian", "std"),
        ("UDJ-FL utilitarian", "global_accuracy"),
        ("UDJ-FL desert", "pearson_r"),
    ],
)
def test_what_each_theory_does_now_is_the_measurement(method: str, metric: str) -> None:
    section = STEPS.partition("## What each theory does now")[2].partition("\n# ")[0]
    row = measured("steps-rules-dirty-digits.csv", method, metric)
    cost = measured("steps-rules-dirty-digits.csv", method, "global_accuracy")
    p = f"{float(row['p']):.3f}".lstrip("0")
    difference, lost = float(row["difference"]), float(cost["difference"])
    assert f"| {difference:+.2f} | {p} | {lost:+.2f} |" in section


def test_the_advice_links_to_headings_that_exist() -> None:
    for page, anchor in re.findall(r"\]\(\.\./(experiments/\w+\.md)#([\w-]+)\)", ADVICE):
        text = (ROOT / page).read_text(encoding="utf-8")
        headings = re.findall(r"^#+ (.+)$", text, re.M)
        anchors = {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}
        assert anchor in anchors, f"{page}#{anchor}"
