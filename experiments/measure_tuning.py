"""Is a tuned point better than the theory's defaults, on seeds that the search has not seen?

    python experiments/measure_tuning.py scanners     # results/tuning-scanners.csv
    python experiments/measure_tuning.py heart --theories rawls,desert
    python experiments/measure_tuning.py --table      # all results, for docs/tuning.md

For each theory `udjfl tune` chooses on seeds 0 to 9 within a budget of 2 points. The choice, the
theory as the paper has it, and the theory with the budget are then trained on fresh seeds, and
compared by the theory's measure, seed by seed. Federations and settings are those of JUSTICE.md.
"""

from __future__ import annotations

import argparse
import csv
import textwrap
from collections.abc import Sequence

from justice_results import BUDGET, RESULTS, Row, read
from measure_justice import STUDIES, Study

import udjfl
from udjfl.methods import THEORIES, Method, method
from udjfl.search.settings import TuneSettings
from udjfl.search.tune import HeldOutChoice, choose_point
from udjfl.settings import validate_settings
from udjfl.simulation.comparison import Comparison
from udjfl.statistics import paired_test
from udjfl.verdicts import PairedRuns, collect_evidence

FRESH = 100  # the first of the fresh seeds
COLUMNS = (
    *("data", "theory", "chosen", "rival", "seeds", "measure_chosen", "measure_rival"),
    *("advantage", "low", "high", "p", "mean_chosen", "mean_rival", "cost", "grid_cost"),
)


def main() -> None:
    """Measure one federation, all theories or some; those measured before stay in the file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("study", nargs="?", choices=STUDIES)
    parser.add_argument("--table", action="store_true", help="print all results as Markdown")
    parser.add_argument("--theories", default=",".join(THEORIES), help="some, between commas")
    parser.add_argument("--seeds", type=int, default=30, help="number of fresh seeds")
    parser.add_argument("--jobs", type=int, default=0, help="processes (0: one per core)")
    arguments = parser.parse_args()
    if arguments.table:
        print(markdown(), end="")
    if not arguments.study:
        return
    theories = arguments.theories.split(",")
    if unknown := set(theories) - set(THEORIES):
        parser.error(f"--theories: unknown: {', '.join(unknown)}; there are {', '.join(THEORIES)}")
    name = f"tuning-{arguments.study}"
    for theory in theories:
        rows = measure(STUDIES[arguments.study], theory, arguments.seeds, arguments.jobs)
        for row in rows:
            print(*(f"{key}={value}" for key, value in row.items()), flush=True)
        kept = [row for row in read(name) if row["theory"] != theory]
        ordered = sorted([*kept, *rows], key=lambda row: THEORIES.index(row["theory"]))
        with (RESULTS / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(ordered)


def markdown() -> str:
    """Return all results against the theory with the budget, and what they come to."""
    rows = [row for name in STUDIES for row in read(f"tuning-{name}")]
    within = [row for row in rows if row["rival"].endswith(f"(budget={BUDGET:g})")]
    plain = [row for row in rows if row not in within]
    head = ["data", "theory", "chosen", "measure", f"with `budget={BUDGET:g}`", "advantage"]
    lines = [f"| {' | '.join([*head, 'mean accuracy', 'cost / grid'])} |"]
    lines += ["|---|---|---|--:|--:|--:|--:|--:|"]
    lines += [f"| {' | '.join(_cells(row))} |" for row in within]
    beyond = sum(float(row["mean_chosen"]) < -BUDGET for row in within)
    federations = {row["data"] for row in within}
    sentences = [
        f"Of {len(within)} choices on {len(federations)} federations {len(_better(within))} were "
        f"significantly better than the theory with the budget on fresh seeds, "
        f"{len(_worse(within))} significantly worse; in {beyond} the mean fell by more than "
        f"{BUDGET:g} points.",
        f"Against the theory as the paper has it, without a budget, {len(_better(plain))} were "
        f"significantly better and {len(_worse(plain))} significantly worse"
        f"{_list_costs(_worse(plain))}.",
    ]
    for sentence in sentences:
        lines += ["", textwrap.fill(sentence, 100)]
    return "\n".join(lines) + "\n"


def _better(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if float(row["low"]) > 0]


def _worse(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if float(row["high"]) < 0]


def _list_costs(rows: Sequence[Row]) -> str:
    """Return where a default was better, and what the default did to the mean there."""
    where = [
        f"{row['theory']} on {row['data']}, which itself changes the mean by "
        f"{float(row['mean_rival']):+.1f} points"
        for row in rows
    ]
    return f" ({'; '.join(where)})" if where else ""


def _cells(row: Row) -> list[str]:
    value = {key: float(row[key]) for key in COLUMNS[COLUMNS.index("measure_chosen") :]}
    return [
        row["data"],
        row["theory"],
        f"`{row['chosen'].removeprefix('UDJ-FL ')}`",
        f"{value['measure_chosen']:+.2f}",
        f"{value['measure_rival']:+.2f}",
        f"{value['advantage']:+.2f} ({value['low']:.2f} to {value['high']:.2f})",
        f"{value['mean_chosen']:+.2f}",
        f"{value['cost']:.1f} / {value['grid_cost']:.0f}",
    ]


def measure(study: Study, theory: str, n_seeds: int, jobs: int) -> list[Row]:
    """Choose a point for a theory, and compare it with both defaults on fresh seeds."""
    values = {**study.settings, "data": study.data, "theory": theory, "budget": BUDGET}
    settings = validate_settings(TuneSettings, {**values, "jobs": jobs})
    choice = choose_point(settings, strict=False)
    rivals = [method(theory), method(theory, budget=BUDGET)]
    chosen = choice.chosen.candidate.method
    comparison = udjfl.compare(
        study.data,
        [*rivals, chosen],
        seeds=list(range(FRESH, FRESH + n_seeds)),
        jobs=jobs,
        eval_every=study.settings["rounds"],
        **study.settings,
    )
    return [compare_measures(study, theory, choice, comparison, rival) for rival in rivals]


def compare_measures(
    study: Study, theory: str, choice: HeldOutChoice, comparison: Comparison, rival: Method
) -> Row:
    """Test the chosen point against a default by the theory's measure; higher is better."""
    chosen = choice.chosen.candidate.method
    (ours, mean), (theirs, rival_mean) = (
        measure_by_seed(theory, comparison, rule) for rule in (chosen, rival)
    )
    test = paired_test(ours, theirs)
    low, high = test.ci95 or (0.0, 0.0)
    numbers = {
        "measure_chosen": sum(ours) / len(ours),
        "measure_rival": sum(theirs) / len(theirs),
        "advantage": test.difference,
        "low": low,
        "high": high,
        "p": 1.0 if test.p is None else test.p,
        "mean_chosen": mean,
        "mean_rival": rival_mean,
        "cost": choice.cost,
        "grid_cost": choice.grid_cost,
    }
    return {
        "data": study.data,
        "theory": theory,
        "chosen": chosen.label,
        "rival": rival.label,
        "seeds": str(len(ours)),
        **{key: f"{value:.4f}" for key, value in numbers.items()},
    }


def measure_by_seed(theory: str, comparison: Comparison, rule: Method) -> tuple[list[float], float]:
    """Return the change of the measure against FedAvg by seed, and that of the mean accuracy."""
    row = next(row for row in comparison.rows if row.method == rule)
    runs: PairedRuns = row.runs
    evidence = collect_evidence(theory, runs, BUDGET)
    moved = [evidence.better * value for value in evidence.measure.differences]
    return moved, evidence.mean.difference


if __name__ == "__main__":
    main()
