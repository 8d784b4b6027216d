"""Measurement of the clients' uncertainties, by the kind that the settings name."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from torch import nn

from udjfl.data import Federation
from udjfl.data.federation import Client
from udjfl.engine import Demands, Engine, make_engine
from udjfl.errors import ReportError, SettingsError
from udjfl.models import ModelChoice, build
from udjfl.settings import TrainingSettings
from udjfl.tasks import Score, Task
from udjfl.uncertainty.alone import measure_alone, task_of
from udjfl.uncertainty.crossfit import CrossFit, SeededClients, cross_fit
from udjfl.uncertainty.evidence import cross_fit_evidence, label_evidence
from udjfl.uncertainty.values import Uncertainty, mean_uncertainty


def measure(
    federation: Federation,
    engine: Engine,
    settings: TrainingSettings,
    seed: int,
    model: ModelChoice | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Uncertainty:
    """Measure the uncertainty of every client from its own training data alone.

    `engine` is one for the federation's clients; cross-fitting makes another of the same kind for
    its folds. `progress(done, total)` counts parts of the work.
    """
    check_kind(settings, task_of(federation, settings))
    if settings.uncertainty == "crossfit":
        like_this = functools.partial(
            type(engine.whole),
            device=str(engine.device),
            workers=engine.workers,
            criterion=engine.criterion,
        )
        fits = cross_fit(
            [SeededClients(federation.clients, seed)],
            settings,
            model or settings.model,
            task_of(federation, settings),
            like_this,
            progress,
        )
        score = task_of(federation, settings).score
        uncertainty = _from_cross_fits(federation, fits[0], score)
    else:
        uncertainty = measure_alone(federation, engine, settings, seed, model, progress)
        uncertainty = replace(uncertainty, evidence=label_evidence(federation))
    _refuse_failures(uncertainty, settings)
    return uncertainty


def measure_many(
    federations: Sequence[Federation],
    settings: TrainingSettings,
    seeds: Sequence[int],
    model: ModelChoice | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[Uncertainty]:
    """Measure several federations, each with its seed; crossfit trains all in one program.

    They must have examples of one shape and the same number of classes. `progress(done, total)`
    counts parts of the work.
    """

    def engine_for(module: nn.Module, clients: Sequence[Client]) -> Engine:
        options = settings.engine, settings.device, settings.workers
        return make_engine(module, clients, *options, Demands(task.criterion))

    task = task_of(federations[0], settings)
    check_kind(settings, task)
    name = model or settings.model
    if settings.uncertainty == "crossfit":
        measured = [SeededClients(f.clients, s) for f, s in zip(federations, seeds, strict=True)]
        fits = cross_fit(measured, settings, name, task, engine_for, progress)
        pairs = zip(federations, fits, strict=True)
        results = [_from_cross_fits(federation, of_one, task.score) for federation, of_one in pairs]
        for uncertainty in results:
            _refuse_failures(uncertainty, settings)
        return results
    results = []
    for federation, seed in zip(federations, seeds, strict=True):
        module = build(
            name,
            federation.input_shape,
            task.n_outputs,
            seed,
            hidden=settings.hidden,
            weight_norm=settings.weight_norm,
            one_logit=task.one_logit,
        )
        engine = engine_for(module, federation.clients)
        results.append(measure(federation, engine, settings, seed, model, progress))
        engine.close()
    return results


def _from_cross_fits(federation: Federation, fits: Sequence[CrossFit], score: Score) -> Uncertainty:
    by_client = dict(zip(federation.ids, fits, strict=True))
    values = {name: mean_uncertainty(fit.values) for name, fit in by_client.items()}
    evidence = cross_fit_evidence(federation, by_client, score)
    return Uncertainty("crossfit", values, evidence=evidence)


def check_kind(settings: TrainingSettings, task: Task) -> None:
    """Raise an error for a measure that is not defined for the task."""
    if task.criterion.is_regression and settings.uncertainty != "crossfit":
        raise SettingsError(
            f"uncertainty: {settings.uncertainty} is a number of class probabilities; for a "
            "regression use crossfit, the held-out squared error"
        )


def _refuse_failures(uncertainty: Uncertainty, settings: TrainingSettings) -> None:
    """Raise an error if a client could not be measured, unless the settings exclude it."""
    failed = [name for name, value in uncertainty.values.items() if not math.isfinite(value)]
    if failed and settings.on_bad_report == "fail":
        problem = (
            "could not be measured: training alone diverged; check its data, or try a smaller "
            "uncertainty_lr"
        )
        raise ReportError(failed[0], "uncertainties", problem)
