"""Train methods on federations in this process: several methods, and several seeds, together."""

from __future__ import annotations

import contextlib
import copy
import functools
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from udjfl._threads import available_cores, thread_limit
from udjfl.data import Federation
from udjfl.engine import Demands, Engine, make_engine, make_engines, one_thread
from udjfl.errors import NotDefinedError, StorageError
from udjfl.methods import FedAvg, Method
from udjfl.models import ModelChoice
from udjfl.settings import TrainingSettings
from udjfl.simulation.local_clients import LocalClients
from udjfl.simulation.lockstep import FAILURES, Failure, MethodRun, run_lockstep
from udjfl.simulation.prepare import PreparedMethods, StartedMethod, prepare_methods
from udjfl.simulation.reference import scores_alone
from udjfl.training.federation_info import FederationInfo
from udjfl.training.finish import finish_run
from udjfl.training.judging import check_score
from udjfl.training.lifecycle import (
    RunLog,
    check_complete,
    describe_run,
    load_uncertainty,
    open_run_folder,
    save_uncertainty,
)
from udjfl.training.records import OnProgress, Progress
from udjfl.training.references import scores_by_round
from udjfl.training.result import Result
from udjfl.training.run_folder import RunFolder
from udjfl.training.server_state import initial_state
from udjfl.training.state import RunSpec
from udjfl.uncertainty import Uncertainty, measure_many


@dataclass(frozen=True)
class MethodTask:
    """One method of several that are trained together, and where its run is kept."""

    method: Method
    out: str | os.PathLike[str] | None = None
    on_progress: OnProgress | None = None


@dataclass(frozen=True)
class SeedTask:
    """Methods to train on the federation of one seed.

    uncertainty       of its clients, if it is known already
    reference         the client accuracies that psi is measured from
    reference_scores  FedAvg's scores by round, if they are known already
    resume            continue the runs that are in the methods' folders
    """

    federation: Federation
    seed: int
    methods: Sequence[MethodTask]
    uncertainty: Uncertainty | None = None
    reference: Mapping[str, float] | None = None
    reference_scores: Tensor | None = None
    resume: bool = False

    @property
    def needs_reference_run(self) -> bool:
        """True if FedAvg has to be trained before the other methods."""
        needed = any(
            task.method.needs_reference and not self.is_under_way(task) for task in self.methods
        )
        return needed and self.reference_scores is None

    def is_under_way(self, task: MethodTask) -> bool:
        """Tell if a run is resumed from a checkpoint: that has the reference in its state."""
        has_folder = self.resume and task.out is not None
        return has_folder and RunFolder(Path(task.out or "")).has_checkpoint


def run_seeds(
    tasks: Sequence[SeedTask],
    settings: TrainingSettings,
    *,
    model: ModelChoice | None = None,
    resume: bool = False,
    first_is_reference: bool = False,
) -> list[list[Result | Failure]]:
    """Train the methods of all seeds in lockstep; each gets the numbers it gets alone.

    A method whose training fails, or that is not defined for its federation, has its error in
    place of a result. With `first_is_reference` the first method of each seed is the reference of
    the others.
    """
    workers = settings.workers or available_cores()
    with one_thread(), thread_limit(workers), contextlib.ExitStack() as stack:
        whole = [_complete(replace(task, resume=resume), settings) for task in tasks]
        seeds = _prepare_seeds(whole, settings, model)
        # From here on nothing the caller chose can be wrong: only now is anything written.
        for seed, engine in zip(seeds, _make_engines(seeds, settings, stack), strict=True):
            seed.open(engine, resume, stack)
        _measure_uncertainties(seeds, settings, model)
        if any(seed.task.needs_reference_run for seed in seeds):
            run_lockstep([m for seed in seeds for m in seed.start_reference(stack)])
        run_lockstep([m for seed in seeds for m in seed.start_others(stack)])
        counts = [len(task.methods) for task in tasks]
        return [
            _finish(seed.runs[:count], seed.task.reference, first_is_reference)
            for seed, count in zip(seeds, counts, strict=True)
        ]


def _complete(task: SeedTask, settings: TrainingSettings) -> SeedTask:
    """Hold examples out as the settings say, and add FedAvg, last, if it is needed but missing."""
    task = replace(task, federation=task.federation.hold_out(settings.holdout, task.seed))
    if not task.needs_reference_run or any(m.method == FedAvg() for m in task.methods):
        return task
    first = task.methods[0]
    return replace(task, methods=[*task.methods, MethodTask(FedAvg(), None, first.on_progress)])


def _prepare_seeds(
    tasks: Sequence[SeedTask], settings: TrainingSettings, model: ModelChoice | None
) -> list[_Seed]:
    seeds = []
    for task in tasks:
        info = FederationInfo.of(task.federation)
        check_score(task.federation, settings)
        if task.uncertainty is not None:
            check_complete(task.uncertainty, info.ids)
        methods = [m.method for m in task.methods]
        prepared = prepare_methods(info, methods, settings, task.seed, model)
        seeds.append(_Seed(task, prepared, settings, model))
    return seeds


def _make_engines(
    seeds: Sequence[_Seed], settings: TrainingSettings, stack: contextlib.ExitStack
) -> list[Engine]:
    """Return an engine for each seed's federation, all of them parts of one if that is possible."""
    modules = [seed.prepared.base_model for seed in seeds]
    clients = [seed.task.federation.clients for seed in seeds]
    demands = seeds[0].demands
    engines = make_engines(
        modules, clients, settings.engine, settings.device, settings.workers, demands
    )
    for engine in engines:
        stack.callback(engine.close)
    return engines


class _Seed:
    """The methods of one seed: prepared, then opened, then started where they are.

    `runs` has each method's run, or why it has none, once it is started.
    """

    def __init__(
        self,
        task: SeedTask,
        prepared: PreparedMethods,
        settings: TrainingSettings,
        model: ModelChoice | None,
    ) -> None:
        self.task, self.prepared, self.settings, self.model = task, prepared, settings, model
        self.started: dict[int, MethodRun | Failure] = {}
        self.uncertainty = task.uncertainty
        self.reference_failure: Failure | None = None

    @property
    def demands(self) -> Demands:
        """Demands on the engine, the same for all methods."""
        spec = RunSpec(self.task.methods[0].method, self.settings, self.task.seed, self.model)
        return spec.demands(FederationInfo.of(self.task.federation))

    @property
    def runs(self) -> list[MethodRun | Failure]:
        return [self.started[number] for number in range(len(self.task.methods))]

    def open(self, engine: Engine, resume: bool, stack: contextlib.ExitStack) -> None:
        """Open the run folders."""
        self.engine = engine
        self.folders = _open_folders(self.task, self.prepared.starts, resume, stack)

    def find_uncertainty(self) -> Uncertainty | None:
        """Return the uncertainties if they are given, or kept in one of the run folders."""
        for folder in self.folders:
            if self.uncertainty is None and folder is not None:
                self.uncertainty = load_uncertainty(folder, self.task.federation.ids)
        return self.uncertainty

    def _uncertainty_of(self, folder: RunFolder | None) -> Uncertainty:
        """Return the uncertainties for a run: those in its folder, or else they go there."""
        kept = load_uncertainty(folder, self.task.federation.ids) if folder else None
        if kept is not None:
            return kept
        assert self.uncertainty is not None, "it was measured"
        if folder:
            save_uncertainty(folder, self.uncertainty)
        return self.uncertainty

    def start_reference(self, stack: contextlib.ExitStack) -> list[MethodRun]:
        """Start FedAvg alone, where the others need its scores."""
        if not self.task.needs_reference_run:
            return []
        methods = [task.method for task in self.task.methods]
        self.reference = methods.index(FedAvg())
        return self._start([self.reference], None, stack)

    def start_others(self, stack: contextlib.ExitStack) -> list[MethodRun]:
        """Start every method that is not started yet."""
        scores = self.task.reference_scores
        if self.task.needs_reference_run:
            reference = self.started[self.reference]
            failure = reference.failure if isinstance(reference, MethodRun) else reference
            self.reference_failure = failure
            if isinstance(reference, MethodRun) and failure is None:
                scores = scores_by_round(reference.log.history(), self.task.federation.ids)
        left = [n for n in range(len(self.task.methods)) if n not in self.started]
        return self._start(left, scores, stack)

    def _start(
        self, numbers: Sequence[int], scores: Tensor | None, stack: contextlib.ExitStack
    ) -> list[MethodRun]:
        for number in numbers:
            start = self.prepared.starts[number]
            task = self.task.methods[number]
            method = task.method
            if method.needs_reference and scores is None and not self.task.is_under_way(task):
                why = "" if self.reference_failure is None else f": {self.reference_failure}"
                sentence = f"FedAvg, from which its budget is measured, did not finish{why}"
                start = NotDefinedError(f"{method.label}: {sentence}")
            self.started[number] = (
                start
                if isinstance(start, NotDefinedError)
                else self._start_one(number, start, scores, stack)
            )
        return [run for n in numbers if isinstance(run := self.started[n], MethodRun)]

    def _start_one(
        self, number: int, start: StartedMethod, scores: Tensor | None, stack: contextlib.ExitStack
    ) -> MethodRun:
        """Bring a method to the round in which it is."""
        settings, engine, federation = self.settings, self.engine, self.task.federation
        task, folder, method = self.task.methods[number], self.folders[number], start.run.method
        if start.module is not self.prepared.base_model:
            engine = make_engine(
                start.module,
                federation.clients,
                settings.engine,
                settings.device,
                settings.workers,
                self.demands,
            )
            stack.callback(engine.close)
        server = start.server
        measured_from = method.needs_reference or method.needs_alone
        if measured_from and not self.task.is_under_way(task):
            reference = scores if method.needs_reference else None
            alone = self._scores_alone if method.needs_alone else None
            _, known, _ = initial_state(start.run, self.prepared.base_model, reference, alone)
            # Engines overwrite the module: the model before round 1 is the one prepared then.
            server = replace(server, state=known.state)
        measured = self._uncertainty_of(folder)
        log = RunLog(settings, server, folder)
        clients = LocalClients(start.run, federation, engine, measured)
        return MethodRun(start.run, start.module, clients, log, start.notes, task.on_progress)

    @functools.cached_property
    def _scores_alone(self) -> Tensor:
        task = self.task
        return scores_alone(task.federation, self.engine, self.settings, task.seed, self.model)


def _open_folders(
    task: SeedTask,
    starts: Sequence[StartedMethod | NotDefinedError],
    resume: bool,
    stack: contextlib.ExitStack,
) -> list[RunFolder | None]:
    """Open the run folders of one seed's methods, None for a method without one."""
    return [
        None
        if isinstance(start, NotDefinedError) or method.out is None
        else _open_folder(task, start, method.out, resume, stack)
        for method, start in zip(task.methods, starts, strict=True)
    ]


def _open_folder(
    task: SeedTask,
    start: StartedMethod,
    out: str | os.PathLike[str],
    resume: bool,
    stack: contextlib.ExitStack,
) -> RunFolder:
    """Open a run folder, locked until the end, and check that its uncertainties are these."""
    federation, uncertainty = task.federation, task.uncertainty
    data: dict[str, Any] = {
        "name": federation.name,
        "fingerprint": federation.fingerprint,
        "clients": federation.describe(),
        **FederationInfo.of(federation).inputs.describe(),
    }
    origin = federation.origin
    if origin and origin["seed"] != start.run.seed:
        origin = None
    reference = task.reference_scores
    described = describe_run(start.run, start.module, data, origin, reference=reference)
    folder = open_run_folder(out, described, resume)
    stack.callback(folder.unlock)
    kept = load_uncertainty(folder, federation.ids)
    if kept and uncertainty and uncertainty.as_dict()["values"] != kept.as_dict()["values"]:
        raise StorageError(
            f"{folder.path} was started with other uncertainties; resume it with the same, or "
            "leave them out"
        )
    return folder


def _measure_uncertainties(
    seeds: Sequence[_Seed], settings: TrainingSettings, model: ModelChoice | None
) -> None:
    """Measure the uncertainties of all seeds for which they are neither given nor kept."""
    unknown = [seed for seed in seeds if seed.find_uncertainty() is None]
    if not unknown:
        return
    first = unknown[0].task
    on_progress, label = first.methods[0].on_progress, first.methods[0].method.label

    def report(done: int, total: int) -> None:
        if on_progress:
            on_progress(Progress(label, first.seed, "uncertainty", done, total))

    federations = [seed.task.federation for seed in unknown]
    numbers = [seed.task.seed for seed in unknown]
    measured = measure_many(federations, settings, numbers, model, report)
    for seed, uncertainty in zip(unknown, measured, strict=True):
        seed.uncertainty = uncertainty


def _finish(
    method_runs: Sequence[MethodRun | Failure],
    reference: Mapping[str, float] | None,
    first_is_reference: bool,
) -> list[Result | Failure]:
    results: list[Result | Failure] = []
    for m in method_runs:
        if not isinstance(m, MethodRun):
            results.append(m)
            continue
        if m.failure is not None:
            results.append(m.failure)
            continue
        if first_is_reference and results and isinstance(results[0], Result):
            reference = results[0].client_scores
        evaluation = m.evaluation or m.clients.evaluate(m.server)
        module = copy.deepcopy(m.module).cpu()  # it serves other methods too
        uncertainty = m.clients.uncertainty
        try:
            results.append(
                finish_run(m.run, module, m.log, evaluation, uncertainty, m.notes, reference)
            )
        except FAILURES as error:  # such as that of a score without a value for what was predicted
            results.append(error.with_traceback(None))
    return results
