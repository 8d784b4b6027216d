"""The choice of a point for a theory: halving on held-out data, test data once at the end.

A fifth of each client's train part is held out, and no test part is there. Candidates train for a
ninth of the rounds, beside FedAvg and the theory's defaults on the same splits and batches; the
best third of them for a third of the rounds, the best third of those for all. Where the data are
small, all candidates of such a rung train together. The best within the limits is chosen, its
neighbours are trained to show how much depends on it, and only then does anything see test data.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from udjfl._files import inner_folder
from udjfl.data import Federation
from udjfl.errors import SettingsError, StorageError, did_you_mean
from udjfl.methods import Method
from udjfl.methods import method as build_method
from udjfl.models import ModelChoice
from udjfl.search.folder import open_folder, open_to_read
from udjfl.search.halving import Halving, HalvingPlan, Rung, compare_settings
from udjfl.search.progress import SearchProgress, say_rounds
from udjfl.search.scoring import CandidateScore, SearchLimits, choose
from udjfl.search.settings import TuneSettings
from udjfl.search.spaces import Candidate, find_space
from udjfl.search.stored import StoredChoice, check_stored
from udjfl.settings import DataSettings
from udjfl.simulation.compare import run_comparison, with_reference
from udjfl.simulation.comparison import Comparison
from udjfl.simulation.simulate import DataChoice, load_and_warn, load_federation
from udjfl.tasks import ACCURACY, ScoreKind
from udjfl.training.file_names import find_advice
from udjfl.training.folder_check import refuse_damage
from udjfl.training.records import OnProgress
from udjfl.training.resuming import advise_to_resume
from udjfl.training.run_folder import RunFolder
from udjfl.uncertainty import Uncertainty
from udjfl.uncertainty.alone import task_of

CHOICE, TEST = "choice.json", "test"  # in the folder of a search


@dataclass(frozen=True)
class HeldOutChoice:
    """A choice on held-out data, and the way to it.

    method      the method whose parameters were searched
    default     the score of the method as it is by default; `default_names` has also that with the
                budget
    neighbours  of the chosen point, trained for all rounds
    cost        trainings for each seed, in whole ones; `grid_cost` of a plain grid of as many
                candidates, each trained for all rounds
    score       what is judged: gains are in the unit of its gains
    """

    method: Method
    theory: str
    limits: SearchLimits
    rungs: tuple[Rung, ...]
    chosen: CandidateScore
    default: CandidateScore
    neighbours: tuple[CandidateScore, ...]
    default_names: tuple[str, ...]
    cost: float
    grid_cost: float
    score: ScoreKind = ACCURACY

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return {
            "method": self.method.label,
            "theory": self.theory,
            "budget": self.limits.budget,
            "floor": dict(self.limits.floors),
            "chosen": self.chosen.as_dict(),
            "default": self.default.as_dict(),
            "neighbours": [each.as_dict() for each in self.neighbours],
            "rungs": [
                {"rounds": rung.rounds, "scores": [each.as_dict() for each in rung.scores]}
                for rung in self.rungs
            ],
            "defaults": list(self.default_names),
            "cost": self.cost,
            "grid_cost": self.grid_cost,
            **({} if self.score == ACCURACY else {"score": self.score.as_dict()}),
        }

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> HeldOutChoice:
        """Read the choice that a search left in its folder."""
        opened = open_to_read(folder)
        kept = opened.read_json(CHOICE)
        if kept is None:
            raise StorageError(
                f"{folder} has no {CHOICE}: the search is not finished; "
                f"{advise_to_resume(Path(folder))} continues it"
            )
        refuse_damage(opened)
        try:
            found = check_stored(StoredChoice, kept)
            default = CandidateScore.restore(found.default)
            return cls(
                default.candidate.method,
                found.theory,
                SearchLimits(found.budget, found.floor),
                tuple(
                    Rung(rung.rounds, tuple(map(CandidateScore.restore, rung.scores)))
                    for rung in found.rungs
                ),
                CandidateScore.restore(found.chosen),
                default,
                tuple(map(CandidateScore.restore, found.neighbours)),
                tuple(found.defaults) or (default.candidate.name,),
                found.cost,
                found.grid_cost,
                ACCURACY if found.score is None else ScoreKind.from_dict(found.score),
            )
        except (ValueError, TypeError, SettingsError) as error:
            path = opened.path / CHOICE
            raise StorageError(f"{path} is damaged ({error}); {find_advice(CHOICE)}") from None


@dataclass(frozen=True)
class Tuned:
    """A choice, and the comparison on test data that followed it."""

    choice: HeldOutChoice
    test: Comparison

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return {**self.choice.as_dict(), "test": self.test.as_dict()}


@dataclass(frozen=True)
class HeldOutData:
    """The federation of a seed without its test parts; it can be sent to other processes."""

    data: DataChoice
    settings: DataSettings

    def __call__(self, seed: int) -> Federation:
        """Load the federation of a seed."""
        return load_federation(self.data, self.settings, seed, tuning=True)


def tune(
    settings: TuneSettings,
    method: Method | None = None,
    *,
    data: DataChoice | None = None,
    model: ModelChoice | None = None,
    out: str | os.PathLike[str] | None = None,
    on_progress: OnProgress | None = None,
) -> Tuned:
    """Choose the best point for a theory, then test it beside the defaults and FedAvg.

    `method` is the one to search, by default UDJ-FL. `data` and `model` replace those that the
    settings name. With a folder, a search that was stopped goes on there.
    """
    rounds, defaults = settings.training.rounds, find_defaults(settings, method)
    title = f"test, {say_rounds(rounds)}"
    progress = SearchProgress(on_progress)
    progress.expect({title: len(settings.seeds) * (2 + len(defaults)) * rounds})
    chosen = settings.federation.data if data is None else data
    first = None
    if isinstance(chosen, str):  # its problems are told before the search, which takes long
        first = load_and_warn(chosen, settings.federation, settings.seeds[0])
    choice = choose_point(settings, method, data=data, model=model, out=out, on_progress=progress)
    methods = [choice.default.candidate.method, choice.chosen.candidate.method]
    # The theory with the budget is the fair rival: both promise the same.
    methods = with_reference([*methods, *(each.method for each in defaults)])
    folder = None if out is None else inner_folder(Path(out), TEST)
    runs = dict.fromkeys(settings.seeds, len(methods))
    test = run_comparison(
        compare_settings(settings, rounds),
        methods,
        data=data,
        model=model,
        out=folder,
        resume=folder is not None and RunFolder(folder).holds_a_run,
        on_progress=progress.begin(title, runs, rounds),
        first=first,
    )
    # The limit is the one that was asked for, whatever budget the chosen rule has.
    return Tuned(choice, replace(test, margin=settings.budget, margin_for_all=True))


def choose_point(
    settings: TuneSettings,
    method: Method | None = None,
    *,
    data: DataChoice | None = None,
    model: ModelChoice | None = None,
    out: str | os.PathLike[str] | None = None,
    on_progress: OnProgress | SearchProgress | None = None,
    strict: bool = True,
    uncertainties: dict[int, Uncertainty] | None = None,
) -> HeldOutChoice:
    """Choose as `tune` does, without the test.

    If no point keeps the limits, that is an error, or, unless `strict`, the nearest is chosen.
    `uncertainties` are those of the held-out data of some seeds; what is measured is added. So
    several searches on the same seeds, data and training measure them once.
    """
    rule = build_method(settings.theory) if method is None else method
    families, defaults = find_space(rule, settings.theory, settings.budget)
    if not families:
        raise SettingsError(f"methods: {rule.label} has no parameters to search")
    plan = HalvingPlan.make(settings, families, defaults)
    held_out = HeldOutData(settings.federation.data if data is None else data, settings.federation)
    first = held_out(settings.seeds[0])
    _check_floors(settings.floor, first.ids, task_of(first, settings.training).score.kind)
    flat = {**settings.to_flat(), "searched": rule.label}
    from_python = data is not None or model is not None
    folder = None if out is None else open_folder(out, "tune", flat, first.fingerprint, from_python)
    try:
        search = Halving(
            settings,
            plan,
            held_out,
            first,
            model,
            folder,
            on_progress,
            known={} if uncertainties is None else uncertainties,
            is_own=callable(data) or callable(model),
        )
        choice = _run_search(search, rule, strict)
        if folder:
            folder.write_json(CHOICE, choice.as_dict())
    finally:
        if folder:
            folder.unlock()
    return choice


def find_defaults(settings: TuneSettings, method: Method | None) -> list[Candidate]:
    """Return the method as it is by default; of UDJ-FL also with the budget."""
    rule = build_method(settings.theory) if method is None else method
    return find_space(rule, settings.theory, settings.budget)[1]


def _run_search(search: Halving, method: Method, strict: bool) -> HeldOutChoice:
    """Run all rungs, choose, and train the neighbours of the chosen point."""
    plan, rungs = search.plan, search.run()
    final = rungs[-1].scores
    if strict or all(each.failed for each in final):
        search.check_limits(rungs)
    names = tuple(candidate.name for candidate in plan.defaults)
    chosen = choose(final, names[::-1])
    neighbours = search.score_neighbours(chosen.candidate)
    return HeldOutChoice(
        method,
        search.settings.theory,
        search.limits,
        tuple(rungs),
        chosen,
        next(each for each in final if each.candidate.name == names[0]),
        tuple(neighbours),
        names,
        cost=search.cost,
        grid_cost=float(1 + len(names) + plan.counts[0] + len(neighbours)),
        score=search.judged,
    )


def _check_floors(floors: Mapping[str, float], ids: Sequence[str], score: ScoreKind) -> None:
    mistakes = [
        f"floor: of client {client!r} is {floor:g}, which is no {score.title}"
        for client, floor in floors.items()
        if score.clip(floor) != floor
    ]
    mistakes += [
        f"floor: there is no client {client!r}.{did_you_mean(client, ids)}"
        for client in floors
        if client not in ids
    ]
    if mistakes:
        raise SettingsError(mistakes)
