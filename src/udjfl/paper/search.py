"""A search over the parameters of the paper's appendix that does not use test data.

Every candidate trains on four fifths of each client's train part and is scored on the fifth that
was held out of it; the global accuracy is on the clean examples among those. The best candidate by
the metric of its theory, on the mean over seeds, is then trained on whole train parts and tested.
The paper does not say on what data it chose.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from udjfl.data import Federation, load
from udjfl.methods import UDJ, Method, method
from udjfl.paper.profiles import PROFILES, Profile, profile_data
from udjfl.paper.run import compare_methods, find_row, paper_partition, prefix_progress
from udjfl.settings import ReproduceSettings
from udjfl.simulation.comparison import Comparison
from udjfl.simulation.method_summary import MethodSummary
from udjfl.statistics import Summary, metric_of
from udjfl.training.records import OnProgress

LEARNING_RATES = (0.1, 0.01, 0.001)


@dataclass(frozen=True)
class SearchRange:
    """The values of a parameter to try for one method in one section of the table."""

    theory: str
    title: str
    parameter: str
    methods: tuple[Method, ...]
    values: tuple[float, ...]


@dataclass(frozen=True)
class Candidate:
    """One value at one learning rate. `score` is the theory's metric on the held-out examples."""

    lr: float
    value: float
    method: Method
    score: Summary


@dataclass(frozen=True)
class SearchOutcome:
    """A range, its candidates, the best of them and its test; None if nothing could be scored."""

    range: SearchRange
    candidates: tuple[Candidate, ...]
    chosen: Candidate | None
    tested: MethodSummary | None

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for `--json`."""
        name, chosen, tested = self.range.parameter, self.chosen, self.tested
        return {
            "theory": self.range.theory,
            "method": self.range.title,
            "metric": metric_of(self.range.theory).key,
            "tried": [
                {"lr": one.lr, name: one.value, **asdict(one.score)} for one in self.candidates
            ],
            "chosen": None if chosen is None else {"lr": chosen.lr, name: chosen.value},
            "test": None
            if tested is None
            else {key: asdict(value) for key, value in tested.metrics.items()},
        }


@dataclass(frozen=True)
class Search:
    """A search over all ranges."""

    data: str
    profile: str
    seeds: tuple[int, ...]
    rounds: int
    outcomes: tuple[SearchOutcome, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for `--json`."""
        return {
            "data": self.data,
            "profile": self.profile,
            "seeds": list(self.seeds),
            "rounds": self.rounds,
            "found": [outcome.as_dict() for outcome in self.outcomes],
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


def search_parameters(
    settings: ReproduceSettings, out: Path | None = None, progress: OnProgress | None = None
) -> Search:
    """Choose parameters on held-out train data, then test the chosen ones."""
    ranges = search_ranges(PROFILES[settings.profile])
    methods = list(dict.fromkeys(method for each in ranges for method in each.methods))
    by_lr = {lr: _train(settings, methods, lr, out, progress, tuning=True) for lr in LEARNING_RATES}
    candidates = [_candidates(each, by_lr) for each in ranges]
    chosen = [_best(each.theory, tried) for each, tried in zip(ranges, candidates, strict=True)]
    best_by_lr = {
        lr: list(dict.fromkeys(best.method for best in chosen if best and best.lr == lr))
        for lr in LEARNING_RATES
    }
    tests = {
        lr: _train(settings, methods, lr, out, progress, tuning=False)
        for lr, methods in best_by_lr.items()
        if methods
    }
    outcomes = tuple(
        SearchOutcome(each, tried, best, find_row(tests[best.lr], best.method) if best else None)
        for each, tried, best in zip(ranges, candidates, chosen, strict=True)
    )
    data = by_lr[LEARNING_RATES[0]].data
    return Search(data, settings.profile, tuple(settings.seeds), settings.rounds, outcomes)


def _train(
    settings: ReproduceSettings,
    methods: Sequence[Method],
    lr: float,
    out: Path | None,
    progress: OnProgress | None,
    *,
    tuning: bool,
) -> Comparison:
    return compare_methods(
        settings,
        methods,
        None if out is None else out / f"{'validation' if tuning else 'test'}-lr-{lr}",
        prefix_progress(progress, f"learning rate {lr:g}" if tuning else f"test at {lr:g}"),
        changes={"lr": lr},
        load_seed=partial(
            _load_federation,
            profile_data(settings),
            paper_partition(settings),
            settings.data_root,
            tuning,
        ),
    )


def _load_federation(
    data: str, partition: str | None, root: str | None, tuning: bool, seed: int
) -> Federation:
    return load(data, None, partition, seed, root, tuning=tuning)


def _candidates(searched: SearchRange, by_lr: Mapping[float, Comparison]) -> tuple[Candidate, ...]:
    key = metric_of(searched.theory).key
    return tuple(
        Candidate(lr, value, method, find_row(comparison, method).metrics[key])
        for lr, comparison in by_lr.items()
        for method, value in zip(searched.methods, searched.values, strict=True)
    )


def _best(theory: str, candidates: Sequence[Candidate]) -> Candidate | None:
    """Return the candidate with the best mean; None if none has a value on every seed.

    Of equals the first is taken: the larger learning rate, then the smaller value.
    """
    complete = [
        candidate
        for candidate in candidates
        if candidate.score.mean is not None and None not in candidate.score.values
    ]
    better = metric_of(theory).better
    return max(complete, key=lambda candidate: better * (candidate.score.mean or 0.0), default=None)
