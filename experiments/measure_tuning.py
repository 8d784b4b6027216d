"""Is a tuned point better than the theory's defaults, on seeds that the search has not seen?

    python experiments/measure_tuning.py scanners     # results/tuning-scanners.csv
    python experiments/measure_tuning.py heart --theories rawls,desert
    python experiments/measure_tuning.py signs --out FOLDER    # the same command again goes on
    python experiments/measure_tuning.py --page       # all results, into docs/tuning.md

For each theory `udjfl tune` chooses within a budget of 2 points, on seeds 0 to 9, on large data on
seeds 0 to 4. The choice, the theory as the paper has it, and the theory with the budget are then
trained on fresh seeds, 30 of them, of large data 10, and compared by the theory's measure, seed by
seed. Federations and settings are those of JUSTICE.md. All theories share the measurement of the
clients' uncertainties, and FedAvg on the fresh seeds.
"""

from __future__ import annotations

import argparse
import csv
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

from justice_results import BUDGET, RESULTS, Row, read
from measure_justice import STUDIES, Study

import udjfl
from udjfl.methods import THEORIES, Method, method
from udjfl.search.settings import TuneSettings
from udjfl.search.tune import HeldOutChoice, choose_point
from udjfl.settings import validate_settings
from udjfl.simulation.comparison import Comparison
from udjfl.statistics import paired_test
from udjfl.uncertainty import Uncertainty
from udjfl.verdicts import PairedRuns, collect_evidence

PAGE = RESULTS.parents[1] / "docs" / "tuning.md"
FIRST, AFTER = "| data | seeds |", "\nThe gain is mostly"  # the page's table lies between them
FRESH = 200  # the first of the fresh seeds
COLUMNS = (
    *("data", "theory", "chosen", "rival", "searched", "seeds", "measure_chosen"),
    *("measure_rival", "advantage", "low", "high", "p", "mean_chosen", "mean_rival"),
    *("cost", "grid_cost"),
)
# Seeds to choose on, and fresh ones; fewer where one training takes seconds.
SEEDS = (10, 30)
SEEDS_OF = {"signs": (5, 10), "dirty-mnist": (5, 10)}


def main() -> None:
    """Measure one federation, all theories or some; those measured before stay in the file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("study", nargs="?", choices=STUDIES)
    parser.add_argument("--table", action="store_true", help="print all results as Markdown")
    parser.add_argument("--page", action="store_true", help="put them into docs/tuning.md")
    parser.add_argument("--theories", default=",".join(THEORIES), help="some, between commas")
    parser.add_argument("--searched", type=int, help="number of seeds to choose on, from 0")
    parser.add_argument("--seeds", type=int, help="number of fresh seeds")
    parser.add_argument("--jobs", type=int, default=0, help="processes (0: one per core)")
    parser.add_argument("--out", type=Path, help="folder for the runs; the same again resumes")
    arguments = parser.parse_args()
    if arguments.study:
        measure(parser, arguments)
    if arguments.table:
        print(markdown(), end="")
    if arguments.page:
        PAGE.write_text(put_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    if not (arguments.study or arguments.table or arguments.page):
        parser.print_help()


def measure(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    """Choose for each theory, compare the choices with the defaults, and keep the results."""
    theories = arguments.theories.split(",")
    if unknown := set(theories) - set(THEORIES):
        parser.error(f"--theories: unknown: {', '.join(unknown)}; there are {', '.join(THEORIES)}")
    usual = SEEDS_OF.get(arguments.study, SEEDS)
    searched, fresh = arguments.searched or usual[0], arguments.seeds or usual[1]
    study = STUDIES[arguments.study]
    measured: dict[int, Uncertainty] = {}
    choices = {}
    for theory in theories:
        folder = arguments.out and arguments.out / theory
        choices[theory] = choose(study, theory, range(searched), arguments.jobs, folder, measured)
        print(f"{theory}: {choices[theory].chosen.candidate.method.label}", flush=True)
    folder = arguments.out and arguments.out / "fresh"
    comparison = train_fresh(study, choices, fresh, arguments.jobs, folder)
    rows = [
        compare_measures(study, choice, searched, comparison, rival)
        for choice in choices.values()
        for rival in rivals_of(choice.theory)
    ]
    for row in rows:
        print(*(f"{key}={value}" for key, value in row.items()), flush=True)
    keep(f"tuning-{arguments.study}", rows)


def keep(name: str, rows: Sequence[Row]) -> None:
    """Write results; those of other theories stay in the file."""
    theories = {row["theory"] for row in rows}
    kept = [row for row in read(name) if row["theory"] not in theories]
    ordered = sorted([*kept, *rows], key=lambda row: THEORIES.index(row["theory"]))
    with (RESULTS / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(ordered)


def markdown() -> str:
    """Return all results against the theory with the budget, and what they come to."""
    by_data = {study.data: read(f"tuning-{study.data}") for study in STUDIES.values()}
    rows = [row for own in by_data.values() for row in own]
    missing = [name for name, own in by_data.items() if len(own) < 2 * len(THEORIES)]
    within = [row for row in rows if row["rival"].endswith(f"(budget={BUDGET:g})")]
    plain = [row for row in rows if row not in within]
    head = ["data", "seeds", "theory", "chosen", "measure", f"with `budget={BUDGET:g}`"]
    lines = [f"| {' | '.join([*head, 'advantage', 'mean accuracy', 'cost / grid'])} |"]
    lines += ["|---|---|---|---|--:|--:|--:|--:|--:|"]
    lines += [f"| {' | '.join(_cells(row))} |" for row in within]
    beyond = [row for row in within if float(row["mean_chosen"]) < -BUDGET]
    federations = {row["data"] for row in within}
    sentences = [
        f"Of {len(within)} choices on {len(federations)} federations, on fresh seeds and against "
        f"the theory with the budget: significantly better {_count(_better(within))}, "
        f"significantly worse {_count(_worse(within))}. The mean fell by more than {BUDGET:g} "
        f"points with {_count(beyond)}.",
        "Against the theory as the paper has it, without a budget: significantly better "
        f"{_count(_better(plain))}, significantly worse {_count(_worse(plain))}"
        f"{_list_costs(_worse(plain))}.",
    ]
    if missing:
        sentences.append(f"Not measured, or not for all theories: {', '.join(missing)}.")
    for sentence in sentences:
        lines += ["", textwrap.fill(sentence, 100)]
    return "\n".join(lines) + "\n"


def put_table(page: str) -> str:
    """Return the page with all results in the place of those that it has."""
    for marker in (FIRST, AFTER):
        if page.count(marker) != 1:
            raise ValueError(
                f"{PAGE} has {marker.strip()!r} {page.count(marker)} times; the table needs it once"
            )
    before, _, rest = page.partition(FIRST)
    _, after, rest = rest.partition(AFTER)
    if not after:
        raise ValueError(f"{PAGE} has {AFTER.strip()!r} before the table; it belongs after it")
    return before + markdown() + after + rest


def _better(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if float(row["low"]) > 0]


def _worse(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if float(row["high"]) < 0]


def _count(rows: Sequence[Row]) -> str:
    return str(len(rows) or "none")


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
        f"{row['searched']} / {row['seeds']}",
        row["theory"],
        f"`{row['chosen'].removeprefix('UDJ-FL ')}`",
        f"{value['measure_chosen']:+.2f}",
        f"{value['measure_rival']:+.2f}",
        f"{value['advantage']:+.2f} ({value['low']:.2f} to {value['high']:.2f})",
        f"{value['mean_chosen']:+.2f}",
        f"{value['cost']:.1f} / {value['grid_cost']:.0f}",
    ]


def rivals_of(theory: str) -> list[Method]:
    """Return the theory as the paper has it, and with the budget."""
    return [method(theory), method(theory, budget=BUDGET)]


def choose(
    study: Study,
    theory: str,
    seeds: Sequence[int],
    jobs: int,
    folder: Path | None,
    uncertainties: dict[int, Uncertainty],
) -> HeldOutChoice:
    """Choose a point for a theory on some seeds, as `udjfl tune` does."""
    values = {**study.settings, "data": study.data, "theory": theory, "budget": BUDGET}
    settings = validate_settings(TuneSettings, {**values, "seeds": list(seeds), "jobs": jobs})
    return choose_point(settings, strict=False, out=folder, uncertainties=uncertainties)


def train_fresh(
    study: Study, choices: Mapping[str, HeldOutChoice], n_seeds: int, jobs: int, folder: Path | None
) -> Comparison:
    """Train the choices and their rivals on seeds that no search has seen."""
    methods = []
    for theory, choice in choices.items():
        for each in (*rivals_of(theory), choice.chosen.candidate.method):
            if each not in methods:
                methods.append(each)
    return udjfl.compare(
        study.data,
        methods,
        seeds=list(range(FRESH, FRESH + n_seeds)),
        jobs=jobs,
        out=folder,
        resume=folder is not None and folder.exists(),
        **{"eval_every": study.settings["rounds"], **study.settings},
    )


def compare_measures(
    study: Study, choice: HeldOutChoice, searched: int, comparison: Comparison, rival: Method
) -> Row:
    """Test the chosen point against a default by the theory's measure; higher is better."""
    theory = choice.theory
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
        "searched": str(searched),
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
