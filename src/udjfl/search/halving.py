"""Synchronous halving: rungs of candidates, each with fewer of them and more rounds."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from udjfl.data import Federation
from udjfl.errors import DataError, SettingsError
from udjfl.methods import FedAvg
from udjfl.models import ModelChoice
from udjfl.search.point_runs import count_missing, point_name, run_points
from udjfl.search.progress import SearchProgress, say_rounds
from udjfl.search.run_table import RunTable
from udjfl.search.samplers import SAMPLERS
from udjfl.search.scoring import CandidateScore, SearchLimits, score, show_value
from udjfl.search.settings import TuneSettings
from udjfl.search.spaces import Candidate, Family
from udjfl.settings import CompareSettings
from udjfl.training.records import OnProgress
from udjfl.training.run_folder import RunFolder
from udjfl.uncertainty import Uncertainty
from udjfl.uncertainty.alone import task_of

KEEP = 3  # one candidate in so many goes on to the next rung, with so many times the rounds
N_RUNGS = 3


@dataclass(frozen=True)
class Rung:
    """Candidates that were trained for so many rounds, best first."""

    rounds: int
    scores: tuple[CandidateScore, ...]


@dataclass(frozen=True)
class HalvingPlan:
    """The numbers of candidates and of rounds, rung by rung."""

    families: tuple[Family, ...]
    defaults: tuple[Candidate, ...]
    counts: tuple[int, ...]
    rounds: tuple[int, ...]

    @classmethod
    def make(
        cls, settings: TuneSettings, families: Sequence[Family], defaults: Sequence[Candidate]
    ) -> HalvingPlan:
        """Fit as many candidates as the cost allows; raise an error if that is not one rung."""
        total = settings.training.rounds
        divisors = [KEEP ** (N_RUNGS - 1 - number) for number in range(N_RUNGS)]
        rounds = tuple(max(1, round(total / divisor)) for divisor in divisors)
        shares = [each / total for each in rounds]
        # FedAvg and the defaults are in every rung; neighbours are trained for all rounds.
        widest = max(len(family.dimensions) for family in families)
        fixed = (1 + len(defaults)) * sum(shares) + 2 * widest
        count = KEEP - 1
        while fixed + _cost(count + 1, shares) <= settings.cost:
            count += 1
        if count < KEEP:
            least = fixed + _cost(KEEP, shares)
            raise SettingsError(
                f"cost: {settings.cost:g} trainings are too few for one rung: FedAvg, the defaults "
                f"and the neighbours take {fixed:.1f}, the smallest search needs {least:.1f} in "
                f"all; give at least {math.ceil(least)}"
            )
        return cls(tuple(families), tuple(defaults), tuple(_counts(count)), rounds)

    def title(self, number: int) -> str:
        """Return the title of a rung; that after the last is of the neighbours."""
        if number == len(self.rounds):
            return f"neighbours, {say_rounds(self.rounds[-1])}"
        return f"rung {number + 1} of {len(self.rounds)}, {say_rounds(self.rounds[number])}"

    def expected_rounds(self, n_seeds: int) -> dict[str, int]:
        """Return about how many rounds each part trains, by its title."""
        widest = max(len(family.dimensions) for family in self.families)
        runs = [1 + len(self.defaults) + count for count in self.counts]
        runs[0] += 1  # FedAvg is trained beside the candidates, and beside the defaults
        parts = zip((*runs, 1 + 2 * widest), (*self.rounds, self.rounds[-1]), strict=True)
        return {
            self.title(number): n_seeds * n_runs * rounds
            for number, (n_runs, rounds) in enumerate(parts)
        }


def _counts(count: int) -> list[int]:
    return [math.ceil(count / KEEP**number) for number in range(N_RUNGS)]


def _cost(count: int, shares: Sequence[float]) -> float:
    return sum(n * share for n, share in zip(_counts(count), shares, strict=True))


class Halving:
    """One search: its tables of runs, and what it has cost so far.

    `known` has the clients' uncertainties of some seeds; those that are measured are added to it.
    `is_own` tells that data or model are functions of the caller's own.
    """

    def __init__(
        self,
        settings: TuneSettings,
        plan: HalvingPlan,
        data: Callable[[int], Federation],
        first: Federation,
        model: ModelChoice | None,
        folder: RunFolder | None,
        on_progress: OnProgress | SearchProgress | None,
        *,
        known: dict[int, Uncertainty],
        is_own: bool,
    ) -> None:
        self.settings, self.plan, self.data, self.first = settings, plan, data, first
        self.model, self.folder = model, folder
        self.progress = SearchProgress.of(on_progress)
        self.progress.expect(plan.expected_rounds(len(settings.seeds)))
        self.known, self.is_own = known, is_own
        self.limits = SearchLimits(settings.budget, dict(settings.floor))
        self.judged = task_of(first, settings.training).score.kind
        self.tables: dict[int, RunTable] = {}  # by rounds

    def run(self) -> list[Rung]:
        """Play all rungs; the defaults are in each."""
        plan, settings = self.plan, self.settings
        sampler = SAMPLERS[settings.sampler]
        candidates = sampler(plan.families, plan.counts[0], settings.seeds[0], self._judge)
        defaults = {candidate.name: candidate for candidate in plan.defaults}
        rungs = []
        for number, (rounds, count) in enumerate(zip(plan.rounds, plan.counts, strict=True)):
            own = {candidate.name: candidate for candidate in candidates} | defaults
            scores = sorted(self.score(list(own.values()), number), key=lambda each: each.rank)
            rungs.append(Rung(rounds, tuple(scores)))
            others = [each for each in scores if each.candidate.name not in defaults]
            candidates = pick_survivors(others, math.ceil(count / KEEP))
        return rungs

    @property
    def cost(self) -> float:
        """The trainings for each seed so far, counted in whole ones."""
        seeds, total = len(self.settings.seeds), self.plan.rounds[-1]
        return sum(len(t.runs) / seeds * rounds / total for rounds, t in self.tables.items())

    def _judge(self, candidates: Sequence[Candidate]) -> list[tuple[float, float]]:
        """Return for each candidate its value and its violation, as finite numbers."""
        scores = self.score(candidates, 0, more=True)
        return [(-1e6, 1e6) if each.failed else (each.value, each.violation) for each in scores]

    def score_neighbours(self, chosen: Candidate) -> list[CandidateScore]:
        """Train and score the neighbours of a candidate."""
        return self.score(chosen.neighbours(), len(self.plan.rounds))

    def score(
        self, candidates: Sequence[Candidate], number: int, more: bool = False
    ) -> list[CandidateScore]:
        """Train the candidates of a rung for its rounds, unless that is done, and score them.

        `more` tells that the rung has others beside them.
        """
        if not candidates:
            return []
        rounds = self.plan.rounds[min(number, len(self.plan.rounds) - 1)]
        table = self.tables.get(rounds)
        if table is None:
            name = f"held-out-{rounds}.csv"
            table = RunTable(self.first.ids, self.folder, name, self.judged)
            self.tables[rounds] = table
        methods = list({candidate.name: candidate.method for candidate in candidates}.values())
        missing = count_missing(self.settings.seeds, methods, table)
        run_points(
            compare_settings(self.settings, rounds),
            methods,
            table,
            self.first,
            data=self.data,
            model=self.model,
            uncertainties=self.known,
            on_progress=self.progress.begin(self.plan.title(number), missing, rounds, more),
            is_own=self.is_own,
        )
        self._keep_uncertainties(table)
        seeds, theory = self.settings.seeds, self.settings.theory
        return [score(each, theory, table, seeds, self.limits) for each in candidates]

    def _keep_uncertainties(self, table: RunTable) -> None:
        """Take the uncertainties that a rung has measured for the next ones."""
        for (name, seed), run in table.runs.items():
            values = run.uncertainties
            if name == point_name(FedAvg()) and values and all(map(math.isfinite, values)):
                by_client = dict(zip(table.clients, values, strict=True))
                self.known.setdefault(seed, Uncertainty("given", by_client))

    def check_limits(self, rungs: Sequence[Rung]) -> None:
        """Raise an error that names the best value seen if no point keeps the limits."""
        final = rungs[-1].scores
        if any(each.violation == 0 for each in final):
            return
        finished = [each for each in final if not each.failed]
        if not finished:
            raise DataError(f"tune: no point finished: {final[0].failed}")
        rounds, kind = rungs[-1].rounds, self.judged
        for client, floor in self.limits.floors.items():
            best = max(finished, key=lambda each: kind.better * (each.clients or {})[client])
            value = (best.clients or {})[client]
            if kind.better * value < kind.better * floor:
                raise SettingsError(
                    f"floor: no point gives {client} {floor:g}{kind.unit} on held-out data; the "
                    f"best of {len(final)} after {rounds} rounds was "
                    f"{show_value(value, kind)}{kind.unit}, with {best.candidate.method.label}"
                )
        best = min(finished, key=lambda each: each.violation)
        if not self.limits.floors:
            raise SettingsError(
                f"budget: every point costs more than {kind.say_gain(f'{self.limits.budget:g}')} "
                f"of mean {kind.title} on held-out data; the least was {-best.mean:.1f}, with "
                f"{best.candidate.method.label}; allow more, or train for more rounds"
            )
        broken = ", ".join(f"{name} by {value:.1f}" for name, value in (best.broken or {}).items())
        raise SettingsError(
            f"floor: no point keeps all limits at once; the nearest is "
            f"{best.candidate.method.label}, which breaks {broken}; its mean changes by "
            f"{kind.say_gain(f'{best.mean:+.1f}')}, the budget is {self.limits.budget:g}"
        )


def pick_survivors(scores: Sequence[CandidateScore], count: int) -> list[Candidate]:
    """Return so many of the best, in turn from each family.

    After few rounds families are not comparable: a budget has hardly begun to work. Candidates that
    did exactly what a better one did come last.
    """
    seen: set[tuple[object, ...]] = set()
    turns: list[tuple[bool, int, CandidateScore]] = []
    places: dict[str, int] = {}
    for each in scores:
        did = (each.moved, each.mean, tuple((each.clients or {}).values()))
        is_copy, name = did in seen, each.candidate.family.name
        seen.add(did)
        if not is_copy:
            places[name] = places.get(name, -1) + 1
        turns.append((is_copy, places.get(name, 0), each))
    ordered = sorted(turns, key=lambda turn: turn[:2])
    return [each.candidate for _, _, each in ordered[:count]]


def compare_settings(settings: TuneSettings, rounds: int) -> CompareSettings:
    """Return settings of a comparison with so many rounds, evaluated at its end."""
    training = settings.training.model_copy(update={"rounds": rounds, "eval_every": rounds})
    return CompareSettings(
        federation=settings.federation,
        training=training,
        seeds=settings.seeds,
        jobs=settings.jobs,
        methods=["fedavg"],
    )
