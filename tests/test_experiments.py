"""The delivered tables: identities hold in them, and the pages have the numbers of the files."""

from __future__ import annotations

import csv
import json
import math
import re
import tomllib
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import pytest
from script_modules import load_script

from udjfl.paper.paper_rows import paper_rows
from udjfl.paper.profiles import PROFILES
from udjfl.paper.render import csv_rows
from udjfl.paper.settings import ReproduceSettings
from udjfl.paper.tables import ResultsTable
from udjfl.report.plain_tables import to_csv
from udjfl.settings import validate_settings
from udjfl.statistics import summarise

ROOT = Path(__file__).parent.parent
EXPERIMENTS = ROOT / "experiments"
SEEDS = sorted((EXPERIMENTS / "results").glob("results*-seeds.csv"))
SUMMARIES = [path.with_name(path.name.replace("-seeds", "")) for path in SEEDS]
# One algorithm under different names, if all clients have equally many examples.
SAME = (
    ("FedAvg", "q-FedAvg: q=0", "UDJ-FL: beta=0, gamma=0", "UDJ-FL: beta=1, gamma=0"),
    ("q-FedAvg: q=0.1", "UDJ-FL: beta=0.1, gamma=0"),
    ("q-FedAvg: q=5", "UDJ-FL: beta=5, gamma=0"),
)


def name_of(path: Path) -> str:
    return path.stem.replace("-seeds", "")


def by_row(path: Path) -> dict[str, dict[tuple[str, str], str]]:
    """Return {row: {(seed, metric): value}}."""
    rows: dict[str, dict[tuple[str, str], str]] = defaultdict(dict)
    with path.open(encoding="utf-8") as file:
        for line in csv.DictReader(file):
            rows[line["row"]][line["seed"], line["metric"]] = line["value"]
    return rows


def test_there_are_tables() -> None:
    assert {name_of(path) for path in SEEDS} >= {"results-dirty-digits", "results-heart"}


@pytest.mark.parametrize("path", SEEDS, ids=name_of)
def test_a_table_has_all_rows_of_the_paper_on_all_its_seeds(path: Path) -> None:
    rows = by_row(path)
    settings = tomllib.loads((EXPERIMENTS / f"{name_of(path)}.toml").read_text(encoding="utf-8"))
    seeds = json.loads(path.with_name(f"{name_of(path)}.json").read_bytes())["seeds"]
    assert list(rows) == [row.label for row in paper_rows(PROFILES[settings["profile"]])]
    for row in rows.values():
        assert sorted({int(seed) for seed, _ in row}) == seeds
        assert len(row) == 6 * len(seeds)
    if seeds != list(range(settings["seeds"])):
        page = (EXPERIMENTS / "RESULTS.md").read_text(encoding="utf-8")
        less = f"trained with {len(seeds)} of the {settings['seeds']} seeds"
        assert less in page.split(f"experiments/{name_of(path)}.toml")[1].split("\n---\n")[0]


@pytest.mark.parametrize("path", SEEDS, ids=name_of)
@pytest.mark.parametrize("names", SAME, ids=lambda names: names[0])
def test_one_algorithm_has_one_row_of_numbers(path: Path, names: tuple[str, ...]) -> None:
    """Equal to the last bit on every seed, in every column."""
    rows = by_row(path)
    # The hospitals differ in size, and only FedAvg weights them by it.
    sized = name_of(path) == "results-heart"
    first, *others = [name for name in names if not (sized and name == "FedAvg")]
    for other in others:
        assert rows[other] == rows[first], other


def test_fedavg_differs_from_equal_weights_on_hospitals_of_unequal_size() -> None:
    rows = by_row(EXPERIMENTS / "results" / "results-heart-seeds.csv")
    assert rows["FedAvg"] != rows["q-FedAvg: q=0"]


@pytest.mark.parametrize("path", SUMMARIES, ids=name_of)
def test_means_are_those_of_the_seeds(path: Path) -> None:
    values = by_row(path.with_name(path.stem + "-seeds.csv"))
    with path.open(encoding="utf-8") as file:
        for line in csv.DictReader(file):
            by_seed = [
                float(value)
                for (_, metric), value in values[line["row"]].items()
                if metric == line["metric"] and value
            ]
            assert len(by_seed) == int(line["seeds"])
            if by_seed:
                mean = math.fsum(by_seed) / len(by_seed)
                assert math.isclose(float(line["mean"]), mean, rel_tol=1e-12, abs_tol=1e-12)


@pytest.mark.parametrize("path", SUMMARIES, ids=name_of)
def test_the_page_has_the_numbers_of_the_files(path: Path) -> None:
    page = (EXPERIMENTS / "RESULTS.md").read_text(encoding="utf-8")
    assert f"experiments/{path.stem}.toml" in page  # the command that made it
    section = page.split(f"experiments/{path.stem}.toml")[1].split("\n---\n")[0]
    with path.open(encoding="utf-8") as file:
        for line in csv.DictReader(file):
            if line["metric"] == "global_accuracy" and line["mean"]:
                row = next(text for text in section.splitlines() if f"| {line['row']}<br>" in text)
                assert f"{float(line['mean']):.2f}" in row


@pytest.mark.parametrize("path", sorted(EXPERIMENTS.glob("*.toml")), ids=lambda path: path.stem)
def test_the_settings_files_are_valid(path: Path) -> None:
    values = tomllib.loads(path.read_text(encoding="utf-8"))
    settings = validate_settings(ReproduceSettings, values)
    assert settings.profile == ("authors" if path.stem.endswith("-authors") else "paper")
    assert f"--config experiments/{path.name}" in path.read_text(encoding="utf-8").splitlines()[0]


def test_the_page_and_its_files_are_made_of_the_stored_numbers() -> None:
    script = load_script(ROOT / "scripts" / "make_results_page.py")
    page = (EXPERIMENTS / "RESULTS.md").read_text(encoding="utf-8")
    names = re.findall(r"--config experiments/(\S+)\.toml", page)
    documents = {name: script.read_document(name, None) for name in names}
    tables = {name: script.make_table(document) for name, document in documents.items()}
    assert script.make_page(tables) == page
    for name, table in tables.items():
        stored = (EXPERIMENTS / "results" / f"{name}.csv").read_bytes()
        assert to_csv(*csv_rows(table)).encode() == stored


@pytest.fixture
def tables() -> dict[str, ResultsTable]:
    """Return the main table, and as that of the authors' code its first two seeds, changed."""
    script = load_script(ROOT / "scripts" / "make_results_page.py")
    whole = script.make_table(script.read_document("results", None))
    rows = [
        replace(
            row,
            values={
                key: summarise([100.0 + n for n in range(2)])
                if (row.name, key) == ("FedAvg", "accuracy_most_uncertain")
                else summarise(value.values[:2])
                for key, value in row.values.items()
            },
        )
        for row in whole.rows
    ]
    fewer = replace(whole, profile="authors", seeds=whole.seeds[:2], rows=tuple(rows), rounds=3)
    return {"results": whole, "results-authors": fewer}


def test_both_protocols_stand_side_by_side(tables: dict[str, ResultsTable]) -> None:
    script = load_script(ROOT / "scripts" / "make_results_page.py")
    page = script.make_page(tables)
    assert "## The main table under both protocols" not in script.make_page(
        {"results": tables["results"]}
    )
    section = page.split("## The main table under both protocols")[1].split("\n---\n")[0]
    fedavg = next(line for line in section.splitlines() if line.startswith("| Reference | FedAvg"))
    published, paper, authors = fedavg.split("|")[4].strip().split("<br>")
    assert (published, paper) == ("87.33 (std 2.47)", "64.80 ±1.19")
    assert authors == "100.50 ±6.35"  # 12.71 times 0.5
    # 64.80 and 100.50 less 87.33
    assert (
        "| Most uncertain client | FedAvg | -22.53 ±1.19 | 22.53 | +13.17 ±6.35 | 13.17 |" in page
    )
    assert "Profile `authors`, 15 claims:" in section


def test_a_table_with_fewer_seeds_than_asked_for_says_so(tables: dict[str, ResultsTable]) -> None:
    script = load_script(ROOT / "scripts" / "make_results_page.py")
    says = "trained with 2 of the 5 seeds and 3 of the 500 rounds that `results-authors.toml`"
    page = script.make_page(tables)
    assert page.count(says) == 2  # above the table, and where it stands beside the other
    assert says in page.split("experiments/results-authors.toml")[1]
    assert script.say_less("results", tables["results"]) == ""


def test_the_table_of_deviations_is_the_measurement() -> None:
    module = load_script(EXPERIMENTS / "measure_deviations.py")
    page = (EXPERIMENTS / "DEVIATIONS.md").read_text(encoding="utf-8")
    for path in sorted((EXPERIMENTS / "results").glob("deviations-*.csv")):
        assert f"results/{path.name}" in page
        assert module.markdown(path) in page


def test_the_table_of_clients_alone_has_the_numbers_of_the_files() -> None:
    page = (
        (EXPERIMENTS / "DEVIATIONS.md")
        .read_text(encoding="utf-8")
        .split("## The published uncertainties")[1]
    )
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in page.splitlines()
        if line[:3] in {f"| {n}" for n in range(1, 6)}
    ]
    assert [row[0][0] for row in rows] == ["1", "2", "3", "4", "5"]
    for column, name in ((1, "solo"), (2, "solo-authors")):
        with (EXPERIMENTS / "results" / f"{name}.csv").open(encoding="utf-8") as file:
            means = {
                (line["row"], line["metric"]): float(line["mean"] or "nan")
                for line in csv.DictReader(file)
            }
        for row in rows:
            assert abs(float(row[column]) - means[f"client {row[0][0]}", "uncertainty"]) <= 0.0005
            assert (
                abs(float(row[column + 3]) - means[f"client {row[0][0]}", "local_accuracy"])
                <= 0.0501
            )
