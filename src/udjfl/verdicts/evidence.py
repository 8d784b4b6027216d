"""The evidence for a verdict: a theory's measure, its beneficiaries, and everybody else.

Each theory has a measure and clients whom it should benefit:

theory       measure                                        beneficiaries
rawls        Psi: their gain less that of the others        the least advantaged
egalitarian  STD, without test noise where sizes are known  the lower half under FedAvg
utilitarian  global accuracy, else the mean                  everybody
desert       slope of accuracy over uncertainty             the least uncertain

All numbers are differences from FedAvg on the same seeds.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from udjfl._measures import gains_of, least_advantaged
from udjfl.metrics import METRICS, Outcome
from udjfl.tasks import ACCURACY, ScoreKind
from udjfl.verdicts.changes import Change, PairedRuns, change_from_zero, compare_values
from udjfl.verdicts.promises import Promise, compare_with_limits

MARGIN = 2.0
"""Points of mean accuracy that a theory may cost, unless the method has a budget of its own."""

UNSEEN = 1e-9  # points; smaller gains are rounding

LeastAdvantaged = Literal["uncertainty", "fedavg"] | Mapping[str, float]
"""Choice of the least advantaged: the most uncertain clients of each seed, those with the lowest
mean score under FedAvg, or those with the highest of the given numbers (by client id), where NaN is
unknown."""

Members = Sequence[Sequence[int]]  # for each seed the indices of some clients


@dataclass(frozen=True)
class Evidence:
    """The effects of a method, against FedAvg, that one theory looks at.

    better         1: the measure should rise; -1: it should fall
    beneficiary    the clients that the theory should benefit, in words
    beneficiaries  their ids, if they are the same on every seed
    gain, others   the mean gain in points of the beneficiaries and of all other clients; None where
                   there are no others
    mean, shared   the mean of the clients' accuracies; global accuracy, if there is one
    clients        the change of each client's accuracy
    beside         changes that are shown beside the measure, by their metric
    budget         points of mean accuracy that the method may cost
    limits         the accuracy of each client above the limit that it was promised; negative: below
    score          what is judged; gains and budgets are in the unit of its gains
    """

    theory: str
    measure: Change
    better: Literal[-1, 1]
    beneficiary: str
    beneficiaries: tuple[str, ...]
    gain: Change
    others: Change | None
    mean: Change
    shared: Change | None
    clients: dict[str, Change]
    budget: float
    beside: dict[str, Change] = field(default_factory=dict)
    limits: dict[str, Change] = field(default_factory=dict)
    score: ScoreKind = ACCURACY

    @property
    def moved(self) -> float:
        """The measure's difference; positive in the direction of the theory."""
        return self.better * self.measure.difference

    @property
    def somebody_gains(self) -> bool:
        """True if the accuracy of a client, or of the beneficiaries, rises on average.

        The beneficiaries may be other clients on each seed.
        """
        changes = [self.gain, *self.clients.values()]
        return any(change.difference > UNSEEN for change in changes)


def collect_evidence(
    theory: str,
    runs: PairedRuns,
    budget: float = MARGIN,
    least_advantaged_by: LeastAdvantaged = "uncertainty",
    promise: Promise | None = None,
) -> Evidence:
    """Compare a method with FedAvg by the measure of a theory, for its beneficiaries and others."""
    beneficiary, members, known_only = _choose_beneficiaries(theory, runs, least_advantaged_by)
    gains, others = _gains_by_seed(runs, members, known_only)
    measure, better = _measure(theory, runs, gains, others)
    same = members[0] if members and all(m == members[0] for m in members) else ()
    ids = tuple(runs.clients[index] for index in same)
    return Evidence(
        theory,
        measure,
        better,
        _name(beneficiary, ids),
        ids,
        change_from_zero("Gain", gains),
        _existing(change_from_zero("Gain of the others", others)),
        compare_metric("mean_accuracy", runs),
        _existing(compare_metric("global_accuracy", runs)),
        compare_clients(runs),
        budget,
        {key: compare_metric(key, runs) for key in BESIDE[theory]},
        compare_with_limits(promise, runs) if promise else {},
        runs.score,
    )


BESIDE = {
    "rawls": (),
    "egalitarian": ("std", "corrected_std"),
    "utilitarian": (),
    "desert": ("pearson_r", "slope", "gap"),
}


def compare_metric(key: str, runs: PairedRuns) -> Change:
    """Compare a metric seed by seed."""
    metric = METRICS[key]
    ours = [metric.evaluate(outcome)[0] for outcome in runs.outcomes]
    theirs = [metric.evaluate(outcome)[0] for outcome in runs.references]
    return compare_values(metric.title, ours, theirs, metric.test_scale)


def _existing(change: Change) -> Change | None:
    return change if change.differences else None


def _measure(
    theory: str,
    runs: PairedRuns,
    gains: Sequence[float | None],
    others: Sequence[float | None],
) -> tuple[Change, Literal[-1, 1]]:
    """Return the change of a theory's measure, and the direction in which it should go."""
    if theory == "rawls":
        pairs = zip(gains, others, strict=True)
        psi = [None if own is None or rest is None else own - rest for own, rest in pairs]
        return change_from_zero("Psi", psi), 1
    if theory == "egalitarian":
        corrected = compare_metric("corrected_std", runs)
        return (corrected if corrected.differences else compare_metric("std", runs)), -1
    if theory == "desert":
        return compare_metric("slope", runs), -1
    shared = compare_metric("global_accuracy", runs)
    return (shared if shared.differences else compare_metric("mean_accuracy", runs)), 1


def _choose_beneficiaries(
    theory: str, runs: PairedRuns, by: LeastAdvantaged
) -> tuple[str, Members, bool]:
    """Return who should benefit, in words and on each seed, and whether others need a known u."""
    n = len(runs.clients)
    everybody = list(range(n))
    if theory == "utilitarian":
        return "the clients", [everybody] * len(runs.references), False
    if theory == "egalitarian":
        scores: Sequence[float] = _mean_scores(runs.references) or everybody
        lower = sorted(sorted(everybody, key=lambda index: scores[index])[: n // 2])
        return "the lower half", [lower or everybody] * len(runs.references), False
    if theory == "desert":
        certain = [_highest([-u for u in o.uncertainties]) for o in runs.references]
        return f"the least uncertain {_group(n)}", certain, True
    if by == "uncertainty":
        uncertain = [_highest(outcome.uncertainties) for outcome in runs.references]
        return f"the most uncertain {_group(n)}", uncertain, True
    if by == "fedavg":
        # The mean over seeds: the lowest of one seed would gain by chance alone on the next.
        lowest = least_advantaged([-score for score in _mean_scores(runs.references)] or [0.0])
        words = f"the {_group(n)} with the lowest score under FedAvg"
        return words, [lowest] * len(runs.references), False
    given = _highest([by[client] for client in runs.clients])
    return f"the least advantaged {_group(n)}", [given] * len(runs.references), False


def _group(n_clients: int) -> str:
    return "client" if len(least_advantaged([0.0] * max(1, n_clients))) == 1 else "tenth"


def _highest(values: Sequence[float]) -> list[int]:
    """Return the clients with the highest known values."""
    known = [index for index, value in enumerate(values) if math.isfinite(value)]
    return [known[i] for i in least_advantaged([values[k] for k in known])] if known else []


def _mean_scores(outcomes: Sequence[Outcome]) -> list[float]:
    columns = zip(*(outcome.accuracies for outcome in outcomes), strict=True)
    return [statistics.mean(column) for column in columns]


def _name(words: str, ids: Sequence[str]) -> str:
    """Name one client by its id; add the ids of a few to the words for them."""
    if len(ids) == 1:
        return ids[0]
    shown = 1 < len(ids) <= 3 and words != "the clients"
    return f"{words} ({', '.join(ids)})" if shown else words


def _gains_by_seed(
    runs: PairedRuns, members: Members, known_only: bool
) -> tuple[list[float | None], list[float | None]]:
    """Return the mean gain of some clients and that of the others, seed by seed."""
    gains: list[float | None] = []
    others: list[float | None] = []
    for outcome, reference, chosen in zip(runs.outcomes, runs.references, members, strict=True):
        usable = [
            index
            for index in range(len(runs.clients))
            if not known_only or math.isfinite(reference.uncertainties[index])
        ]
        if not chosen:
            gains.append(None)
            others.append(None)
            continue
        position = {index: number for number, index in enumerate(usable)}
        own, rest = gains_of(
            [position[index] for index in chosen],
            [outcome.accuracies[index] for index in usable],
            [reference.accuracies[index] for index in usable],
        )
        gains.append(own)
        others.append(rest)
    return gains, others


def compare_clients(runs: PairedRuns, clients: Sequence[str] | None = None) -> dict[str, Change]:
    """Compare the accuracy of each client, or of some, seed by seed."""
    indices = {client: index for index, client in enumerate(runs.clients)}
    return {
        client: compare_values(
            client,
            [outcome.accuracies[indices[client]] for outcome in runs.outcomes],
            [outcome.accuracies[indices[client]] for outcome in runs.references],
        )
        for client in (runs.clients if clients is None else clients)
    }
