"""Train methods on one federation in this process: `simulate` one, `run_methods` several."""

from __future__ import annotations

import contextlib
import copy
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from udjfl._threads import available_cores, thread_limit
from udjfl.data import Federation, load
from udjfl.engine import Engine, make_engine, one_thread
from udjfl.errors import NotDefinedError, SettingsError, StorageError
from udjfl.methods import Method
from udjfl.methods import method as build_method
from udjfl.methods.reports import check_numbers
from udjfl.models import ModelChoice, describe
from udjfl.settings import (
    AnySettings,
    DataSettings,
    Settings,
    TrainingSettings,
    validate_settings,
)
from udjfl.simulation.local_clients import LocalClients
from udjfl.simulation.lockstep import Failure, MethodRun, run_lockstep
from udjfl.training.lifecycle import (
    RunLog,
    check_complete,
    describe_run,
    finish_run,
    load_uncertainty,
    open_run_folder,
    reference_accuracies,
)
from udjfl.training.records import OnProgress, Progress
from udjfl.training.result import Result
from udjfl.training.run_folder import RunFolder
from udjfl.training.state import FederationInfo, Run, RunSpec, ServerState, initial_state
from udjfl.uncertainty import Uncertainty, measure

# A federation, a function from the seed to one, or the name of data, as `udjfl.load` takes it.
DataChoice = Federation | Callable[[int], Federation] | str


def simulate(
    data: DataChoice,
    method: Method | str,
    model: ModelChoice = "mlp",
    *,
    seed: int = 0,
    reference: Result | str | os.PathLike[str] | None = None,
    uncertainty: str | Mapping[str, float] = "crossfit",
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    on_progress: OnProgress | None = None,
    **settings: Any,
) -> Result:
    """Train one method on one federation, and return what it did to each client.

    data         a federation, a function from the seed to one, or a name such as "dirty-digits"
    method       a method, or its specification such as "rawls" or "udj:theory=rawls:beta=2"
    model        "mlp", "cnn", "logistic", "package.module:function", or a function that returns a
                 `torch.nn.Module`
    reference    the result (or run folder) of FedAvg on the same federation and seed: with it the
                 metrics include psi
    uncertainty  how to measure it, or the clients' uncertainties by id
    out, resume  keep the run in a folder; continue the run that is there
    on_progress  is called with a `Progress` event as the work goes on

    Every other keyword is a setting of `udjfl.settings.TrainingSettings` (`rounds=100`, `lr=0.1`,
    ...) or, with data given by name, of `udjfl.settings.DataSettings` (`clients`, `partition`,
    `data_root`). `udjfl run --help` lists them.
    """
    mistakes: list[str] = []
    given = None
    if isinstance(uncertainty, str):
        settings = {**settings, "uncertainty": uncertainty}
    else:
        given = Uncertainty("given", given_uncertainties(uncertainty))
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        mistakes.append(f"seed: is {seed!r}; give a whole number from 0")
    try:
        chosen = validate_keywords(SimulateSettings, data, model, settings)
    except SettingsError as error:
        mistakes += error.mistakes
    try:
        rule = as_method(method)
    except SettingsError as error:
        mistakes += error.mistakes
    if mistakes:
        raise SettingsError(mistakes)
    federation = load_federation(data, chosen.federation, seed)
    spec = RunSpec(rule, chosen.training, seed, model)
    return run_method(
        federation,
        spec,
        reference=reference,
        uncertainty=given,
        out=out,
        resume=resume,
        on_progress=on_progress,
    )


class SimulateSettings(Settings):
    """The keywords of `simulate`."""

    federation: DataSettings = DataSettings()
    training: TrainingSettings = TrainingSettings()


def show_settings(function: Callable[..., Any]) -> None:
    """List all settings in a function's signature, in place of `**settings`."""
    signature = inspect.signature(function)
    parameters = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    named = {parameter.name for parameter in parameters}
    for name, field in SimulateSettings.flat_fields().items():
        if name not in {*named, "data"}:
            keyword = inspect.Parameter.KEYWORD_ONLY
            parameters.append(
                inspect.Parameter(name, keyword, default=field.default, annotation=field.annotation)
            )
    function.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]


show_settings(simulate)


def validate_keywords(
    cls: type[AnySettings], data: DataChoice, model: ModelChoice, keywords: Mapping[str, Any]
) -> AnySettings:
    """Build settings from the keywords of `simulate` or `compare`."""
    values = {**keywords, "model": describe(model)}
    mistakes: list[str] = []
    if isinstance(data, str):
        values["data"] = data
    else:
        mistakes += [
            f"{name}: applies to data given by name; leave it out with a federation of your own"
            for name in DataSettings.model_fields
            if name in keywords
        ]
    try:
        settings = validate_settings(cls, values)
    except SettingsError as error:
        mistakes += error.mistakes
    if mistakes:
        raise SettingsError(mistakes)
    return settings


def load_federation(data: DataChoice, settings: DataSettings, seed: int) -> Federation:
    """Return the federation of a seed."""
    if isinstance(data, str):
        return load(data, settings.clients, settings.partition, seed, settings.data_root)
    federation = data if isinstance(data, Federation) or not callable(data) else data(seed)
    if not isinstance(federation, Federation):
        raise SettingsError(
            f"data: got {type(federation).__name__}; give a udjfl.Federation, a function from the "
            "seed to one, or the name of data"
        )
    return federation


def as_method(given: Method | str) -> Method:
    """Return a method, or build it from its specification."""
    if isinstance(given, Method):
        return given
    if isinstance(given, str):
        return build_method(given)
    shown = f"the class {given.__name__}" if isinstance(given, type) else repr(given)
    raise SettingsError(
        f"method: got {shown}; give a name, or a method as udjfl.method(...) makes it"
    )


def given_uncertainties(values: Mapping[str, float]) -> dict[str, float]:
    """Return uncertainties that a caller gave as plain numbers by client id."""
    if not isinstance(values, Mapping):
        raise SettingsError(
            f"uncertainty: is {values!r}; name a measure, or give a number for each client id"
        )
    plain: dict[str, float] = {}
    for name, value in values.items():
        try:
            plain[str(name)] = float(value)
        except (TypeError, ValueError):
            raise SettingsError(
                f"uncertainty: of client {name!r} is {value!r}; give a number above zero"
            ) from None
        check_numbers(str(name), {"uncertainties": plain[str(name)]})
    return plain


@dataclass(frozen=True)
class MethodTask:
    """One method of several that are trained together, and where its run is kept."""

    method: Method
    out: str | os.PathLike[str] | None = None
    on_progress: OnProgress | None = None


def run_method(
    federation: Federation,
    spec: RunSpec,
    *,
    reference: Result | str | os.PathLike[str] | None = None,
    uncertainty: Uncertainty | None = None,
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    on_progress: OnProgress | None = None,
) -> Result:
    """Train one method; as `simulate`, with everything that is chosen in one value."""
    (result,) = run_methods(
        federation,
        [MethodTask(spec.method, out, on_progress)],
        spec.settings,
        spec.seed,
        model=spec.model,
        reference=reference,
        uncertainty=uncertainty,
        resume=resume,
    )
    if not isinstance(result, Result):
        raise result
    return result


def run_methods(
    federation: Federation,
    tasks: Sequence[MethodTask],
    settings: TrainingSettings,
    seed: int,
    *,
    model: ModelChoice | None = None,
    reference: Result | str | os.PathLike[str] | None = None,
    uncertainty: Uncertainty | None = None,
    resume: bool = False,
    first_is_reference: bool = False,
) -> list[Result | Failure]:
    """Train several methods on one federation in lockstep; each gets the numbers it gets alone.

    A method whose training fails, or that is not defined for this federation, has its error in
    place of a result. `reference` is for all of them; with `first_is_reference` it is the result
    of the first.
    """
    info = FederationInfo.of(federation)
    before = reference_accuracies(reference, info.ids, seed)
    workers = settings.workers or available_cores()
    with one_thread(), thread_limit(workers), contextlib.ExitStack() as stack:
        prepared = prepare_methods(info, [task.method for task in tasks], settings, seed, model)
        engine = _make_engine(federation, settings, prepared.base_model, stack)
        if uncertainty is not None:
            check_complete(uncertainty, info.ids)
        # From here on nothing the caller chose can be wrong: only now is anything written.
        folders = [
            None
            if isinstance(start, NotDefinedError) or task.out is None
            else _open_folder(federation, start, task.out, resume, uncertainty, stack)
            for task, start in zip(tasks, prepared.starts, strict=True)
        ]
        source = _UncertaintySource(federation, engine, settings, seed, model, uncertainty)
        method_runs: list[MethodRun | Failure] = []
        for task, start, folder in zip(tasks, prepared.starts, folders, strict=True):
            if isinstance(start, NotDefinedError):
                method_runs.append(start)
                continue
            measured = source.get(folder, task)
            own = engine
            if start.module is not prepared.base_model:
                own = _make_engine(federation, settings, start.module, stack)
            log = RunLog(settings, start.server, folder)
            clients = LocalClients(start.run, federation, own, measured)
            method_runs.append(MethodRun(start.run, clients, log, start.notes, task.on_progress))
        run_lockstep([m for m in method_runs if isinstance(m, MethodRun)])
        return _finish(method_runs, before, first_is_reference)


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
            mistakes += error.mistakes
    if mistakes:
        raise SettingsError(mistakes)
    assert base_model is not None, "there is a method"
    return PreparedMethods(base_model, starts)


def _make_engine(
    federation: Federation,
    settings: TrainingSettings,
    module: nn.Module,
    stack: contextlib.ExitStack,
) -> Engine:
    engine = make_engine(
        module, federation.clients, settings.engine, settings.device, settings.workers
    )
    stack.callback(engine.close)
    return engine


def _open_folder(
    federation: Federation,
    start: StartedMethod,
    out: str | os.PathLike[str],
    resume: bool,
    uncertainty: Uncertainty | None,
    stack: contextlib.ExitStack,
) -> RunFolder:
    """Open a run folder, locked until the end, and check that its uncertainties are these."""
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
        federation: Federation,
        engine: Engine,
        settings: TrainingSettings,
        seed: int,
        model: ModelChoice | None,
        given: Uncertainty | None,
    ) -> None:
        self.arguments = (federation, engine, settings, seed, model)
        self.ids, self.seed, self.shared = federation.ids, seed, given

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
        module = copy.deepcopy(m.clients.engine.module).cpu()  # the engine's serves other methods
        uncertainty = m.clients.uncertainty
        results.append(
            finish_run(m.run, module, m.log, evaluation, uncertainty, m.notes, reference)
        )
    return results
