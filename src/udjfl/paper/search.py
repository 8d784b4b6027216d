"""Searching the parameters that the paper's appendix searched, without a look at test data.

Every candidate trains on four fifths of each client's train part and is scored on the fifth that was held out of it; the
global measure is taken on the clean ones among those. The best by the measure of its theory, on the mean over seeds, is then
trained on whole train parts and tested. The paper does not say on what data it chose.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from udjfl.data import Federation, load
from udjfl.methods import UDJ, Method, method
from udjfl.paper.profiles import PROFILES, Profile, data_of, given_uncertainties, training_settings
from udjfl.paper.run import ReproduceProgress, part_of, partition_of, told
from udjfl.settings import CompareSettings, ReproduceSettings
from udjfl.simulation.compare import Comparison, MethodSummary, compare
from udjfl.statistics import Summary, metric_of
from udjfl.training.run_folder import RunFolder

LEARNING_RATES = (0.1, 0.01, 0.001)


@dataclass(frozen=True)
class Range:
    """What is searched for one method in one section of the table: the values of a parameter, as the appendix lists them."""

    theory: str
    title: str
    parameter: str
    candidates: tuple[Method, ...]
    values: tuple[float, ...]


@dataclass(frozen=True)
class Candidate:
    """One point of a range at one learning rate: the theory's measure on what was held out of the train parts."""

    lr: float
    value: float
    method: Method
    score: Summary


@dataclass(frozen=True)
class Found:
    """A range, everything tried, the best of it, and how that does on test data. None where nothing could be scored."""

    range: Range
    tried: tuple[Candidate, ...]
    chosen: Candidate | None
    tested: MethodSummary | None


@dataclass(frozen=True)
class Search:
    """A search over all ranges."""

    data: str
    profile: str
    seeds: tuple[int, ...]
    rounds: int
    found: tuple[Found, ...]

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for `--json`."""
        about = {
            "data": self.data,
            "profile": self.profile,
            "seeds": list(self.seeds),
            "rounds": self.rounds,
        }
        return {**about, "found": [_as_dict(found) for found in self.found]}


def ranges(profile: Profile) -> list[Range]:
    """The ranges of the paper's appendix; for UDJ-FL those its text suggests (it lists none)."""

    def of(theory: str, name: str, parameter: str, values: Sequence[float], **fixed: Any) -> Range:
        made = tuple(method(name, **{parameter: value}, **fixed) for value in values)
        return Range(theory, made[0].title, parameter, made, tuple(values))

    def udj(theory: Any, values: Sequence[float]) -> Range:
        # At beta = 0 the authors' step divides by zero.
        steps = [
            "normalised" if profile.step == "authors" and value == 0 else profile.step
            for value in values
        ]
        made = tuple(
            UDJ(theory=theory, beta=value, step=step)
            for value, step in zip(values, steps, strict=True)
        )
        return Range(theory, made[0].title, "beta", made, tuple(values))

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


def search(
    settings: ReproduceSettings, out: Path | None = None, progress: ReproduceProgress | None = None
) -> Search:
    """Choose on held-out train data, then test what was chosen."""
    wanted = ranges(PROFILES[settings.profile])
    every = list(dict.fromkeys(candidate for one in wanted for candidate in one.candidates))
    scored = {
        lr: _trained(settings, every, lr, out, progress, tuning=True) for lr in LEARNING_RATES
    }
    chosen = {place: _best(one, _tried(one, scored)) for place, one in enumerate(wanted)}
    tested: dict[float, Comparison] = {}
    for lr in LEARNING_RATES:
        methods = list(
            dict.fromkeys(
                best.method for best in chosen.values() if best is not None and best.lr == lr
            )
        )
        if methods:
            tested[lr] = _trained(settings, methods, lr, out, progress, tuning=False)
    found = []
    for place, one in enumerate(wanted):
        best = chosen[place]
        row = None if best is None else _row(tested[best.lr], best.method)
        found.append(Found(one, tuple(_tried(one, scored)), best, row))
    return Search(
        next(iter(scored.values())).data,
        settings.profile,
        tuple(settings.seeds),
        settings.rounds,
        tuple(found),
    )


def _trained(
    settings: ReproduceSettings,
    methods: Sequence[Method],
    lr: float,
    out: Path | None,
    progress: ReproduceProgress | None,
    *,
    tuning: bool,
) -> Comparison:
    folder = None if out is None else out / f"{'validation' if tuning else 'test'}-lr-{lr}"
    make = partial(
        _federation, data_of(settings), partition_of(settings), settings.data_root, tuning
    )
    chosen = training_settings(settings, lr=lr).model_dump()
    progress = part_of(progress, f"learning rate {lr:g}" if tuning else f"test at {lr:g}")
    return compare(
        CompareSettings(**chosen, seeds=settings.seeds, jobs=settings.jobs),
        federation=make,
        methods=methods,
        uncertainty=given_uncertainties(settings),
        out=folder,
        resume=folder is not None and RunFolder(folder).holds_a_run,
        progress=told(progress),
    )


def _federation(
    data: str, partition: str | None, root: str | None, tuning: bool, seed: int
) -> Federation:
    return load(data, None, partition, seed, root, tuning=tuning)


def _row(comparison: Comparison, of: Method) -> MethodSummary:
    return next(row for row in comparison.rows if row.method == of)


def _tried(one: Range, scored: Mapping[float, Comparison]) -> list[Candidate]:
    key = metric_of(one.theory).key
    return [
        Candidate(lr, value, candidate, _row(comparison, candidate).metrics[key])
        for lr, comparison in scored.items()
        for candidate, value in zip(one.candidates, one.values, strict=True)
    ]


def _best(one: Range, tried: Sequence[Candidate]) -> Candidate | None:
    """The best mean over all seeds; of equals the first, so that a larger learning rate and a smaller value win."""
    whole = [
        candidate
        for candidate in tried
        if candidate.score.mean is not None and None not in candidate.score.values
    ]
    better = metric_of(one.theory).better
    return max(whole, key=lambda candidate: better * (candidate.score.mean or 0.0), default=None)


def _as_dict(found: Found) -> dict[str, Any]:
    key = metric_of(found.range.theory).key

    def plain(score: Summary) -> dict[str, Any]:
        return {
            "mean": score.mean,
            "ci95": None if score.ci95 is None else list(score.ci95),
            "values": list(score.values),
        }

    chosen, name = found.chosen, found.range.parameter
    return {
        "theory": found.range.theory,
        "method": found.range.title,
        "metric": key,
        "tried": [{"lr": one.lr, name: one.value, **plain(one.score)} for one in found.tried],
        "chosen": None if chosen is None else {"lr": chosen.lr, name: chosen.value},
        "test": None
        if found.tested is None
        else {k: plain(value) for k, value in found.tested.metrics.items()},
    }
