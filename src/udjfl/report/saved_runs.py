"""Finished runs, read back from their folders: one to look at, or several to compare. Where they were run does not matter."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from udjfl import metrics
from udjfl.errors import SettingsError, StorageError
from udjfl.methods import METHODS, Method
from udjfl.settings import CompareSettings, checked
from udjfl.simulation.compare import Comparison, summarised
from udjfl.training.run_folder import RunFolder


@dataclass(frozen=True)
class KeptRun:
    """What a run folder says of a finished run; the names are those of `udjfl.Result`."""

    folder: Path
    data: str
    fingerprint: str | None
    training: Mapping[str, Any]
    method: Method
    seed: int
    metrics: dict[str, float | None]
    undefined: dict[str, str]
    client_accuracy: dict[str, float]
    uncertainty: dict[str, float]
    epistemic: dict[str, float] | None
    notes: list[str]


def runs_below(paths: Sequence[Path]) -> list[KeptRun]:
    """Every finished run in these folders and below them, in the order of their names."""
    found: list[KeptRun] = []
    for path in paths:
        folders = (
            sorted({file.parent for file in path.rglob("result.json")}) if path.is_dir() else []
        )
        if not folders:
            unfinished = (path / "settings.json").exists()
            advice = (
                f"it was not finished; `udjfl resume {path}` goes on"
                if unfinished
                else "name the folder given as --out"
            )
            raise StorageError(f"{path} holds no finished run: {advice}")
        found += [read_run(folder) for folder in folders]
    return found


def read_run(path: Path) -> KeptRun:
    """One finished run."""
    folder = RunFolder.open(path)
    about = folder.read_settings("training", "federation", "method", "params", "seed")
    result = folder.read_json("result.json")
    try:
        method = METHODS[about["method"]](**about["params"])
        known = {
            metric.key: result[metric.key] for metric in metrics.METRICS if metric.key in result
        }
        doubts = {
            name: math.nan if value is None else float(value)
            for name, value in result["uncertainty"].items()
        }
        epistemic = result["epistemic"]
        return KeptRun(
            path,
            about["federation"]["name"],
            about["federation"].get("fingerprint"),
            about["training"],
            method,
            about["seed"],
            known,
            result["undefined"],
            result["client_accuracy"],
            doubts,
            epistemic,
            result["notes"],
        )
    except KeyError as error:
        raise StorageError(
            f"{path}: {error} is missing or unknown; the run is of another version, or damaged"
        ) from None
    except (TypeError, AttributeError, ValueError):
        raise StorageError(
            f"{path / 'result.json'} is damaged; resume the run, or start it again elsewhere"
        ) from None


def compared_runs(runs: Sequence[KeptRun]) -> Comparison:
    """Runs of several methods on the same federations, as one comparison. FedAvg has to be among them."""
    seeds = tuple(sorted({run.seed for run in runs}))
    by_method: dict[Method, dict[int, KeptRun]] = {}
    for run in runs:
        other = by_method.setdefault(run.method, {}).setdefault(run.seed, run)
        if other is not run:
            raise SettingsError(
                f"{other.folder} and {run.folder} are the same method and seed; leave one out"
            )
    reference = next((method for method in by_method if method.name == "fedavg"), None)
    if reference is None:
        raise SettingsError(
            "none of the runs is FedAvg, which the others are compared with; add a run of it"
        )
    before = by_method.pop(reference)
    _check_alike(before, runs)
    rows = [
        summarised(
            reference, {seed: before.get(seed, "there is no run of it") for seed in seeds}, before
        )
    ]
    for method, own in by_method.items():
        with_psi = {
            seed: _with_psi(own[seed], before[seed]) if seed in own else "there is no run of it"
            for seed in seeds
        }
        rows.append(summarised(method, with_psi, before))
    training = {
        key: value for key, value in runs[0].training.items() if key in CompareSettings.model_fields
    }
    names = [row.method.name for row in rows]
    settings = checked(CompareSettings, {**training, "seeds": list(seeds), "methods": names})
    return Comparison(runs[0].data, seeds, settings, tuple(rows), own_data=True)


def _check_alike(before: Mapping[int, KeptRun], runs: Sequence[KeptRun]) -> None:
    """Only runs on the same data with the same clients say anything about each other."""
    for run in runs:
        reference = before.get(run.seed)
        if reference is None:
            raise SettingsError(
                f"{run.folder} has seed {run.seed}, and FedAvg was not run with it; add that run, or leave this out"
            )
        if list(run.client_accuracy) != list(reference.client_accuracy):
            raise SettingsError(
                f"{run.folder} has other clients than {reference.folder}; compare runs on the same federation"
            )
        if run.fingerprint and reference.fingerprint and run.fingerprint != reference.fingerprint:
            raise SettingsError(
                f"{run.folder} was made with other data than {reference.folder}; compare runs on the same data"
            )


def _with_psi(run: KeptRun, reference: KeptRun) -> KeptRun:
    """A run that did not know its reference does not have a psi; the reference is known here."""
    ids = [name for name in run.client_accuracy if math.isfinite(run.uncertainty[name])]
    if "psi" in run.metrics or not ids:
        return run
    columns = [
        [column[name] for name in ids]
        for column in (run.client_accuracy, reference.client_accuracy, run.uncertainty)
    ]
    return replace(run, metrics={**run.metrics, "psi": metrics.psi(*columns)})
