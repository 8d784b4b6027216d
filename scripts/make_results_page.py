"""Write RESULTS.md and its CSV files from finished tables, with today's claims and formats.

    python scripts/make_results_page.py          # all tables that are stored
    python scripts/make_results_page.py RUNS     # and store those that are in RUNS

RUNS has a folder for each of some TOML files in experiments/, of the same name, as made by
`udjfl reproduce TABLE --config experiments/NAME.toml --out RUNS/NAME`. Stored are the numbers of
every seed (`results/NAME-seeds.csv`), and what they are (`results/NAME.json`). Tables that are
neither stored nor in RUNS are listed and left out. A table with fewer seeds or rounds than its TOML
file asks for says so on the page.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
import tomllib
from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from two_profiles import SHORT, side_by_side

from udjfl.paper.claims import judge_table
from udjfl.paper.render import csv_rows, seed_rows, table_markdown
from udjfl.paper.search_table import search_markdown
from udjfl.paper.settings import ReproduceSettings
from udjfl.paper.tables import (
    DistributionsTable,
    ResultsTable,
    Row,
    SearchTable,
    SoloTable,
    Table,
)
from udjfl.paper.verdicts import Verdict
from udjfl.report.plain_tables import to_csv
from udjfl.settings import validate_settings
from udjfl.statistics import summarise

EXPERIMENTS = Path(__file__).parents[1] / "experiments"
RESULTS = EXPERIMENTS / "results"
KINDS: dict[str, type[Table]] = {
    cls.kind: cls for cls in (ResultsTable, SoloTable, DistributionsTable, SearchTable)
}
SUBTITLES = {"results": "{method}", "solo": "{clean_shards} clean, {ambiguous_shards} ambiguous"}
OF_TABLE = ("table", "data", "profile", "seeds", "published_for", "same_data", "setting")
OF_ROW = ("theory", "label", "note", "failed", "metrics")
# The order of the tables on the page; others come after these.
ORDER = (
    "results",
    "results-authors",
    "results-signs",
    "results-dirty-digits",
    "results-heart",
    "solo",
    "solo-authors",
    "solo-dirty-digits",
    "distributions",
    "distributions-authors",
    "search-dirty-digits",
)
INTRODUCTION = """# Results

The tables of Carey & Wu, "Achieving Distributive Justice in Federated Learning via Uncertainty
Quantification" (FAccT 2025), reproduced. [DEVIATIONS.md](DEVIATIONS.md) describes how the paper,
its authors' code and this project differ, and why no table can be matched digit for digit. Nothing
here was tuned towards the published numbers, and no seed was chosen.

"""
DATA_NOTES = {
    "dirty-mnist": """- `dirty-mnist (regenerated)` is MNIST with ambiguous digits made by
  `udjfl data prepare dirty-mnist --regenerate`: the published recipe, not the published images.
""",
    "signs": """- `signs` are photographs of traffic signs (GTSRB, 14 classes, 8,010 frames of 268
  tracks) with lens blur made by the package. It stands for CURE-TSR, which is available on request
  only; it is not CURE-TSR. No track is on both sides of a split, which makes the task much harder
  than a split that separates frames of one sign.
""",
    "dirty-digits": """- `dirty-digits` is part of the package: 8x8 digits, 400 examples per client.
""",
    "heart": """- `heart` are four real hospitals (UCI) of unequal size, so that FedAvg differs
  there from the methods that equal it on clients of one size.
""",
}
HOW = """
Each table is made by the command above it, with the settings in the TOML file it names; the CSV
files in [results/](results) have every number, and the numbers of every seed.
"""
SUMMARY = """## The paper's claims and their verdicts

With profile `paper`: paired t-tests over seeds at 5%; the numbers are below each table. A claim
about one of the paper's data sets is tested only on that data set, or on the one that stands for
it. Undecided: not decidable at this number of seeds.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("runs", nargs="?", type=Path, help="folder of finished tables")
    runs = parser.parse_args().runs
    paths = sorted(
        EXPERIMENTS.glob("*.toml"), key=lambda path: (*ORDER, path.stem).index(path.stem)
    )
    names = [path.stem for path in paths]
    found = {name: document for name in names if (document := read_document(name, runs))}
    missing = [name for name in names if name not in found]
    if missing:
        print(f"missing, left out: {', '.join(missing)}", file=sys.stderr)
    tables = {name: make_table(document) for name, document in found.items()}
    for name, document in found.items():
        store(name, document, tables[name])
    (EXPERIMENTS / "RESULTS.md").write_text(make_page(tables), encoding="utf-8")


def read_document(name: str, runs: Path | None) -> dict[str, Any] | None:
    """Return a table as `udjfl reproduce` writes it: from its run, or as it is stored."""
    for kind in KINDS:
        if runs is not None and (path := runs / name / f"{kind}.json").is_file():
            finished: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            return finished
    path = RESULTS / f"{name}.json"
    if not path.is_file():
        return None
    stored: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    with (RESULTS / f"{name}-seeds.csv").open(newline="", encoding="utf-8") as file:
        values = read_values(csv.DictReader(file))
    return {**stored, "rows": [{**row, "metrics": values[row["label"]]} for row in stored["rows"]]}


def read_values(lines: Iterable[Mapping[str, str]]) -> dict[str, dict[str, dict[str, Any]]]:
    """Return the values of every seed, by row and metric."""
    rows: dict[str, dict[str, dict[str, Any]]] = {}
    for line in lines:
        metric = rows.setdefault(line["row"], {}).setdefault(line["metric"], {"values": []})
        metric["values"].append(float(line["value"]) if line["value"] else None)
    return rows


def make_table(document: Mapping[str, Any]) -> Table:
    """Return the table of a document."""
    cls = KINDS[document["table"]]
    return cls(
        rows=tuple(_make_row(cls.kind, row) for row in document["rows"]),
        rounds=document[cls.rounds_label],
        **{key: tuple(document[key]) if key == "seeds" else document[key] for key in OF_TABLE[1:]},
    )


def _make_row(kind: str, row: Mapping[str, Any]) -> Row:
    details = {key: value for key, value in row.items() if key not in OF_ROW}
    return Row(
        name=row["label"],
        values={key: summarise(metric["values"]) for key, metric in row["metrics"].items()},
        theory=row.get("theory"),
        subtitle=SUBTITLES.get(kind, "").format(**details),
        details=details,
        failed={int(seed): reason for seed, reason in row["failed"].items()},
        note=row["note"],
    )


def store(name: str, document: Mapping[str, Any], table: Table) -> None:
    """Write the numbers of a table, and what they are."""
    about = {key: document[key] for key in (*OF_TABLE, table.rounds_label)}
    rows = [{k: v for k, v in row.items() if k != "metrics"} for row in document["rows"]]
    files = {
        f"{name}.json": json.dumps({**about, "rows": rows}, indent=1, ensure_ascii=False) + "\n",
        f"{name}.csv": to_csv(*csv_rows(table)),
        f"{name}-seeds.csv": to_csv(*seed_rows(table)),
    }
    RESULTS.mkdir(exist_ok=True)
    for file, text in files.items():
        (RESULTS / file).write_bytes(text.encode())


def make_page(tables: Mapping[str, Table]) -> str:
    """Return the page: the verdicts of all tables, and each table with its command."""
    verdicts = {name: judge_table(table) for name, table in tables.items()}
    data = {table.data.partition(" ")[0] for table in tables.values()}
    summary = [
        (table.data, verdicts[name]) for name, table in tables.items() if table.profile == "paper"
    ]
    sections = [_section(name, table, verdicts[name]) for name, table in tables.items()]
    both = tables.get("results"), tables.get("results-authors")
    if isinstance(both[0], ResultsTable) and isinstance(both[1], ResultsTable):
        less = say_less("results-authors", both[1])
        sections.insert(0, side_by_side(both[0], both[1], less))
    return "\n".join([introduction(data), _summary(summary), *sections])


def introduction(data: Container[str]) -> str:
    """Return the text above the tables, with a note on each of these data sets."""
    return INTRODUCTION + "".join(note for name, note in DATA_NOTES.items() if name in data) + HOW


def _summary(judged: Sequence[tuple[str, Sequence[Verdict]]]) -> str:
    """Return a table of the paper's claims and their verdicts on each data set."""
    data = list(dict.fromkeys(name for name, _ in judged))
    outcomes: dict[str, dict[str, str]] = {}
    for name, verdicts in judged:
        for verdict in verdicts:
            short = SHORT.get(verdict.outcome, verdict.outcome)
            outcomes.setdefault(verdict.claim.says, {})[name] = short
    lines = [SUMMARY]
    lines += ["| claim | " + " | ".join(data) + " |", "|---" * (len(data) + 1) + "|"]
    lines += [
        f"| {claim} | " + " | ".join(by_data.get(name, "") for name in data) + " |"
        for claim, by_data in outcomes.items()
    ]
    return "\n".join(lines) + "\n"


def say_less(name: str, table: Table) -> str:
    """Return a sentence if a table has fewer seeds or rounds than its TOML file; else nothing."""
    values = tomllib.loads((EXPERIMENTS / f"{name}.toml").read_text(encoding="utf-8"))
    asked = validate_settings(ReproduceSettings, values)
    counts = {
        "seeds": (len(table.seeds), len(asked.seeds)),
        table.rounds_label: (table.rounds, getattr(asked, table.rounds_label)),
    }
    less = [f"{n} of the {all_} {what}" for what, (n, all_) in counts.items() if n < all_]
    if not less:
        return ""
    return f"**Not finished:** trained with {' and '.join(less)} that `{name}.toml` asks for."


def _section(name: str, table: Table, verdicts: Sequence[Verdict]) -> str:
    command = f"udjfl reproduce {table.kind} --config experiments/{name}.toml --out runs/{name}"
    less = say_less(name, table)
    if isinstance(table, SearchTable):
        text = search_markdown(table, verdicts)
    else:
        text = table_markdown(table, verdicts)
    below = f"{less}\n\n" if less else ""
    return f"---\n\n```\n{command}\n```\n\n{below}{text}"


if __name__ == "__main__":
    main()
