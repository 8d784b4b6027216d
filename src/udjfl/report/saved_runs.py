"""Finished runs read back from their folders, one to show or several to compare.

Runs of the simulator and of Flower are the same here.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from udjfl.errors import DataError, SettingsError, StorageError
from udjfl.methods import METHODS, THEORIES, Method
from udjfl.methods.recorded import build_recorded
from udjfl.metrics import METRICS, GroupAccuracy, compute_metrics
from udjfl.report.stored_types import check_metrics, check_types
from udjfl.settings import CompareSettings, validate_settings
from udjfl.simulation.comparison import Comparison
from udjfl.simulation.method_summary import summarise_method
from udjfl.tasks import ACCURACY, ScoreKind
from udjfl.training.folder_check import refuse_damage, warn_of_unchecked
from udjfl.training.follow import is_being_written
from udjfl.training.result import FinishedRun, outcome_of, read_result
from udjfl.training.resuming import advise_to_resume
from udjfl.training.run_folder import RunFolder

NO_RUN = "there is no run of it"
MOST_NAMED = 8  # folders that an error names
# Training settings that may differ between the seeds of a method: where it ran, what it recorded.
NO_TRAINING = {"engine", "device", "workers", "eval_every", "checkpoint_every"}
MethodKey = tuple[str, str]  # the name that a method was given by, and its parameters as text


@dataclass(frozen=True, kw_only=True, repr=False)
class SavedRun(FinishedRun):
    """A finished run as its folder has it.

    checked   against its manifest, if there is one
    spec      the name that its method was given by
    """

    checked: bool
    spec: str
    folder: Path
    data: str
    fingerprint: str | None
    training: Mapping[str, Any]


def find_runs(paths: Sequence[Path]) -> list[SavedRun]:
    """Read every finished run in these folders and below them, in the order of their names."""
    runs: list[SavedRun] = []
    for path in paths:
        folders = sorted({file.parent for file in path.rglob("result.json")})
        if not folders:
            if not (path / "settings.json").exists():
                advice = "name the folder given as --out"
            elif is_being_written(path):
                advice = f"it goes on; `udjfl watch {path}` shows how far it is"
            else:
                advice = f"it was not finished; {advise_to_resume(path)} goes on"
            raise StorageError(f"{path} holds no finished run: {advice}")
        runs += [read_run(folder) for folder in folders]
    warn_of_unchecked([run.folder for run in runs if not run.checked])
    return runs


def read_run(path: Path) -> SavedRun:
    """Read one finished run. Metrics that were added since then are computed from its numbers."""
    folder = RunFolder.open(path)
    refuse_damage(folder)
    settings = folder.read_settings("training", "federation", "method", "params", "seed")
    result = read_result(folder)
    check_types(path, settings, result)
    try:
        run = SavedRun(
            checked=folder.manifest is not None,
            spec=settings["method"],
            folder=path,
            data=settings["federation"]["name"],
            fingerprint=settings["federation"].get("fingerprint"),
            training=settings["training"],
            method=_build_method(settings, result),
            seed=settings["seed"],
            metrics=check_metrics(path, {key: result[key] for key in METRICS if key in result}),
            undefined=result["undefined"],
            client_scores=result["client_scores"],
            uncertainty={
                client: math.nan if value is None else float(value)
                for client, value in result["uncertainty"].items()
            },
            epistemic=result["epistemic"],
            notes=result["notes"],
            test_sizes=_test_sizes(result, settings["federation"]),
            n_classes=_n_classes(result, settings["federation"]),
            service=settings["training"].get("service", "none"),
            common_scores=result.get("common_scores"),
            expected_accuracy=result.get("expected_accuracy"),
            accuracy_alone=result.get("accuracy_alone"),
            score_alone=result.get("score_alone"),
            warning=result.get("warning"),
            score=ScoreKind.from_dict(result["score"]) if "score" in result else ACCURACY,
            client_interval=_intervals(result.get("client_interval")),
            group_accuracy=GroupAccuracy.from_dict(result["group_accuracy"])
            if "group_accuracy" in result
            else None,
        )
        return _with_missing_metrics(run, None)
    except KeyError as error:
        raise StorageError(
            f"{path}: {error} is missing or unknown; the run is of another version, or damaged"
        ) from None
    except (TypeError, AttributeError, ValueError, DataError):
        raise StorageError(
            f"{path / 'result.json'} is damaged; resume the run, or start it again elsewhere"
        ) from None


def _build_method(settings: Mapping[str, Any], result: Mapping[str, Any]) -> Method:
    """Return the method of a run; code that its folder names is not imported to show it."""
    return build_recorded(
        settings["method"],
        settings["params"],
        name=result["method"],
        label=result["label"],
        theories=result["theory"],
        grade=result["grade"],
    )


def read_method(folder: RunFolder, settings: Mapping[str, Any]) -> Method:
    """Return the method of a run, finished or not, without importing code that its folder names."""
    unfinished = {"method": "unknown", "label": settings["method"], "theory": [], "grade": ""}
    return _build_method(settings, read_result(folder) or unfinished)


def _test_sizes(result: Mapping[str, Any], federation: Mapping[str, Any]) -> dict[str, int] | None:
    """Return the sizes of the test parts; older results have them in the settings at most."""
    if "test_sizes" in result:
        return None if result["test_sizes"] is None else dict(result["test_sizes"])
    sizes = {client["id"]: client.get("test") for client in federation.get("clients", [])}
    known = all(sizes.get(name) is not None for name in result["client_scores"])
    return {name: int(sizes[name]) for name in result["client_scores"]} if known else None


def _intervals(kept: Mapping[str, Any] | None) -> dict[str, tuple[float, float]] | None:
    return None if kept is None else {name: (low, high) for name, (low, high) in kept.items()}


def _n_classes(result: Mapping[str, Any], federation: Mapping[str, Any]) -> int | None:
    """Return the number of classes; older results have it in the settings at most."""
    if "n_classes" in result or "n_classes" in federation:
        number = result.get("n_classes", federation.get("n_classes"))
        return None if number is None else int(number)
    counts = [client.get("class_counts") for client in federation.get("clients", [])]
    return len(counts[0]) if counts and counts[0] else None


def _name_last(runs: Sequence[SavedRun]) -> str:
    """Return the command that names the last run of each method and seed, unless it is long."""
    last = {(written_form(run), run.seed): str(run.folder) for run in runs}
    return f": `udjfl report {shlex.join(last.values())}`" if len(last) <= MOST_NAMED else ""


def compare_runs(runs: Sequence[SavedRun], order: Sequence[MethodKey] = ()) -> Comparison:
    """Compare runs of several methods on the same federations. One method has to be FedAvg.

    FedAvg comes first, then the methods in the given order, then others as they are listed.
    """
    seeds = tuple(sorted({run.seed for run in runs}))
    by_method: dict[str, dict[int, SavedRun]] = {}
    for run in runs:
        same = by_method.setdefault(written_form(run), {}).setdefault(run.seed, run)
        if same is not run:
            raise SettingsError(
                f"{same.folder} and {run.folder} are the same method and seed; leave one out"
                f"{_name_last(runs)}"
            )
    fedavg = [run for run in runs if run.method.name == "fedavg"]
    fedavg.sort(key=lambda run: run.service != "none")  # the one without a service, if there is one
    if not fedavg:
        raise SettingsError(
            "none of the runs is FedAvg, which the others are compared with; add a run of it"
        )
    for of_method in by_method.values():
        check_same_training(list(of_method.values()))
    references = by_method.pop(written_form(fedavg[0]))
    _check_comparable(references, runs)
    rows = []

    def position(of_method: Mapping[int, SavedRun]) -> tuple[Any, ...]:
        run = next(iter(of_method.values()))
        key = method_key(run.spec, run.method.params)
        place = order.index(key) if key in order else len(order)
        return (run.service != "none", place, *table_position(run))

    others = sorted(by_method.values(), key=position)
    for of_method in (references, *others):
        by_seed: dict[int, SavedRun | str] = dict.fromkeys(seeds, NO_RUN)
        for seed, run in of_method.items():
            is_reference = of_method is references
            by_seed[seed] = run if is_reference else _with_missing_metrics(run, references[seed])
        method = next(iter(of_method.values())).method
        rows.append(summarise_method(method, by_seed, references))
    training = {
        key: value
        for key, value in runs[0].training.items()
        if key in CompareSettings.flat_fields()
    }
    methods = [row.method.name for row in rows]
    settings = validate_settings(
        CompareSettings, {**training, "seeds": list(seeds), "methods": methods}
    )
    return Comparison(runs[0].data, seeds, settings, tuple(rows), own_data=True)


def method_key(spec: str, params: Mapping[str, Any]) -> MethodKey:
    """Return what tells a method from others; parameters need not be hashable."""
    return spec, json.dumps(params, sort_keys=True, default=str)


def table_position(run: FinishedRun) -> tuple[bool, int, int, bool]:
    """Return the place of a run in tables: as methods are listed, by theory, budgets first.

    Runs with a service come after those without.
    """
    method, names = run.method, list(METHODS)
    theory = method.theories[0] if len(method.theories) == 1 else ""
    return (
        run.service != "none",
        names.index(method.name) if method.name in names else len(names),
        THEORIES.index(theory) if theory in THEORIES else len(THEORIES),
        getattr(method, "budget", None) is None,
    )


def written_form(run: SavedRun) -> str:
    """Return a method's name and parameters, and the service; parameters need not be hashable."""
    parts = [run.method.name, run.method.params, run.service]
    return json.dumps(parts, sort_keys=True, default=str)


def check_same_training(runs: Sequence[SavedRun]) -> None:
    """Refuse runs of one method that were trained in different ways: their mean says nothing."""
    first = runs[0]
    for run in runs[1:]:
        for key in sorted((first.training.keys() & run.training.keys()) - NO_TRAINING):
            ours, theirs = first.training[key], run.training[key]
            if ours != theirs:
                raise SettingsError(
                    f"{first.folder} has {key}={ours}, {run.folder} {key}={theirs}; seeds of one "
                    "method need the same training: leave one out"
                )


def _check_comparable(references: Mapping[int, SavedRun], runs: Sequence[SavedRun]) -> None:
    """Refuse runs on other seeds, clients or data than those of the reference."""
    first = next(iter(references.values()))
    for run in runs:
        reference = references.get(run.seed)
        if reference is None:
            raise SettingsError(
                f"{run.folder} has seed {run.seed}, and FedAvg was not run with it; "
                "add that run, or leave this out"
            )
        if list(run.client_scores) != list(first.client_scores):
            raise SettingsError(
                f"{run.folder} has other clients than {first.folder}; "
                "compare runs on the same federation"
            )
        if run.score != reference.score:
            raise SettingsError(
                f"{run.folder} has {run.score.title} as score, {reference.folder} "
                f"{reference.score.title}; compare runs with the same"
            )
        if run.fingerprint and reference.fingerprint and run.fingerprint != reference.fingerprint:
            raise SettingsError(
                f"{run.folder} was made with other data than {reference.folder}; "
                "compare runs on the same data"
            )


def _with_missing_metrics(run: SavedRun, reference: SavedRun | None) -> SavedRun:
    """Add the metrics that the run's folder does not have, as psi of a run without reference.

    Its own psi is from FedAvg with its own service: beside another reference it is computed again.
    """
    values, reasons = compute_metrics(outcome_of(run, reference))
    other = reference is not None and reference.service != run.service
    metrics = {k: v for k, v in run.metrics.items() if not (other and METRICS[k].needs_reference)}
    reasons = {key: reason for key, reason in reasons.items() if key not in metrics}
    undefined = {key: why for key, why in run.undefined.items() if key in metrics}
    return replace(run, metrics={**values, **metrics}, undefined={**undefined, **reasons})
