"""Could any weighting of clients lift the most uncertain one, within the budget?

    python experiments/search_weights.py dirty-digits     # results/weights-dirty-digits.csv
    python experiments/measure_justice.py --page          # JUSTICE.md from all results

A judge of Rawls' theory. FedAvg is trained with many fixed weights, on search seeds: shares of the
clients in order of their uncertainty. The best within the budget are then trained once more, on
fresh seeds, beside every method of the registry at its defaults and Rawls with a budget.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from measure_justice import BUDGET, RESULTS, STUDIES, WITHIN, print_finished, write_table
from pydantic import Field
from scipy import stats
from torch import Tensor, tensor

import udjfl
from udjfl.methods import (
    ALIASES,
    METHODS,
    Diagnostics,
    Method,
    Reports,
    State,
    method,
    parameters,
    weighted_sum,
)
from udjfl.simulation.comparison import Comparison
from udjfl.simulation.method_summary import MethodSummary
from udjfl.verdicts import collect_evidence

CONFIDENCE = 0.95
SHARES = (0.1, 0.25, 0.5, 1.0)  # of one client; the rest is shared equally with it
COLUMNS = (
    *("data", "stage", "method", "seeds", "within_budget", "mean"),
    *("gain", "gain_low", "gain_high", "psi", "psi_low", "psi_high"),
)


@dataclass(frozen=True)
class Search:
    """How many points are searched, on how many seeds, and on how many others confirmed."""

    points: int
    seeds: int
    confirming: int


SEARCHES = {
    "scanners": Search(64, 20, 30),
    "dirty-digits": Search(64, 30, 60),
    "heart": Search(48, 30, 100),
    "signs": Search(25, 4, 10),
}
FIRST_SEED, FIRST_CONFIRMING_SEED = 1000, 5000


@parameters
class FixedWeights(Method):
    """FedAvg with the same shares in every round; the first is that of the most uncertain."""

    name = "fixed"
    title = "fixed weights"
    theories = ("rawls",)
    paper = "none"
    grade = "own"
    needs = frozenset({"uncertainties"})

    shares: Annotated[tuple[float, ...], Field(description="in order of falling uncertainty")]

    def aggregate(self, state: State, reports: Reports) -> tuple[State, Tensor, Diagnostics]:
        """Step along the weighted sum of the updates."""
        order = reports.uncertainties.argsort(descending=True, stable=True)
        weights = tensor(self.shares, dtype=reports.uncertainties.dtype)[order.argsort()]
        return state, weighted_sum(weights, reports.deltas), {"weight": weights}

    @property
    def label(self) -> str:
        """The shares in percent."""
        return f"{self.title} {'/'.join(f'{100 * share:.0f}' for share in self.shares)}"


def main() -> None:
    """Search one federation."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("study", choices=SEARCHES)
    study = parser.parse_args().study
    rows: list[dict[str, Any]] = []
    for stage in search(study, SEARCHES[study]):
        rows += stage
        write_table(RESULTS / f"weights-{study}.csv", COLUMNS, rows)


def search(study: str, plan: Search) -> Iterator[list[dict[str, Any]]]:
    """Yield the rows of all points on the search seeds, then of the best on fresh ones."""
    n_clients = len(udjfl.load(STUDIES[study].data, seed=FIRST_SEED).ids)
    points = [FixedWeights(shares=point) for point in make_points(n_clients, plan.points)]
    seeds = range(FIRST_SEED, FIRST_SEED + plan.seeds)
    found = run(study, points, seeds)
    rows = make_rows(found, "search")
    yield rows
    best = choose(found, rows)
    print("chosen:", ", ".join(point.label for point in best), file=sys.stderr)
    others = [method(name) for name in (WITHIN[0], *registered())]
    fresh = range(FIRST_CONFIRMING_SEED, FIRST_CONFIRMING_SEED + plan.confirming)
    yield make_rows(run(study, [*best, *others], fresh), "confirm")


def registered() -> list[str]:
    """Return the names of every method but FedAvg; the four theories stand for their family."""
    families = {target for target, _ in ALIASES.values()}
    return [name for name in METHODS if name not in {*families, "fedavg"}] + list(ALIASES)


def make_points(n_clients: int, count: int) -> list[tuple[float, ...]]:
    """Return shares that sum to 1: towards one client, without one, and Sobol's points.

    Spacings of sorted uniform numbers are uniform on the simplex.
    """
    points: list[tuple[float, ...]] = []
    for client in range(n_clients):
        for own in (*SHARES, -1 / (n_clients - 1)):
            rest = (1 - own) / n_clients
            points.append(tuple(rest + own * (other == client) for other in range(n_clients)))
    draws = stats.qmc.Sobol(n_clients - 1, seed=0).random(2 ** math.ceil(math.log2(count)))
    for draw in draws[: max(0, count - len(points))]:
        ends = [0.0, *sorted(draw.tolist()), 1.0]
        points.append(tuple(end - begin for begin, end in itertools.pairwise(ends)))
    return [tuple(round(max(0.0, share), 4) for share in point) for point in points]


def run(study: str, methods: Sequence[Method], seeds: Sequence[int]) -> Comparison:
    """Train FedAvg and these methods on these seeds, with the settings of a study."""
    settings = dict(STUDIES[study].settings)
    return udjfl.compare(
        STUDIES[study].data,
        ["fedavg", *methods],
        settings.pop("model", "mlp"),
        seeds=seeds,
        eval_every=settings["rounds"],
        on_progress=print_finished,
        **settings,
    )


def make_rows(comparison: Comparison, stage: str) -> list[dict[str, Any]]:
    """Return what each method gives the most uncertain client, with intervals for all at once."""
    tested = [row for row in comparison.rows[1:] if len(row.runs.outcomes) > 1]
    level = 1 - (1 - CONFIDENCE) / len(tested)
    return [{"data": comparison.data, "stage": stage, **_numbers(row, level)} for row in tested]


def _numbers(row: MethodSummary, level: float) -> dict[str, Any]:
    evidence = collect_evidence("rawls", row.runs, BUDGET)
    mean = evidence.mean.difference
    numbers = {"mean": mean}
    for name, change in (("gain", evidence.gain), ("psi", evidence.measure)):
        low, high = interval(change.differences, level)
        numbers |= {name: change.difference, f"{name}_low": low, f"{name}_high": high}
    return {
        "method": row.method.label,
        "seeds": len(row.runs.outcomes),
        "within_budget": mean >= -BUDGET,
        **{name: f"{value:.3f}" for name, value in numbers.items()},
    }


def interval(values: Sequence[float], level: float) -> tuple[float, float]:
    """Return Student's interval for a mean."""
    centre, spread = statistics.mean(values), statistics.stdev(values)
    half = stats.t.ppf((1 + level) / 2, len(values) - 1) * spread / math.sqrt(len(values))
    return centre - half, centre + half


def choose(found: Comparison, rows: Sequence[dict[str, Any]]) -> list[Method]:
    """Return the points with the highest gain, and with the highest Psi, within the budget."""
    within = [row for row in rows if row["within_budget"]]
    names = {max(within, key=lambda row: float(row[key]))["method"] for key in ("gain", "psi")}
    return [row.method for row in found.rows if row.method.label in names]


if __name__ == "__main__":
    main()
