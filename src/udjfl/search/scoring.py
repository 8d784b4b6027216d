"""Scores of points on held-out data: the measure of a theory, and the limits they keep."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from udjfl._spec import names_code
from udjfl.methods import FedAvg
from udjfl.methods import method as build_method
from udjfl.metrics import Outcome
from udjfl.search.point_runs import point_name
from udjfl.search.run_table import PointRun, RunTable
from udjfl.search.spaces import Candidate, Family
from udjfl.search.stored import StoredScore
from udjfl.tasks import ScoreKind
from udjfl.verdicts import PairedRuns, collect_evidence

ROUNDING = 1e-9  # points


@dataclass(frozen=True)
class SearchLimits:
    """The limits on what a point may cost.

    budget   points of mean accuracy below FedAvg's
    floors   percent that clients have at least, by id; of another score, its value or a better one
    """

    budget: float
    floors: Mapping[str, float]


@dataclass(frozen=True)
class CandidateScore:
    """A candidate on held-out data, over seeds.

    moved     the change of the theory's measure against FedAvg, seed by seed; higher is better
    mean      the change of the clients' mean accuracy, in points
    gain      that of the clients whom the theory should benefit
    shared    the change of the accuracy on the shared held-out data; None without a single model
    clients   accuracy of each client, percent, or the score that is judged
    broken    limits that it breaks, and by how much
    failed    why it has no numbers on some seed
    near      within the budget, by less than a standard error over seeds
    """

    candidate: Candidate
    moved: tuple[float, ...] = ()
    mean: float = 0.0
    gain: float = 0.0
    shared: float | None = None
    clients: Mapping[str, float] | None = None
    broken: Mapping[str, float] | None = None
    failed: str | None = None
    near: bool = False

    @property
    def value(self) -> float:
        """The mean change of the measure; minus infinity if it failed."""
        return statistics.mean(self.moved) if self.moved and not self.failed else -math.inf

    @property
    def error(self) -> float | None:
        """The standard error of the value; None with fewer than two seeds."""
        return standard_error(self.moved)

    @property
    def violation(self) -> float:
        """The sum over limits of how far it is beyond them; 0 if it keeps all."""
        return math.inf if self.failed else sum((self.broken or {}).values())

    @property
    def rank(self) -> tuple[float, bool, float]:
        """The key to sort by, the best first.

        Within the limits come first; of those, points that do not harm their own beneficiaries.
        """
        return (self.violation, self.gain < 0, -self.value)

    @property
    def final_rank(self) -> tuple[float, bool, bool, float]:
        """The key to choose by: on other data a point near the budget may cost more than that."""
        return (self.violation, self.near, self.gain < 0, -self.value)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        method = self.candidate.method
        return {
            "label": method.label,
            "method": method.spec_name,
            "params": method.params,
            "measure": None if self.failed else self.value,
            "measure_by_seed": list(self.moved),
            "mean_accuracy": self.mean,
            "beneficiaries": self.gain,
            "shared": self.shared,
            "clients": dict(self.clients or {}),
            "broken": dict(self.broken or {}),
            "failed": self.failed,
            "near_budget": self.near,
        }

    @classmethod
    def restore(cls, kept: StoredScore) -> CandidateScore:
        """Return what `as_dict` described; code that it names is not imported."""
        if names_code(kept.method):
            raise ValueError(f"{kept.method!r} cannot be a searched method")
        method = build_method(kept.method, **kept.params)
        return cls(
            Candidate(method, Family(method.title, method.spec_name)),
            tuple(kept.measure_by_seed),
            kept.mean_accuracy,
            kept.beneficiaries,
            kept.shared,
            kept.clients,
            kept.broken,
            kept.failed,
            kept.near_budget,
        )


def standard_error(values: Sequence[float]) -> float | None:
    """Return the standard error of a mean; None with fewer than two values."""
    if len(values) < 2:
        return None
    return statistics.stdev(values) / math.sqrt(len(values))


def show_value(value: float, kind: ScoreKind) -> str:
    """Return a client's score with few digits."""
    return f"{value:.1f}" if kind.percent else f"{value:.{kind.digits}f}"


def score(
    candidate: Candidate, theory: str, table: RunTable, seeds: Sequence[int], limits: SearchLimits
) -> CandidateScore:
    """Compare a candidate with FedAvg on the seeds of a table.

    Changes are gains of the score that is judged, in points or hundredths of FedAvg's mean.
    """
    reference = [table.runs[point_name(FedAvg()), seed] for seed in seeds]
    runs = [table.runs[candidate.name, seed] for seed in seeds]
    failed = next((run.failed for run in (*reference, *runs) if run.failed), None)
    if failed is not None:
        return CandidateScore(candidate, failed=failed)
    kind = table.score
    factor = kind.points_factor(value for run in reference for value in run.accuracies)

    def benefits(run: PointRun, fedavg: PointRun) -> Outcome:
        return run.outcome(fedavg, kind).as_benefits(factor)

    paired = PairedRuns(
        table.clients,
        tuple(benefits(*pair) for pair in zip(runs, reference, strict=True)),
        tuple(benefits(fedavg, fedavg) for fedavg in reference),
        score=kind,
    )
    evidence = collect_evidence(theory, paired, limits.budget)
    if len(evidence.measure.differences) < len(seeds):
        title = evidence.measure.title
        return CandidateScore(candidate, failed=f"{title} is not defined on every seed")
    columns = zip(*(run.accuracies for run in runs), strict=True)
    clients = dict(zip(table.clients, map(statistics.mean, columns), strict=True))
    short = {
        client: factor * kind.better * (floor - clients[client])
        for client, floor in limits.floors.items()
    }
    broken = {
        f"{client} has {show_value(clients[client], kind)}": amount
        for client, amount in short.items()
        if amount > ROUNDING
    }
    left = limits.budget + evidence.mean.difference
    if left < -ROUNDING:
        broken["budget"] = -left
    return CandidateScore(
        candidate,
        tuple(evidence.better * value for value in evidence.measure.differences),
        evidence.mean.difference,
        evidence.gain.difference,
        None if evidence.shared is None else evidence.shared.difference,
        clients,
        broken,
        near=-ROUNDING <= left < (standard_error(evidence.mean.differences) or 0.0),
    )


def choose(scores: Sequence[CandidateScore], defaults: Sequence[str]) -> CandidateScore:
    """Return the best score, or the default if the best is not clearly better.

    `defaults` are names, the preferred one first. Clearly: its mean advantage over the default,
    paired by seed, is more than one standard error. A default that breaks a limit, is near the
    budget or harms its own beneficiaries where the best does not, is no alternative.
    """
    best = min(scores, key=lambda each: each.final_rank)
    for name in defaults:
        default = next((each for each in scores if each.candidate.name == name), None)
        if default is None or default.final_rank[:3] > best.final_rank[:3]:
            continue
        ahead = [a - b for a, b in zip(best.moved, default.moved, strict=True)]
        if ahead and statistics.mean(ahead) <= (standard_error(ahead) or 0.0):
            return default
    return best
