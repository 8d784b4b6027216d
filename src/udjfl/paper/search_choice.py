"""The candidates of a search over parameters, and the choice among them.

Candidates whose mean accuracy is too far below FedAvg's cannot be chosen: a model that has learned
nothing has the lowest STD. That FedAvg is the same for all: the one at the learning rate that is
best for it.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from udjfl.methods import UDJ, Method, method
from udjfl.paper.profiles import PROFILES, Profile
from udjfl.paper.tables import Row, SearchTable
from udjfl.statistics import Summary, metric_of
from udjfl.verdicts import MARGIN, left_out_reason

LEARNING_RATES = (0.1, 0.01, 0.001)
TESTED = ", tested"


@dataclass(frozen=True)
class SearchRange:
    """The values of a parameter to try for one method in one section of the table."""

    theory: str
    title: str
    parameter: str
    methods: tuple[Method, ...]
    values: tuple[float, ...]

    def row_name(self, value: float, lr: float) -> str:
        """Return the name of a candidate in the table."""
        theory = f" {self.theory}" if isinstance(self.methods[0], UDJ) else ""
        return f"{self.title}{theory}: {self.parameter}={value:g}, {format_rate(lr)}"


@dataclass(frozen=True)
class Candidate:
    """One value at one learning rate.

    score     the theory's metric on the held-out examples
    left_out  why it cannot be chosen, if so
    """

    lr: float
    value: float
    name: str
    score: Summary
    left_out: str | None = None


@dataclass(frozen=True)
class SearchOutcome:
    """A range, its candidates, the best of them and its test; None if none could be chosen."""

    range: SearchRange
    candidates: tuple[Candidate, ...]
    chosen: Candidate | None
    tested: Row | None

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for `--json`."""
        name, chosen, tested = self.range.parameter, self.chosen, self.tested
        return {
            "theory": self.range.theory,
            "method": self.range.title,
            "metric": metric_of(self.range.theory).key,
            "tried": [
                {"lr": one.lr, name: one.value, **asdict(one.score), "left_out": one.left_out}
                for one in self.candidates
            ],
            "chosen": None if chosen is None else {"lr": chosen.lr, name: chosen.value},
            "test": None
            if tested is None
            else {key: asdict(value) for key, value in tested.values.items()},
        }


def search_ranges(profile: Profile) -> list[SearchRange]:
    """Return the ranges of the paper's appendix; for UDJ-FL, of which it lists none, our own."""

    def of(
        theory: str, name: str, parameter: str, values: Sequence[float], **fixed: Any
    ) -> SearchRange:
        methods = tuple(method(name, **{parameter: value}, **fixed) for value in values)
        return SearchRange(theory, methods[0].title, parameter, methods, tuple(values))

    def udj(theory: Any, values: Sequence[float]) -> SearchRange:
        # At beta = 0 the authors' step divides by zero.
        methods = tuple(
            UDJ(
                theory=theory,
                beta=value,
                step="normalised" if profile.step == "authors" and value == 0 else profile.step,
                cap=1,
            )
            for value in values
        )
        return SearchRange(theory, methods[0].title, "beta", methods, tuple(values))

    return [
        of("utilitarian", "propfair", "M", (2, 3, 4, 5)),
        of("utilitarian", "qffl", "q", (0, 0.1, 1, 2, 5), lipschitz="paper"),
        udj("utilitarian", (0, 0.1, 0.5)),
        of("egalitarian", "term", "t", (0.01, 0.1, 0.5)),
        of("egalitarian", "fedmgda", "epsilon", (0.05, 0.1, 0.5)),
        of("rawls", "propfair", "M", (2, 3, 4, 5)),
        of("rawls", "qffl", "q", (0, 0.1, 1, 2, 5), lipschitz="paper"),
        udj("rawls", (1, 2, 5)),
        of("desert", "cffl", "alpha", (1, 2, 3, 4, 5)),
    ]


def fedavg_name(lr: float) -> str:
    """Return the name of FedAvg at a learning rate in the table."""
    return f"FedAvg, {format_rate(lr)}"


def format_rate(lr: float) -> str:
    """Return a learning rate as in names of rows."""
    return f"rate {lr:g}"


def find_outcomes(table: SearchTable) -> tuple[SearchOutcome, ...]:
    """Choose the best candidate of each range of the table's profile."""
    fedavg = filter(None, (table.find(fedavg_name(lr)) for lr in LEARNING_RATES))
    means = [row.values["mean_accuracy"].mean for row in fedavg]
    reference = max((mean for mean in means if mean is not None), default=None)
    outcomes = []
    for each in search_ranges(PROFILES[table.profile]):
        candidates = _find_candidates(table, each, reference)
        best = _best(each.theory, candidates)
        tested = None if best is None else table.find(best.name + TESTED)
        outcomes.append(SearchOutcome(each, candidates, best, tested))
    return tuple(outcomes)


def search_document(table: SearchTable) -> dict[str, Any]:
    """Return a table and its outcomes as plain values, for `--json`."""
    found = [outcome.as_dict() for outcome in find_outcomes(table)]
    return {**table.as_dict(), "margin": MARGIN, "found": found}


def _find_candidates(
    table: SearchTable, searched: SearchRange, reference: float | None
) -> tuple[Candidate, ...]:
    key = metric_of(searched.theory).key
    candidates = []
    for lr in LEARNING_RATES:
        for value in searched.values:
            row = table.find(searched.row_name(value, lr))
            if row is not None:
                left_out = left_out_reason(row.values["mean_accuracy"].mean, reference)
                candidates.append(Candidate(lr, value, row.name, row.values[key], left_out))
    return tuple(candidates)


def _best(theory: str, candidates: Sequence[Candidate]) -> Candidate | None:
    """Return the candidate with the best mean; None if none can be chosen.

    That is one with a value on every seed that is not left out. Of equals the first is taken: the
    larger learning rate, then the smaller value.
    """
    complete = [
        candidate
        for candidate in candidates
        if candidate.left_out is None
        and candidate.score.mean is not None
        and None not in candidate.score.values
    ]
    better = metric_of(theory).better
    return max(complete, key=lambda candidate: better * (candidate.score.mean or 0.0), default=None)
