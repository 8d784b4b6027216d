"""What a run keeps in its folder, and finds there when it is resumed: what was chosen, the clients' uncertainties, the end."""

from __future__ import annotations

import json
import logging
import math
import os
import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from torch import nn

from udjfl._files import write_atomic
from udjfl.data import Federation
from udjfl.engine import Engine
from udjfl.errors import DataError, SettingsError, StorageError
from udjfl.methods import Method
from udjfl.models import ModelChoice, buffers_from_vector, from_vector
from udjfl.settings import TrainingSettings
from udjfl.training.result import Result, final_metrics, summary
from udjfl.training.rounds import Evaluated, Progress, Server
from udjfl.training.run_folder import History, RunFolder, packed
from udjfl.uncertainty import Uncertainty, measure

logger = logging.getLogger("udjfl")


def check_complete(uncertainty: Uncertainty, federation: Federation) -> None:
    missing = [name for name in federation.ids if name not in uncertainty.values]
    if missing:
        raise SettingsError(
            f"uncertainty: no value for client {missing[0]!r}; give one number for each client"
        )


def known_uncertainty(
    federation: Federation,
    engine: Engine,
    settings: TrainingSettings,
    seed: int,
    model: ModelChoice | None,
    given: Uncertainty | None,
    folder: RunFolder | None,
    progress: Progress | None,
) -> Uncertainty:
    """Given, or found in the run folder, or measured now and written there."""
    kept = _kept_uncertainty(folder, federation) if folder else None
    if kept is not None:
        return kept
    if given is None:
        report = (lambda done, total: progress("uncertainty", done, total)) if progress else None
        given = measure(federation, engine, settings, seed, model, report)
    if folder:
        folder.write_json("uncertainty.json", given.as_dict())
    return given


def check_same_uncertainty(
    folder: RunFolder, federation: Federation, given: Uncertainty | None
) -> None:
    kept = _kept_uncertainty(folder, federation)
    if kept and given and given.as_dict()["values"] != kept.as_dict()["values"]:
        raise StorageError(
            f"{folder.path} was started with other uncertainties; resume it with the same, or leave them out"
        )


def _kept_uncertainty(folder: RunFolder, federation: Federation) -> Uncertainty | None:
    content = folder.read_json("uncertainty.json")
    if content is None:
        return None
    try:
        kept = Uncertainty.from_dict(content)
        check_complete(kept, federation)
    except (TypeError, ValueError, KeyError, AttributeError):
        raise StorageError(
            f"{folder.path / 'uncertainty.json'} is damaged; delete it and resume: the uncertainties are measured again"
        ) from None
    return kept


def run_description(
    federation: Federation,
    method: Method,
    settings: TrainingSettings,
    seed: int,
    module: nn.Module,
) -> dict[str, Any]:
    """Everything that decides a run's numbers, as plain values; and how to load the federation again, where that is known."""
    origin = federation.origin if federation.origin and federation.origin["seed"] == seed else None
    return {
        "method": method.name,
        "params": method.params,
        "seed": seed,
        "training": settings.model_dump(),
        "model": {name: list(value.shape) for name, value in module.named_parameters()},
        "federation": {
            "name": federation.name,
            "fingerprint": federation.fingerprint,
            "clients": federation.describe(),
        },
        "origin": dict(origin) if origin else None,
    }


def run_folder(out: str | os.PathLike[str], about: Mapping[str, Any], resume: bool) -> RunFolder:
    """A new run folder; or, resuming, the old one if it holds this very run."""
    plain = json.loads(json.dumps(about))  # as it will be read back: tuples become lists
    folder = RunFolder(Path(out))
    if not (resume and folder.holds_a_run):
        return RunFolder.create(out, plain, versions())
    old = folder.read_settings("method", "params", "seed", "training", "federation")
    if old["federation"].get("fingerprint") != plain["federation"]["fingerprint"]:
        raise DataError(
            f"{folder.path} was made with other data; resume it with the federation it was started on"
        )
    changed = [key for key in ("method", "params", "seed", "model") if old.get(key) != plain[key]]
    before = {
        **TrainingSettings().model_dump(),
        **old["training"],
    }  # a setting that came later was as it is by default
    changed += [
        key for key, value in plain["training"].items() if key != "workers" and before[key] != value
    ]
    across_machines = old.get("flower", {})
    changed += [
        key for key, value in plain.get("flower", {}).items() if across_machines.get(key) != value
    ]
    if changed:
        raise StorageError(
            f"{folder.path} was started with another {', '.join(changed)}; resume it with the same"
        )
    if folder.read_json("versions.json") != versions():
        logger.warning(
            "%s was started with other versions of the libraries; its numbers may differ in the last digits.",
            out,
        )
    return folder


def versions() -> dict[str, str]:
    """What made the numbers."""
    packages = {
        name: version(name) for name in ("udjfl", "torch", "numpy", "scipy", "scikit-learn")
    }
    return {"python": platform.python_version(), **packages}


def finished(
    method: Method,
    seed: int,
    module: nn.Module,
    server: Server,
    evaluated: Evaluated,
    ids: Sequence[str],
    uncertainty: Uncertainty,
    history: History,
    folder: RunFolder | None,
    notes: list[str],
    before: Mapping[str, float] | None = None,
    why_no_global: str | None = None,
) -> Result:
    """The result of a run whose last round is over, written into its folder. `before` are the reference's accuracies.

    `module` lends its shape, and is the result's model. A client that could not be evaluated counts in no metric.
    `why_no_global` says why there is no global accuracy, if not for want of a model for everybody.
    """
    served = method.served(server.state, server.vector)
    if method.n_models == 1:
        from_vector(module, server.vector)
        buffers_from_vector(module, server.buffers)
    pairs = zip(ids, evaluated.accuracies[:-1], strict=True)
    accuracy = {name: value for name, value in pairs if value is not None}
    known = {name: uncertainty.values.get(name, math.nan) for name in ids}
    values, why = final_metrics(
        evaluated.accuracies[-1],
        list(accuracy.values()),
        [known[name] for name in accuracy],
        [before[name] for name in accuracy] if before else None,
    )
    if why_no_global and "global_accuracy" in why:
        why = {**why, "global_accuracy": why_no_global}
    result = Result(
        method,
        seed,
        module,
        values,
        why,
        evaluated.accuracies[-1],
        accuracy,
        known,
        uncertainty.epistemic,
        history,
        folder,
        notes,
        served,
    )
    if folder and not (
        folder.finished and before is None
    ):  # a finished run may hold a psi that we cannot make again
        if method.global_model:
            write_atomic(folder.model_path, packed(module.state_dict(), {"round": server.round}))
        if served is not None:
            write_atomic(
                folder.served_path,
                packed({"models": served.models, "shares": served.shares}, {"round": server.round}),
            )
        folder.write_json("result.json", summary(result))
    return result
