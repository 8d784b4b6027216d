"""The documents: quoted numbers are the measured ones, and links and paths exist."""

from __future__ import annotations

import csv
import re
import tomllib
from itertools import pairwise
from pathlib import Path

import check_docs
import docs_pages
import make_site
import pytest
from script_modules import load_script
from typer.main import get_group

import udjfl
import udjfl.settings

ROOT = Path(__file__).parent.parent
STEPS = (ROOT / "experiments" / "STEPS.md").read_text(encoding="utf-8")
ADVICE = (ROOT / "docs" / "steps.md").read_text(encoding="utf-8")
PAGES = docs_pages.find_pages((*docs_pages.PATTERNS, "tests/**/*.md"))
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.py"))
BLOCKS = [
    block
    for page in docs_pages.find_pages(docs_pages.CHECKED_PATTERNS)
    for block in docs_pages.find_blocks(page, docs_pages.read_page(page))
]
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


@pytest.mark.parametrize("page", PAGES)
def test_linked_files_and_headings_exist(page: str) -> None:
    assert docs_pages.broken_links(page, docs_pages.read_page(page)) == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_linked_files_and_headings_of_notebooks_exist(path: Path) -> None:
    text = re.sub(r"^# ?", "", path.read_text(encoding="utf-8"), flags=re.M)
    assert docs_pages.find_links(text)
    assert docs_pages.broken_links(str(path.relative_to(ROOT)), text) == []


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


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.place)
def test_each_block_can_be_checked(block: docs_pages.Block) -> None:
    """`make docs-check` runs them; what can be told without running is told here."""
    assert block.not_run is None, "name the test that runs it: <!-- run by: ... -->"
    assert block.run_by is None or docs_pages.find_test(block.run_by), block.run_by
    if block.language == "python":
        compile(block.code, block.place, "exec")
    elif block.language == "toml":
        tomllib.loads(block.code)
    elif block.language == "bash":
        for command in block.commands:
            check_options(check_docs.shorten_command(command))
    else:
        assert block.language in ("text", "pycon") or block.run_by, block.language
    assert not block.is_output or block.language == "text"


def check_options(command: str) -> None:
    """Parse a command of udjfl without running it."""
    from udjfl.cli.commands import app

    program, *words = re.sub(r"\s*[>|].*", "", command).replace("$s", "none").split()
    if program != "udjfl" or not words:
        return
    parser = get_group(app)
    while words and hasattr(parser, "commands") and words[0] in parser.commands:
        parser = parser.commands[words.pop(0)]
    if not set(words) & {"--install-completion", "--version", "--help"}:
        parser.make_context("udjfl", words)


def test_options_that_do_not_exist_are_found() -> None:
    with pytest.raises(Exception, match="No such option: --metods"):
        check_options("udjfl compare --metods fedavg")


@pytest.mark.parametrize(
    "page", sorted({block.page for block in BLOCKS if block.language == "pycon"})
)
def test_sessions_print_what_the_page_says(page: str) -> None:
    namespace: dict[str, object] = {}
    for block in BLOCKS:
        if block.page == page and block.language == "pycon":
            check_docs.run_session(block, namespace)


def test_sessions_do_not_leave_everything_out() -> None:
    """In a session `...` stands for anything that is printed."""
    assert not any(re.search(r"^\.\.\.$", b.code, re.M) for b in BLOCKS if b.language == "pycon")


def test_the_front_pages_show_the_same_output() -> None:
    """`make docs-check` compares that of docs/index.md with what `udjfl demo` prints."""
    samples = {
        page: [block.code for block in BLOCKS if block.page == page and "Rawls: " in block.code]
        for page in ("README.md", "docs/index.md")
    }
    assert len(samples["README.md"]) == 1
    assert samples["README.md"] == samples["docs/index.md"]


def table_after(page: str, mark: str) -> list[list[str]]:
    """Return the cells of the rows of the first table after a mark."""
    table = docs_pages.read_page(page).partition(mark)[2].strip().partition("\n\n")[0]
    rows = table.splitlines()
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[2:]]


CHECKED_TABLE = "<!-- table: checked by tests/test_docs.py -->"


def test_the_table_of_theories_is_that_of_the_code() -> None:
    rows = {row[0].lower(): row[1:5] for row in table_after("docs/theories.md", CHECKED_TABLE)}
    assert list(rows) == ["rawls", "egalitarian", "utilitarian", "desert"]
    reports = udjfl.Reports(
        ids=["a", "b"],
        deltas=[[1.0], [1.0]],
        losses=[0.5, 1.0],
        sizes=[1, 1],
        uncertainties=[0.1, 0.4],
        steps=[1, 1],
    )
    for theory, (r, beta, gamma, exponent) in rows.items():
        method = udjfl.UDJ(theory=theory)
        assert float(gamma) == method.gamma
        if theory == "desert":
            assert (beta, exponent) == ("(1/u_i) / sum_j (1/u_j)", "-beta_i")
            assert method.exponents(reports).tolist() == pytest.approx([-0.8, -0.2])
        else:
            assert float(beta.split()[0]) == method.beta
            assert float(exponent) == method.exponent(method.beta)
            assert ("1 + 1/beta" in r) == (method.exponent(2.0) == 3.0)


def test_the_table_of_verdicts_has_every_verdict() -> None:
    from udjfl.verdicts import KINDS

    rows = table_after("docs/reading.md", CHECKED_TABLE)
    assert {row[0].strip("*") for row in rows} == set(KINDS)


def test_the_api_reference_has_every_public_name_once() -> None:
    text = docs_pages.read_page("docs/api.md")
    marks = [match["names"].split(",") for match in make_site.API.finditer(text)]
    assert sorted(name.strip() for names in marks for name in names) == udjfl.__all__


def test_the_navigation_has_every_page() -> None:
    config = tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))
    pages = make_site.nav_pages(config["project"]["nav"])
    assert len(pages) == len(set(pages))
    ours = {make_site.site_path(page) for page in docs_pages.find_pages(("docs/*.md",))}
    ours |= {make_site.site_path(str(path.relative_to(ROOT))) for path in NOTEBOOKS}
    assert ours - set(pages) == set()
    assert [page for page in pages if page not in ours and not (ROOT / page).exists()] == []


def test_links_lead_to_pages_of_the_site() -> None:
    linked: set[str] = set()
    text = "[a](../src/udjfl/metrics.py) [b](data.md#heart) [c](notebooks/quickstart.py) [d](#e)\n"
    fenced = "```\n[a](../README.md)\n```\n"
    adapted = make_site.adapt_links("docs/faq.md", text + fenced, linked)
    assert adapted == (
        "[a](source/src/udjfl/metrics.py.md) [b](data.md#heart) [c](notebooks/quickstart.md) "
        f"[d](#e)\n{fenced}"
    )
    assert linked == {"src/udjfl/metrics.py"}
    back = make_site.adapt_links("experiments/STEPS.md", "[s](../docs/steps.md#the-cap)", linked)
    assert back == "[s](../steps.md#the-cap)"


def test_fields_of_docstrings_become_lists() -> None:
    pytest.importorskip("griffe")
    from griffe_fields import fields_to_markdown

    text = (
        "A run.\n\nrounds       how many\nout, resume  keep it\n             and go on\n\nThe end."
    )
    assert fields_to_markdown(text) == (
        "A run.\n\n\n- `rounds`: how many\n- `out`, `resume`: keep it\n    and go on\n\nThe end."
    )


def test_the_reference_describes_every_setting() -> None:
    griffe = pytest.importorskip("griffe")
    from griffe_fields import FieldLists

    extensions = griffe.Extensions(FieldLists())
    settings = griffe.load("udjfl.settings", search_paths=["src"], extensions=extensions)
    for name in ("TrainingSettings", "DataSettings", "SeedSettings"):
        fields = getattr(udjfl.settings, name).model_fields.items()
        described = {key: field.description for key, field in fields if field.description}
        assert len(described) >= 2
        docstrings = {key: settings[name][key].docstring.value for key in described}
        assert docstrings == described


def test_pictures_follow_the_switch_of_the_site() -> None:
    adapted = make_site.adapt_pictures(docs_pages.read_page("docs/index.md"))
    assert '<img src="images/demo-light.svg#only-light" alt="What each theory' in adapted
    assert '<img src="images/demo-dark.svg#only-dark" alt="What each theory' in adapted
    assert "<picture>" not in adapted


def test_the_page_on_uncertainty_quotes_the_measurement() -> None:
    page, measured = (
        docs_pages.read_page(name) for name in ("docs/uncertainty.md", "experiments/UNCERTAINTY.md")
    )
    assert "has 0.153. The best measure\nafter a fixed number of epochs has 0.326." in measured
    assert "off by 0.153\nnats" in page
    assert "by 0.326;" in page
    section = measured.partition("## Dependence on how models train")[2].partition("\n## ")[0]
    rows = [line.split("|") for line in section.splitlines() if line.startswith("| ")][2:]
    levels = [float(cells[4]) for cells in rows]
    assert f"between {min(levels)} and {max(levels)} among" in page


def test_the_page_on_citing_has_the_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert f"version = {{{project['version']}}}" in docs_pages.read_page("docs/citing.md")
    assert f"The version is {project['version']}," in docs_pages.read_page("docs/faq.md")


def test_the_page_on_metrics_has_every_metric_of_the_package() -> None:
    from udjfl.metrics import METRICS

    page = docs_pages.read_page("docs/metrics.md")
    assert [key for key in METRICS if f"`{key}`" not in page and f'"{key}"' not in page] == []


def test_the_glossary_is_sorted() -> None:
    words = re.findall(r"^\*\*(.+?)\.\*\*", docs_pages.read_page("docs/glossary.md"), re.M)
    assert len(words) > 30
    assert words == sorted(words, key=lambda word: word.lower().replace("'", ""))


def test_every_column_of_a_table_has_a_heading() -> None:
    """A screen reader names the column of each cell. Pages of experiments are made by programs."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    rule = re.compile(r"\|[ :|-]+\|")
    headless = [
        f"{page.name}:{number}: {heading}"
        for page in pages
        for lines in [page.read_text(encoding="utf-8").splitlines()]
        for number, (heading, below) in enumerate(pairwise(lines), start=1)
        if heading.startswith("|") and rule.fullmatch(below)
        if not all(cell.strip() for cell in heading.strip("|").split("|"))
    ]
    assert headless == []
