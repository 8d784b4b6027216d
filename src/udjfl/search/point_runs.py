"""Train many points, methods with their parameters, on the same splits and batches.

Points and seeds are trained together, as many at a time as are faster so: a program.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from udjfl._threads import available_cores
from udjfl.data import Federation
from udjfl.engine import one_thread
from udjfl.methods import FedAvg, Method
from udjfl.models import ModelChoice, to_vector
from udjfl.search.run_table import Key, PointRun, RunTable
from udjfl.settings import CompareSettings, TrainingSettings
from udjfl.simulation.prepare import prepare_methods
from udjfl.simulation.programs import (
    ProgramTask,
    folder_name,
    run_tasks,
    seeds_per_program,
    share_seeds,
)
from udjfl.simulation.simulate import DataChoice, load_federation
from udjfl.training.federation_info import FederationInfo
from udjfl.training.records import OnProgress, Progress
from udjfl.training.result import FinishedRun
from udjfl.uncertainty import Uncertainty

# A program has at most so many runs, and so many multiplications by weights: a stopped search loses
# no more than that, and with more at a time it would not be faster.
MOST_RUNS = 128
MOST_WORK = 1e12


def point_name(method: Method) -> str:
    """Return the name of a point in tables and files."""
    return folder_name(method)


@dataclass(frozen=True)
class FinishedRuns:
    """Runs that a program has finished, to be kept by the process that waits for it."""

    runs: Mapping[Key, PointRun]


@dataclass(frozen=True)
class PointsTask:
    """Batches of methods on some seeds, one program each. Sends `FinishedRuns` after each.

    A client's uncertainty is measured by the first program of a seed and given to the others.
    """

    program: ProgramTask
    batches: tuple[tuple[Method, ...], ...]

    def __call__(self, send: Callable[[Any], None]) -> None:
        """Train all batches."""
        program = self.program
        if len(self.batches) > 1 and program.first is None:
            federation = program.settings.federation
            with one_thread():
                first = load_federation(program.data, federation, program.seeds[0])
            program = replace(program, first=first)
        for batch in self.batches:
            methods = (FedAvg(), *batch)
            results = replace(program, methods=methods)(send)
            known = dict(program.uncertainty_of)
            runs = {}
            for seed, own in zip(program.seeds, results, strict=True):
                for method, run in zip(methods, own, strict=True):
                    runs[point_name(method), seed] = PointRun.of(run)
                known |= _measured(seed, own[0])
            send(FinishedRuns(runs))
            program = replace(program, uncertainty_of=known)


def _measured(seed: int, run: FinishedRun | str) -> dict[int, Uncertainty]:
    if isinstance(run, str) or not all(map(math.isfinite, run.uncertainty.values())):
        return {}
    return {seed: Uncertainty("given", dict(run.uncertainty))}


def run_points(
    settings: CompareSettings,
    methods: Sequence[Method],
    table: RunTable,
    first: Federation,
    *,
    data: DataChoice | None = None,
    model: ModelChoice | None = None,
    uncertainties: Mapping[int, Uncertainty] | None = None,
    on_progress: OnProgress | None = None,
    is_own: bool | None = None,
) -> None:
    """Train every method, and FedAvg, on every seed, unless the table has the run.

    `first` is the federation of the first seed. `data` and `model` replace those that the settings
    name; `uncertainties` of some seeds are known already. `is_own` tells that data or model are
    functions of the caller's own, by default that they are functions at all.
    """
    data = settings.federation.data if data is None else data
    jobs = min(settings.jobs or available_cores(), len(settings.seeds))
    training = settings.training
    workers = training.workers or max(1, available_cores() // jobs)
    with one_thread():  # a mistake shows before anything is trained
        info, every = FederationInfo.of(first), [FedAvg(), *methods]
        module = prepare_methods(info, every, training, settings.seeds[0], model).base_model
    program = ProgramTask(
        data,
        model,
        settings.model_copy(update={"training": training.model_copy(update={"workers": workers})}),
        (FedAvg(),),
        first.ids,
        None,
        None,
        uncertainty_of=uncertainties or {},
        events="none" if on_progress is None else "bare",
    )
    tasks = [
        PointsTask(replace(program, seeds=seeds), batches)
        for missing, own in _group_by_missing(settings.seeds, methods, table)
        for seeds, batches in _cut_programs(first, module, training, own, missing, jobs)
    ]
    if jobs == 1 and tasks and tasks[0].program.seeds[0] == settings.seeds[0]:
        tasks[0] = replace(tasks[0], program=replace(tasks[0].program, first=first))

    def receive(event: Progress | FinishedRuns) -> None:
        if isinstance(event, FinishedRuns):
            table.add(event.runs)
        elif on_progress:
            on_progress(event)

    is_own = callable(data) or callable(model) if is_own is None else is_own
    run_tasks(tasks, jobs, receive, is_own)


def count_missing(
    seeds: Sequence[int], methods: Sequence[Method], table: RunTable
) -> dict[int, int]:
    """Return how many runs of each seed `run_points` trains: FedAvg is among them."""
    groups = _group_by_missing(seeds, methods, table)
    return {seed: len(missing) + 1 for missing, own in groups for seed in own}


def _group_by_missing(
    seeds: Sequence[int], methods: Sequence[Method], table: RunTable
) -> list[tuple[tuple[Method, ...], list[int]]]:
    """Return sets of methods that are not in the table, with the seeds that lack just these."""
    groups: dict[tuple[Method, ...], list[int]] = {}
    for seed in seeds:
        others = (m for m in methods if m != FedAvg())
        missing = tuple(m for m in others if (point_name(m), seed) not in table.runs)
        if missing or (point_name(FedAvg()), seed) not in table.runs:
            groups.setdefault(missing, []).append(seed)
    return list(groups.items())


def _cut_programs(
    first: Federation,
    module: nn.Module,
    training: TrainingSettings,
    seeds: Sequence[int],
    methods: tuple[Method, ...],
    jobs: int,
) -> list[tuple[tuple[int, ...], tuple[tuple[Method, ...], ...]]]:
    """Return programs: seeds, and batches of methods for them."""
    most = runs_per_program(first, module, training)
    together = min(
        most // (len(methods) + 1),
        seeds_per_program(first, module, training, len(methods) + 1, has_folders=False),
    )
    if together >= 1:
        return [(own, (methods,)) for own in share_seeds(seeds, jobs, together)]
    size = max(1, most - 1)  # FedAvg is in each
    batches = tuple(methods[start : start + size] for start in range(0, len(methods), size))
    return [((seed,), batches) for seed in seeds]


def runs_per_program(federation: Federation, module: nn.Module, training: TrainingSettings) -> int:
    """Return how many runs, methods times seeds, one program has at most."""
    examples = sum(federation.sizes) * training.local_epochs * training.rounds
    return max(1, min(MOST_RUNS, int(MOST_WORK // (examples * len(to_vector(module))))))
