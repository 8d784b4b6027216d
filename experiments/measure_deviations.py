"""Measure what each choice of the authors' code does, one at a time, for DEVIATIONS.md.

    cd experiments
    python measure_deviations.py dirty-digits --seeds 20 --rounds 100 \\
        --csv results/deviations-dirty-digits.csv
    python measure_deviations.py dirty-mnist --seeds 5 --rounds 100 \\
        --csv results/deviations-dirty-mnist.csv
    python measure_deviations.py table --csv results/deviations-dirty-digits.csv

FedAvg and the four theories are trained as profile `paper` has it, and again with one thing
changed. A line of the CSV is the mean change of a metric over seeds, its 95% interval, and p of the
paired t-test.
"""

from __future__ import annotations

import argparse
import csv
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import udjfl
from udjfl.metrics import METRICS
from udjfl.paper.profiles import profile_uncertainties, training_settings
from udjfl.paper.run import SHARD_SIZE
from udjfl.paper.settings import ReproduceSettings
from udjfl.settings import CompareSettings, DataSettings
from udjfl.simulation.compare import run_comparison, with_reference
from udjfl.simulation.comparison import Comparison
from udjfl.statistics import paired_test

THEORIES = ("rawls", "egalitarian", "utilitarian", "desert")
SHOWN = (
    "global_accuracy",
    "accuracy_most_uncertain",
    "accuracy_least_uncertain",
    "std",
    "psi",
    "pearson_r",
)


@dataclass(frozen=True)
class Change:
    """One choice of the authors' code, or of the paper's text, that profile `paper` changes."""

    name: str
    training: dict[str, Any] = field(default_factory=dict)
    step: str = "safe"
    beta: float | None = None  # of desert
    data: str = ""
    pasted: bool = False
    only: str | None = None  # the data it can be measured on


CHANGES = (
    Change("momentum 0.9", training={"momentum": 0.9}),
    Change("loss while training", training={"loss_at": "running"}),
    Change("Adam alone", training={"uncertainty_optimiser": "adam", "uncertainty_lr": 0.001}),
    Change("step as printed", step="paper"),
    Change("step of the code", step="authors"),
    Change("calibrated step", step="calibrated"),
    Change("calibrated step, momentum 0.9", training={"momentum": 0.9}, step="calibrated"),
    Change("one beta of 1 for desert", beta=1.0),
    Change("split by pairs", data=":split=pairs", only="dirty-mnist"),
    Change("uncertainties pasted in", pasted=True, only="dirty-mnist"),
)


def make_methods(step: str, beta: float | None) -> list[udjfl.Method]:
    """Return FedAvg and the four theories.

    At exponent 1 the authors' step divides by zero, and every other step is the plain average.
    """
    methods: list[udjfl.Method] = [udjfl.FedAvg()]
    for theory in THEORIES:
        exponent_is_one = step == "authors" and theory in ("egalitarian", "utilitarian")
        desert = {"beta": beta} if theory == "desert" and beta is not None else {}
        methods.append(udjfl.method(theory, step="safe" if exponent_is_one else step, **desert))
    return methods


def train(settings: ReproduceSettings, change: Change) -> Comparison:
    name = settings.data
    pasted = settings.model_copy(update={"profile": "authors"})
    print(f"{change.name} ...", file=sys.stderr, flush=True)
    training = training_settings(settings, change.training)
    data, partition = name + change.data, f"shards:size={SHARD_SIZE[name]}"
    return run_comparison(
        CompareSettings(
            federation=DataSettings(data=data, partition=partition),
            training=training,
            seeds=settings.seeds,
            jobs=settings.jobs,
        ),
        with_reference(make_methods(change.step, change.beta)),
        uncertainty=profile_uncertainties(pasted) if change.pasted else None,
    )


def write_csv(path: Path, base: Comparison, changed: dict[str, Comparison]) -> None:
    titles = ["fedavg", *THEORIES]
    with path.open("w", newline="", encoding="utf-8") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(
            [
                "change",
                "method",
                "metric",
                "before",
                "after",
                "difference",
                "low",
                "high",
                "p",
                "seeds",
                "failed",
            ]
        )
        for name, comparison in changed.items():
            for title, before, after in zip(titles, base.rows, comparison.rows, strict=True):
                for key in METRICS:
                    old, new = before.metrics[key], after.metrics[key]
                    test = paired_test(new.values, old.values)
                    numbers = [
                        old.mean,
                        new.mean,
                        test.difference,
                        *(test.ci95 or (None, None)),
                        test.p,
                    ]
                    shown = ["" if number is None else f"{number:.6g}" for number in numbers]
                    out.writerow([name, title, key, *shown, test.n, len(after.failed)])


def markdown(path: Path) -> str:
    """Return the CSV as a Markdown table: mean changes, bold where p < 0.05."""
    with path.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    by_cell = {(row["change"], row["method"], row["metric"]): row for row in rows}
    lines = [
        "| change | method | " + " | ".join(METRICS[key].title for key in SHOWN) + " |",
        "|---|---" + "|--:" * len(SHOWN) + "|",
    ]
    for change, method in dict.fromkeys((row["change"], row["method"]) for row in rows):
        cells = [_cell(by_cell[change, method, key]) for key in SHOWN]
        if any(cell not in ("0", "–") for cell in cells):
            lines.append(f"| {change} | {method} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _cell(row: dict[str, str]) -> str:
    if not row["difference"]:
        return "–"
    change = float(row["difference"])
    if change == 0:
        return "0"
    shown = f"{change:+.2f}"
    return f"**{shown}**" if row["p"] and float(row["p"]) < 0.05 else shown


def choose_changes(names: str, data: str) -> list[Change]:
    """Return the changes of these names, or all that can be measured on these data."""
    possible = {change.name: change for change in CHANGES if change.only in (None, data)}
    chosen = [name.strip() for name in names.split(";") if name.strip()] or list(possible)
    unknown = [name for name in chosen if name not in possible]
    if unknown:
        sys.exit(
            f"--changes: not measured on {data}: {'; '.join(unknown)}. "
            f"Choose from: {'; '.join(possible)}"
        )
    return [possible[name] for name in chosen]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", choices=["dirty-digits", "dirty-mnist", "table"])
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--epochs", type=int, default=500)
    parser.add_argument("--jobs", type=int, default=1, help="processes; each takes whole seeds")
    parser.add_argument(
        "--changes",
        default="",
        help="some of them, separated by semicolons: "
        + "; ".join(change.name for change in CHANGES),
    )
    parser.add_argument("--csv", type=Path, required=True)
    given = parser.parse_args()
    if given.data == "table":
        print(markdown(given.csv), end="")
        return
    settings = ReproduceSettings(
        data=given.data,
        seeds=given.seeds,
        rounds=given.rounds,
        epochs=given.epochs,
        jobs=given.jobs,
    )
    changes = choose_changes(given.changes, given.data)
    base = train(settings, Change("profile paper"))
    write_csv(given.csv, base, {change.name: train(settings, change) for change in changes})


if __name__ == "__main__":
    main()
