"""Put finished tables into experiments/: their CSV files, and RESULTS.md with all of them.

    python scripts/make_results_page.py RUNS

RUNS has one folder for each TOML file in experiments/, of the same name, as made by
`udjfl reproduce TABLE --config experiments/NAME.toml --out RUNS/NAME`. Missing folders are listed
and left out.
"""

from __future__ import annotations

import json
import shutil
import sys
import tomllib
from collections.abc import Container
from pathlib import Path
from typing import Any

EXPERIMENTS = Path(__file__).parents[1] / "experiments"
CSV_FILES = ("{kind}.csv", "{kind}-seeds.csv")
# The order of the tables on the page; others come after these.
ORDER = (
    "results",
    "results-authors",
    "results-signs",
    "results-dirty-digits",
    "results-heart",
    "solo",
    "solo-authors",
    "distributions",
    "distributions-authors",
)
SHORT = {"not decidable at this number of seeds": "undecided"}
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
    runs = Path(sys.argv[1])
    paths = sorted(
        EXPERIMENTS.glob("*.toml"), key=lambda path: (*ORDER, path.stem).index(path.stem)
    )
    tables = {path.stem: tomllib.loads(path.read_text(encoding="utf-8")) for path in paths}
    documents = {name: document for name in tables if (document := _read_document(runs / name))}
    missing = sorted(set(tables) - set(documents))
    if missing:
        print(f"missing, left out: {', '.join(missing)}", file=sys.stderr)
    (EXPERIMENTS / "results").mkdir(exist_ok=True)
    data = {document["data"].partition(" ")[0] for _, document in documents.values()}
    parts = [introduction(data), _summary(documents)]
    for name, (kind, _) in documents.items():
        for pattern in CSV_FILES:
            shutil.copy(
                runs / name / pattern.format(kind=kind),
                EXPERIMENTS / "results" / pattern.format(kind=name),
            )
        parts.append(_section(name, kind, (runs / name / f"{kind}.md").read_text(encoding="utf-8")))
    (EXPERIMENTS / "RESULTS.md").write_text("\n".join(parts), encoding="utf-8")


def introduction(data: Container[str]) -> str:
    """Return the text above the tables, with a note on each of these data sets."""
    return INTRODUCTION + "".join(note for name, note in DATA_NOTES.items() if name in data) + HOW


def _read_document(folder: Path) -> tuple[str, dict[str, Any]] | None:
    for kind in ("results", "solo", "distributions"):
        if (folder / f"{kind}.json").is_file():
            return kind, json.loads((folder / f"{kind}.json").read_text(encoding="utf-8"))
    return None


def _summary(documents: dict[str, tuple[str, dict[str, Any]]]) -> str:
    """Return a table of the paper's claims and their verdicts on each data set."""
    of_profile_paper = [
        document for _, document in documents.values() if document["profile"] == "paper"
    ]
    data = list(dict.fromkeys(document["data"] for document in of_profile_paper))
    verdicts: dict[str, dict[str, str]] = {}
    for document in of_profile_paper:
        for verdict in document["verdicts"]:
            verdicts.setdefault(verdict["claim"], {})[document["data"]] = SHORT.get(
                verdict["outcome"], verdict["outcome"]
            )
    lines = [SUMMARY]
    lines += ["| claim | " + " | ".join(data) + " |", "|---" * (len(data) + 1) + "|"]
    lines += [
        f"| {claim} | " + " | ".join(by_data.get(name, "") for name in data) + " |"
        for claim, by_data in verdicts.items()
    ]
    return "\n".join(lines) + "\n"


def _section(name: str, kind: str, text: str) -> str:
    command = f"udjfl reproduce {kind} --config experiments/{name}.toml --out runs/{name}"
    return f"---\n\n```\n{command}\n```\n\n{text}"


if __name__ == "__main__":
    main()
