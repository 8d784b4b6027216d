"""Train one method, or several, on one federation: `simulate`."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from udjfl.data import Federation, load
from udjfl.data.federate import without_test_parts
from udjfl.data.problems import log_problems
from udjfl.errors import SettingsError
from udjfl.methods import Method
from udjfl.methods import method as build_method
from udjfl.methods.reports import check_numbers
from udjfl.models import ModelChoice, describe
from udjfl.settings import AnySettings, DataSettings, Settings, TrainingSettings, validate_settings
from udjfl.simulation.lockstep import Failure
from udjfl.simulation.run_methods import MethodTask, SeedTask, run_seeds
from udjfl.training.learned import log_warning
from udjfl.training.observers import observe
from udjfl.training.records import OnProgress
from udjfl.training.references import reference_accuracies, reference_scores
from udjfl.training.result import Result
from udjfl.training.state import RunSpec
from udjfl.uncertainty import Uncertainty
from udjfl.uncertainty.alone import task_of

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
    progress: bool = False,
    log: str | None = None,
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
    on_progress  is called with a `Progress` event as the work goes on; after a round it has all
                 that was recorded of it, as `event.metrics` and `event.client_metrics`
    progress     show a bar, in a notebook or on a terminal
    log          "tensorboard", "mlflow" or "wandb": write every round there, too; with options as
                 in "tensorboard:folder=runs" (see `udjfl.training.run_logs`)

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
    federation = load_and_warn(data, chosen.federation, seed)
    spec = RunSpec(rule, chosen.training, seed, model)
    with observe(
        on_progress,
        progress=progress,
        log=log,
        rounds=spec.settings.rounds,
        parameters=chosen.to_flat(),
    ) as observer:
        result = run_method(
            federation,
            spec,
            reference=reference,
            uncertainty=given,
            out=out,
            resume=resume,
            on_progress=observer,
        )
    log_warning(result.warning)
    return result


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
            for name in DataSettings.flat_fields()
            if name in keywords and name not in TrainingSettings.flat_fields()
        ]
    try:
        settings = validate_settings(cls, values)
    except SettingsError as error:
        mistakes += error.mistakes
    if mistakes:
        raise SettingsError(mistakes)
    return settings


def load_federation(
    data: DataChoice, settings: DataSettings, seed: int, *, tuning: bool = False
) -> Federation:
    """Return the federation of a seed; for `tuning` without its test parts.

    Of named data, the global held-out set for tuning has clean examples only.
    """
    if isinstance(data, str):
        return load(
            data,
            settings.clients,
            settings.partition,
            seed,
            settings.data_root,
            tuning=tuning,
            options=settings.table.given or None,
        )
    federation = data if isinstance(data, Federation) or not callable(data) else data(seed)
    if not isinstance(federation, Federation):
        raise SettingsError(
            f"data: got {type(federation).__name__}; give a udjfl.Federation, a function from the "
            "seed to one, or the name of data"
        )
    return without_test_parts(federation, seed) if tuning else federation


def load_and_warn(data: DataChoice, settings: DataSettings, seed: int) -> Federation:
    """Return the federation of a seed; the problems of named data are logged.

    Those of other data were, when they were made.
    """
    federation = load_federation(data, settings, seed)
    if isinstance(data, str):
        log_problems(federation)
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
) -> list[Result | Failure]:
    """Train several methods on one federation in lockstep; each gets the numbers it gets alone.

    A method whose training fails, or that is not defined for this federation, has its error in
    place of a result. `reference` is for all of them.
    """
    fingerprint = federation.hold_out(settings.holdout, seed).fingerprint
    score = task_of(federation, settings).score.kind
    before = reference_accuracies(reference, federation.ids, seed, score, fingerprint)
    scores = reference_scores(reference, federation.ids)
    task = SeedTask(federation, seed, tasks, uncertainty, before, scores)
    (results,) = run_seeds([task], settings, model=model, resume=resume)
    return [
        replace(result, fingerprint=fingerprint) if isinstance(result, Result) else result
        for result in results
    ]
