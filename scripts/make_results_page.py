"""Put finished tables into experiments/: their CSV files, and RESULTS.md with all of them and a summary of the verdicts.

    python scripts/make_results_page.py RUNS

RUNS has one folder for each TOML file in experiments/, of the same name, as `udjfl reproduce TABLE --config
experiments/NAME.toml --out RUNS/NAME` makes it. Folders that are not there are left out, and said to be.
"""

from __future__ import annotations

import json
import shutil
import sys
import tomllib
from pathlib import Path
from typing import Any

EXPERIMENTS = Path(__file__).parents[1] / "experiments"
KEPT = ("{kind}.csv", "{kind}-seeds.csv")
# The main table first, then what is behind it; others after these.
ORDER = (
    "results",
    "results-signs",
    "results-dirty-digits",
    "results-heart",
    "solo",
    "solo-authors",
    "distributions",
)
SHORT = {"not decidable at this number of seeds": "undecided"}
INTRODUCTION = """# Results

The tables of Carey & Wu, "Achieving Distributive Justice in Federated Learning via Uncertainty Quantification" (FAccT 2025),
made again. [DEVIATIONS.md](DEVIATIONS.md) says how the paper, its authors' code and this differ, and why no table can be
matched digit for digit. Nothing here was tuned towards the published numbers, and no seed was chosen.

"""
ABOUT = {
    "dirty-mnist": """- `dirty-mnist (regenerated)` is MNIST with ambiguous digits made by `udjfl data prepare dirty-mnist
  --regenerate`: the published recipe, not the published images.
""",
    "signs": """- `signs` are photographs of traffic signs (GTSRB, 14 classes, 8,010 frames of 268 tracks) and lens blur made by
  the package. It stands for CURE-TSR, which is given on request only; it is not CURE-TSR. No track is on both sides of a
  split, which makes the task much harder than one where frames of one sign are.
""",
    "dirty-digits": "- `dirty-digits` comes with the package: 8x8 digits, 400 examples a client.\n",
    "heart": """- `heart` are four real hospitals (UCI), of unequal size, so that FedAvg and its namesakes with equal weights
  differ there.
""",
}
HOW = """
Each table is made by the command above it, with the settings in the TOML file it names; the CSV files in [results/](results)
have every number, and those of every seed.
"""


def main() -> None:
    runs = Path(sys.argv[1])
    paths = sorted(
        EXPERIMENTS.glob("*.toml"), key=lambda path: (*ORDER, path.stem).index(path.stem)
    )
    tables = {path.stem: tomllib.loads(path.read_text(encoding="utf-8")) for path in paths}
    found = {name: document for name in tables if (document := _document(runs / name))}
    missing = sorted(set(tables) - set(found))
    if missing:
        print(f"not there, left out: {', '.join(missing)}", file=sys.stderr)
    (EXPERIMENTS / "results").mkdir(exist_ok=True)
    data = {document["data"].partition(" ")[0] for _, document in found.values()}
    about = "".join(text for name, text in ABOUT.items() if name in data)
    parts = [INTRODUCTION + about + HOW, _summary(found)]
    for name, (kind, _) in found.items():
        for pattern in KEPT:
            shutil.copy(
                runs / name / pattern.format(kind=kind),
                EXPERIMENTS / "results" / pattern.format(kind=name),
            )
        parts.append(_section(name, kind, (runs / name / f"{kind}.md").read_text(encoding="utf-8")))
    (EXPERIMENTS / "RESULTS.md").write_text("\n".join(parts), encoding="utf-8")


def _document(folder: Path) -> tuple[str, dict[str, Any]] | None:
    for kind in ("results", "solo", "distributions"):
        if (folder / f"{kind}.json").is_file():
            return kind, json.loads((folder / f"{kind}.json").read_text(encoding="utf-8"))
    return None


def _summary(found: dict[str, tuple[str, dict[str, Any]]]) -> str:
    """Every claim of the paper, and what became of it on each data set."""
    as_the_paper_says = [
        document for _, document in found.values() if document["profile"] == "paper"
    ]
    data = list(dict.fromkeys(document["data"] for document in as_the_paper_says))
    verdicts: dict[str, dict[str, str]] = {}
    for document in as_the_paper_says:
        for verdict in document["verdicts"]:
            verdicts.setdefault(verdict["claim"], {})[document["data"]] = SHORT.get(
                verdict["outcome"], verdict["outcome"]
            )
    lines = ["## What the paper claims, and what became of it", ""]
    lines += [
        "With profile `paper`: paired t-tests over seeds at 5%; the numbers are below each table. A claim about one of the",
        "paper's data sets is tested only on that, or on what stands for it. Undecided: not decidable at this number of seeds.",
        "",
    ]
    lines += ["| claim | " + " | ".join(data) + " |", "|---" * (len(data) + 1) + "|"]
    lines += [
        f"| {claim} | " + " | ".join(of.get(name, "") for name in data) + " |"
        for claim, of in verdicts.items()
    ]
    return "\n".join(lines) + "\n"


def _section(name: str, kind: str, text: str) -> str:
    command = f"udjfl reproduce {kind} --config experiments/{name}.toml --out runs/{name}"
    return f"---\n\n```\n{command}\n```\n\n{text}"


if __name__ == "__main__":
    main()
