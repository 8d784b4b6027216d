"""Train methods on federations in this process: several methods, and several seeds, together."""

from __future__ import annotations

import contextlib
import copy
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from torch import nn

from udjfl._threads import available_cores, thread_limit
from udjfl.data import Federation
from udjfl.engine import Engine, make_engine, make_engines, one_thread
from udjfl.errors import NotDefinedError, SettingsError, StorageError
from udjfl.methods import Method
from udjfl.models import ModelChoice
from udjfl.settings import TrainingSettings
from udjfl.simulation.local_clients import LocalClients
from udjfl.simulation.lockstep import Failure, MethodRun, run_lockstep
from udjfl.training.lifecycle import (
    RunLog,
    check_complete,
    describe_run,
    finish_run,
    load_uncertainty,
    open_run_folder,
)
from udjfl.training.records import OnProgress, Progress
from udjfl.training.result import Result
from udjfl.training.run_folder import RunFolder
from udjfl.training.state import FederationInfo, Run, RunSpec, ServerState, initial_state
from udjfl.uncertainty import Uncertainty, measure


@dataclass(frozen=True)
class MethodTask:
    """One method of several that are trained together, and where its run is kept."""

    method: Method
    out: str | os.PathLike[str] | None = None
    on_progress: OnProgress | None = None


@dataclass(frozen=True)
class SeedTask:
    """Methods to train on the federation of one seed.

    uncertainty  of its clients, if it is known already
    reference    the client accuracies that psi is measured from
    """

    federation: Federation
    seed: int
    methods: Sequence[MethodTask]
    uncertainty: Uncertainty | None = None
    reference: Mapping[str, float] | None = None


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
        prepared = [_prepare(task, settings, model) for task in tasks]
        engines = _make_engines(tasks, prepared, settings, stack)
        # From here on nothing the caller chose can be wrong: only now is anything written.
        folders = [
            _open_folders(task, methods.starts, resume, stack)
            for task, methods in zip(tasks, prepared, strict=True)
        ]
        runs = []
        for task, methods, engine, own in zip(tasks, prepared, engines, folders, strict=True):
            source = _UncertaintySource(task, engine, settings, model)
            runs.append(_start_runs(task, methods, engine, own, source, stack))
        run_lockstep([m for own in runs for m in own if isinstance(m, MethodRun)])
        return [
            _finish(own, task.reference, first_is_reference)
            for task, own in zip(tasks, runs, strict=True)
        ]


def _prepare(
    task: SeedTask, settings: TrainingSettings, model: ModelChoice | None
) -> PreparedMethods:
    info = FederationInfo.of(task.federation)
    if task.uncertainty is not None:
        check_complete(task.uncertainty, info.ids)
    return prepare_methods(info, [m.method for m in task.methods], settings, task.seed, model)


def _make_engines(
    tasks: Sequence[SeedTask],
    prepared: Sequence[PreparedMethods],
    settings: TrainingSettings,
    stack: contextlib.ExitStack,
) -> list[Engine]:
    """Return an engine for each seed's federation, all of them parts of one if that is possible."""
    modules = [methods.base_model for methods in prepared]
    clients = [task.federation.clients for task in tasks]
    engines = make_engines(modules, clients, settings.engine, settings.device, settings.workers)
    for engine in engines:
        stack.callback(engine.close)
    return engines


def _start_runs(
    task: SeedTask,
    prepared: PreparedMethods,
    engine: Engine,
    folders: Sequence[RunFolder | None],
    source: _UncertaintySource,
    stack: contextlib.ExitStack,
) -> list[MethodRun | Failure]:
    """Bring the methods of one seed to the round in which they are, or to why they have none."""
    method_runs: list[MethodRun | Failure] = []
    for method, start, folder in zip(task.methods, prepared.starts, folders, strict=True):
        if isinstance(start, NotDefinedError):
            method_runs.append(start)
            continue
        settings, own = start.run.settings, engine
        if start.module is not prepared.base_model:
            own = make_engine(
                start.module,
                task.federation.clients,
                settings.engine,
                settings.device,
                settings.workers,
            )
            stack.callback(own.close)
        measured = source.get(folder, method)
        log = RunLog(settings, start.server, folder)
        clients = LocalClients(start.run, task.federation, own, measured)
        run = MethodRun(start.run, start.module, clients, log, start.notes, method.on_progress)
        method_runs.append(run)
    return method_runs


@dataclass(frozen=True)
class StartedMethod:
    """A method before round 1: its run, its network, its server and its notes."""

    run: Run
    module: nn.Module
    server: ServerState
    notes: list[str]


@dataclass(frozen=True)
class PreparedMethods:
    """The model before any method adapted it, and each method's start or why it has none."""

    base_model: nn.Module
    starts: list[StartedMethod | NotDefinedError]


def prepare_methods(
    info: FederationInfo,
    methods: Sequence[Method],
    settings: TrainingSettings,
    seed: int,
    model: ModelChoice | None,
) -> PreparedMethods:
    """Bring methods to the beginning of round 1. Mistakes in all of them are reported at once."""
    starts: list[StartedMethod | NotDefinedError] = []
    mistakes: list[str] = []
    base_model: nn.Module | None = None
    for method in methods:
        spec = RunSpec(method, settings, seed, model)
        base_model = spec.build_model(info) if base_model is None else base_model
        try:
            run = Run(spec, info)
            starts.append(StartedMethod(run, *initial_state(run, base_model)))
        except NotDefinedError as error:
            starts.append(error)
        except SettingsError as error:
            # A wrong setting shows in every method.
            mistakes += [mistake for mistake in error.mistakes if mistake not in mistakes]
    if mistakes:
        raise SettingsError(mistakes)
    assert base_model is not None, "there is a method"
    return PreparedMethods(base_model, starts)


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
    data = {
        "name": federation.name,
        "fingerprint": federation.fingerprint,
        "clients": federation.describe(),
    }
    origin = federation.origin
    if origin and origin["seed"] != start.run.seed:
        origin = None
    folder = open_run_folder(out, describe_run(start.run, start.module, data, origin), resume)
    stack.callback(folder.unlock)
    kept = load_uncertainty(folder, federation.ids)
    if kept and uncertainty and uncertainty.as_dict()["values"] != kept.as_dict()["values"]:
        raise StorageError(
            f"{folder.path} was started with other uncertainties; resume it with the same, or "
            "leave them out"
        )
    return folder


class _UncertaintySource:
    """The uncertainties of a federation: given, read from a run folder, or measured once."""

    def __init__(
        self,
        task: SeedTask,
        engine: Engine,
        settings: TrainingSettings,
        model: ModelChoice | None,
    ) -> None:
        self.arguments = (task.federation, engine, settings, task.seed, model)
        self.ids, self.seed, self.shared = task.federation.ids, task.seed, task.uncertainty

    def get(self, folder: RunFolder | None, task: MethodTask) -> Uncertainty:
        """Return the uncertainties for one method, and write them into its folder."""
        kept = load_uncertainty(folder, self.ids) if folder else None
        if kept is not None:
            self.shared = kept
            return kept
        if self.shared is None:
            self.shared = measure(*self.arguments, progress=self._report(task))
        if folder:
            folder.write_json("uncertainty.json", self.shared.as_dict())
        return self.shared

    def _report(self, task: MethodTask) -> Callable[[int, int], None] | None:
        on_progress = task.on_progress
        if on_progress is None:
            return None
        label, seed = task.method.label, self.seed
        return lambda done, total: on_progress(Progress(label, seed, "uncertainty", done, total))


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
            reference = results[0].client_accuracy
        evaluation = m.evaluation or m.clients.evaluate(m.server)
        module = copy.deepcopy(m.module).cpu()  # it serves other methods too
        uncertainty = m.clients.uncertainty
        results.append(
            finish_run(m.run, module, m.log, evaluation, uncertainty, m.notes, reference)
        )
    return results
