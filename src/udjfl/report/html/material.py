"""The material of a report: runs read from their folders, as far as they can be read.

A report is made for people who look at a result, not only for those who made it. So folders that
are unfinished, damaged or of another version do not stop it: they are listed with the reason, and
the report is made from the rest.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from udjfl.errors import SettingsError, StorageError, UdjflError
from udjfl.report.html.commands import find_commands
from udjfl.report.html.curves import Curves, read_curves
from udjfl.report.html.figure import method_name
from udjfl.report.html.score_text import ScoreText
from udjfl.report.html.searches import Problem, is_tuning, read_searches
from udjfl.report.saved_comparison import (
    Unfinished,
    drop_partial_seeds,
    find_damage,
    find_order,
    find_unfinished,
    is_comparison,
)
from udjfl.report.saved_runs import (
    SavedRun,
    check_same_training,
    compare_runs,
    read_run,
    written_form,
)
from udjfl.report.tuned_runs import hold_to_limits
from udjfl.search.frontier import Frontier
from udjfl.search.tune import HeldOutChoice
from udjfl.simulation.comparison import Comparison
from udjfl.simulation.method_summary import MethodSummary, summarise_method
from udjfl.training.folder_check import open_whole
from udjfl.training.resuming import advise_to_resume
from udjfl.training.run_folder import RunFolder

NO_FINISHED_RUN = "No run here is finished yet."


@dataclass(frozen=True)
class ClientFacts:
    """One client as the folders describe it; None where they do not tell.

    flags   remarks on its uncertainty, as `udjfl.uncertainty` words them
    """

    train_size: int | None = None
    test_size: int | None = None
    flags: tuple[str, ...] = ()


@dataclass(frozen=True)
class Material:
    """Everything that a report shows.

    rows           the methods over seeds; FedAvg first, if it was run
    comparison     the same with paired tests and verdicts; None where that is not possible
    no_comparison  the reason why there is none
    problems       folders that could not be used in full
    settings       of training, from the first run
    versions       of the libraries that made the numbers
    fingerprints   of the data, by seed
    commands       that repeat the runs
    unchecked      the number of runs whose folder has no manifest
    frontier       a grid of the family, if a folder of `udjfl frontier` was among the folders
    tuning         a choice on held-out data, if a folder of `udjfl tune` was; the runs are its test
    """

    data: str
    seeds: tuple[int, ...]
    rows: tuple[MethodSummary, ...]
    comparison: Comparison | None
    no_comparison: str
    problems: tuple[Problem, ...] = ()
    clients: Mapping[str, ClientFacts] = field(default_factory=dict)
    curves: tuple[Curves, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    fingerprints: Mapping[int, str] = field(default_factory=dict)
    commands: tuple[str, ...] = ()
    unchecked: int = 0
    frontier: Frontier | None = None
    tuning: HeldOutChoice | None = None

    @property
    def client_ids(self) -> list[str]:
        """The clients, in their order."""
        if self.rows:
            return list(self.rows[0].client_scores)
        known = self.clients or (self.frontier.clients if self.frontier else ())
        return list(known)

    @functools.cached_property
    def score(self) -> ScoreText:
        """The score that is judged."""
        if not self.rows:
            return ScoreText()
        row = self.rows[0]
        means = [s.mean for s in row.client_scores.values() if s.mean is not None]
        return ScoreText.for_values(row.score, means)

    @property
    def reference(self) -> MethodSummary | None:
        """FedAvg, which the others are compared with; None without a comparison."""
        return self.rows[0] if self.comparison is not None else None

    def by_uncertainty(self) -> list[str]:
        """Return the clients, the least uncertain first; those of unknown uncertainty last."""
        if not self.rows:
            return self.client_ids
        means = {client: value.mean for client, value in self.rows[0].uncertainty.items()}
        unknown = math.inf
        return sorted(means, key=lambda c: unknown if means[c] is None else float(means[c] or 0.0))


def read_material(paths: Sequence[Path]) -> Material:
    """Read every run in these folders and below them, and the searches among them."""
    searches = read_searches(paths)
    folders = _find_folders(searches.others)
    partial, in_part = _find_partial(searches.others)
    runs, unfinished, problems = _read_runs(folders, partial)
    whole = {*unfinished, *(run.folder for run in runs)}
    runs = drop_partial_seeds(runs, [each for each in partial if each.seeds])
    comparison, reason = _compare(runs, searches.others)
    if comparison is not None and searches.tuning is not None:
        comparison = hold_to_limits(comparison, searches.tuning)
    rows, conflicts = (comparison.rows, []) if comparison else _summarise(runs)
    described = _describe(folders)
    return Material(
        data=runs[0].data if runs else str(described.get("name", _name_of(searches.frontier))),
        seeds=_seeds_of(runs, searches.frontier),
        rows=rows,
        comparison=comparison,
        no_comparison=reason,
        problems=(*in_part, *problems, *conflicts, *searches.problems),
        clients=described.get("clients", {}),
        curves=_in_order(read_curves([f for f in folders if f in whole]), rows),
        settings=described.get("settings", {}),
        versions=described.get("versions", {}) or _read_versions(searches.folders),
        fingerprints={run.seed: run.fingerprint for run in runs if run.fingerprint},
        commands=tuple(find_commands([*searches.folders, *folders])),
        unchecked=sum(not run.checked for run in runs),
        frontier=searches.frontier,
        tuning=searches.tuning,
    )


def _seeds_of(runs: Sequence[SavedRun], frontier: Frontier | None) -> tuple[int, ...]:
    if not runs and frontier is not None:
        return frontier.seeds
    return tuple(sorted({run.seed for run in runs}))


def _find_partial(paths: Sequence[Path]) -> tuple[list[Unfinished], list[Problem]]:
    """Find comparisons that are not finished; each is one problem, not one for each of its runs."""
    damaged = [Problem("comparison", str(error)) for error in find_damage(paths)]
    try:
        partial = find_unfinished(paths)
    except StorageError as error:
        return [], damaged or [Problem("settings", str(error))]
    return partial, [*damaged, *(Problem(each.folder.name, str(each)) for each in partial)]


def _read_versions(folders: Sequence[Path]) -> dict[str, str]:
    for folder in folders:
        try:
            return dict(RunFolder.open(folder).read_json("versions.json") or {})
        except (StorageError, TypeError, ValueError):
            continue
    return {}


def _name_of(frontier: Frontier | None) -> str:
    return "unknown data" if frontier is None else frontier.data


def _in_order(curves: Sequence[Curves], rows: Sequence[MethodSummary]) -> tuple[Curves, ...]:
    """Sort curves like the rows of the tables; those of unfinished methods come last."""
    names = [method_name(row) for row in rows]
    places = {one.label: names.index(one.label) for one in curves if one.label in names}
    return tuple(sorted(curves, key=lambda one: places.get(one.label, len(names))))


def _find_folders(paths: Sequence[Path]) -> list[Path]:
    """Find the folders of single runs; those of comparisons and searches are not among them."""
    found: list[Path] = []
    for path in paths:
        marks = [*path.rglob("settings.json"), *path.rglob("result.json")]
        below = sorted({mark.parent for mark in marks})
        if not below:
            raise StorageError(
                f"{path} holds no run (there is no settings.json in it or below it); "
                "name the folder given as --out"
            )
        found += [folder for folder in below if folder not in found]
    return [folder for folder in found if not (is_comparison(folder) or is_tuning(folder))]


def _read_runs(
    folders: Sequence[Path], partial: Sequence[Unfinished]
) -> tuple[list[SavedRun], list[Path], list[Problem]]:
    """Return finished runs, the folders of unfinished ones, and why folders are left out."""
    runs, unfinished, problems = [], [], []
    for folder in folders:
        try:
            if not (folder / "result.json").exists():
                open_whole(folder)
                unfinished.append(folder)
                if any(each.folder in folder.parents for each in partial):
                    continue
                raise StorageError(f"not finished; {advise_to_resume(folder)} continues it")
            runs.append(read_run(folder))
        except UdjflError as error:
            problems.append(Problem(folder.name, str(error).replace(f"{folder}/", "")))
    return runs, unfinished, problems


def _compare(runs: Sequence[SavedRun], paths: Sequence[Path]) -> tuple[Comparison | None, str]:
    if not runs:
        return None, NO_FINISHED_RUN
    if len(runs) == 1:
        return None, "There is one run only; add one of FedAvg to see what the method changes."
    try:
        return compare_runs(runs, find_order(paths)), ""
    except UdjflError as error:
        return None, f"These runs cannot be compared: {error}."


def _summarise(runs: Sequence[SavedRun]) -> tuple[tuple[MethodSummary, ...], list[Problem]]:
    """Summarise each method by itself, on the clients of the first run.

    A method whose runs contradict each other is a problem in place of a row; an error if all do.
    """
    clients = list(runs[0].client_scores) if runs else []
    of_method: dict[str, list[SavedRun]] = {}
    for run in runs:
        if list(run.client_scores) == clients:
            of_method.setdefault(written_form(run), []).append(run)
    rows, conflicts = [], []
    for own in of_method.values():
        try:
            rows.append(_summarise_method(own))
        except SettingsError as error:
            conflicts.append(Problem(own[0].method.label, str(error)))
    if conflicts and not rows:
        raise SettingsError(conflicts[0].text)
    return tuple(rows), conflicts


def _summarise_method(runs: Sequence[SavedRun]) -> MethodSummary:
    by_seed: dict[int, SavedRun] = {}
    for run in runs:
        same = by_seed.setdefault(run.seed, run)
        if same is not run:  # a mean over both would be that of no experiment
            raise SettingsError(
                f"{same.folder} and {run.folder} are the same method and seed; a page shows one "
                "comparison: name the folders of one"
            )
    check_same_training(runs)
    return summarise_method(runs[0].method, dict(by_seed), by_seed)


def _describe(folders: Sequence[Path]) -> dict[str, Any]:
    """Return what the first readable folder says about data, clients and settings."""
    for path in folders:
        try:
            folder = RunFolder.open(path)
            settings = folder.read_settings("training", "federation")
            federation = settings["federation"]
            return {
                "name": federation["name"],
                "clients": _client_facts(federation, folder.read_json("uncertainty.json")),
                "settings": dict(settings["training"]),
                "versions": dict(folder.read_json("versions.json") or {}),
            }
        except (UdjflError, KeyError, TypeError, AttributeError, ValueError):
            continue  # listed among the problems already
    return {}


def _client_facts(federation: Mapping[str, Any], uncertainty: Any) -> dict[str, ClientFacts]:
    evidence = (uncertainty or {}).get("evidence") or {}
    facts = {}
    for client in federation.get("clients", []):
        flags = (evidence.get(client["id"]) or {}).get("flags") or ()
        facts[client["id"]] = ClientFacts(
            client.get("train"), client.get("test"), tuple(map(str, flags))
        )
    return facts
