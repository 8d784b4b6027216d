"""A run on Flower from the command line: its settings checked, its rounds shown, its failure."""

from __future__ import annotations

import json
import re
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from udjfl._files import as_argument, parse_json, parse_toml
from udjfl.cli.progress import show_progress
from udjfl.errors import DeploymentError, SettingsError, did_you_mean

if TYPE_CHECKING:
    from udjfl.deployment.control import Control, RunInfo
    from udjfl.deployment.coordinator import Coordinator
    from udjfl.deployment.submissions import Submitted

PAUSE = 0.5  # seconds between two looks
PATIENCE = 60.0  # seconds that a SuperLink may be away
STORED_SETTINGS = "flower-settings.json"  # in the coordinator's state: the settings of each run
LONGEST_DEFAULT = 50  # letters of a run's name that is made from its method; 63 are allowed


@dataclass(frozen=True)
class PreparedRun:
    """A run that can be submitted."""

    name: str
    config: Mapping[str, Any]
    first_round: int
    rounds: int


def find_unfinished(coordinator: Coordinator, resume: str | None) -> list[str]:
    """Return the runs that go on; raise an error if the one to be resumed is among them."""
    if coordinator.running() is None:
        return []  # submitting says so
    with coordinator.control() as control:
        names = [run.name for run in coordinator.unfinished(control)]
    if resume in names:
        raise DeploymentError(describe_unfinished(coordinator, resume))
    return names


def describe_unfinished(coordinator: Coordinator, name: str) -> str:
    """Return that a run goes on, and the commands that show and stop it."""
    folder = as_argument(coordinator.folder)
    return (
        f"{name} goes on: `udjfl flower status {folder}` shows it, "
        f"`udjfl flower stop {folder} {name}` stops it"
    )


def choose_unfinished(coordinator: Coordinator, control: Control, name: str | None) -> Submitted:
    """Return the run of this name, or the only one, that goes on; raise an error if none does."""
    submitted = coordinator.submitted()
    known = [run.name for run in submitted]
    if not known or (name is not None and name not in known):
        what = "no run was submitted" if name is None else f"there is no run {name}"
        raise DeploymentError(what + (did_you_mean(name, known) if name else ""))
    unfinished = coordinator.unfinished(control)
    chosen = [run for run in unfinished if name in (None, run.name)]
    if not chosen:
        raise DeploymentError(f"{name or known[-1]} has finished already")
    if len(chosen) > 1 and name is None:
        names = ", ".join(run.name for run in chosen)
        raise DeploymentError(f"several runs go on, name one: {names}")
    return chosen[-1]


def prepare_run(
    coordinator: Coordinator,
    given: Sequence[str],
    name: str | None,
    reference: str | None,
    resume: str | None,
) -> PreparedRun:
    """Check the settings of a run, all at once, before anything is sent.

    Call it and `submit` within `coordinator.submitting()`: the name is free until then only.
    """
    from udjfl.deployment.coordinator import check_name
    from udjfl.flower.settings import read_settings
    from udjfl.training.follow import FollowedRun

    declared = read_declared(coordinator.folder)
    changes = parse_settings(given, declared)
    first_round = 0
    if resume is not None:
        name = resume
        changes = {**_read_stored_settings(coordinator, resume), **changes, "resume": True}
        run = FollowedRun(coordinator.runs / resume)
        run.update()
        first_round = run.reached
    changes.setdefault("clients", max(1, len(coordinator.admitted())))
    if reference is not None:
        path = coordinator.runs / reference
        if not (path / "result.json").exists():
            raise DeploymentError(
                f"reference: {path} is not a finished run; {_list_finished(coordinator)}"
            )
        changes["reference"] = str(path)
    config = {**declared, **changes}
    run_settings, _ = read_settings(config)
    if name is None:
        name = _free_name(coordinator, run_settings.method)
    check_name(name)
    if resume is None and coordinator.is_taken(name):
        raise DeploymentError(
            f"the run {name} exists already; give another --name, or --resume {name}"
        )
    _store_settings(coordinator, name, changes)
    return PreparedRun(name, config, first_round, run_settings.training.rounds)


def _list_finished(coordinator: Coordinator) -> str:
    """Name the finished runs, so that a mistyped name is found."""
    names = sorted(path.parent.name for path in coordinator.runs.glob("*/result.json"))
    return f"finished: {', '.join(names)}" if names else "no run is finished yet"


def read_declared(folder: Path) -> dict[str, Any]:
    """Return the settings that the app in a folder declares, with its defaults."""
    path = folder / "pyproject.toml"
    try:
        project = parse_toml(path.read_bytes())
        return dict(project["tool"]["flwr"]["app"]["config"])
    except FileNotFoundError:
        raise DeploymentError(
            f"{path} is missing: make an app with `udjfl flower init`, or copy one here"
        ) from None
    except (ValueError, KeyError, TypeError) as error:
        raise DeploymentError(f"{path} is not a Flower app: {error}") from None


def parse_settings(given: Sequence[str], declared: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings written as NAME=VALUE, each in the type that the app declares."""
    changes: dict[str, Any] = {}
    mistakes: list[str] = []
    for text in _split_settings(given, mistakes):
        name, equals, value = text.partition("=")
        name = name.strip().replace("_", "-")
        if not equals:
            mistakes.append(f"{text}: write NAME=VALUE")
        elif name == "out":
            mistakes.append("out: a run is kept in runs/NAME; choose NAME with --name")
        elif name not in declared:
            mistakes.append(f"{name}: no such setting.{did_you_mean(name, declared)}")
        else:
            try:
                changes[name] = _convert(value.strip(), declared[name])
            except ValueError:
                kind = type(declared[name]).__name__
                mistakes.append(f"{name}: {value!r} is not a value of type {kind}")
    if mistakes:
        raise SettingsError(mistakes)
    return changes


def _split_settings(given: Sequence[str], mistakes: list[str]) -> list[str]:
    pieces = []
    for line in given:
        try:
            pieces += shlex.split(line)
        except ValueError as error:  # a quotation mark without its counterpart
            mistakes.append(f"{line}: {str(error).lower()}")
    return pieces


def _convert(text: str, default: Any) -> Any:
    if isinstance(default, bool):
        if text.lower() not in ("true", "false"):
            raise ValueError(text)
        return text.lower() == "true"
    return type(default)(text)


def _free_name(coordinator: Coordinator, method: str) -> str:
    base = re.sub(r"[^A-Za-z0-9._-]+", "-", method)[:LONGEST_DEFAULT].strip("-.") or "run"
    names = [base, *(f"{base}-{number}" for number in range(2, 10_000))]
    return next(name for name in names if not coordinator.is_taken(name))


def _read_stored_settings(coordinator: Coordinator, name: str) -> dict[str, Any]:
    stored = _read_settings_by_run(coordinator).get(name)
    if not isinstance(stored, dict):
        raise DeploymentError(f"{name} is not a run of this folder; {coordinator.runs} has them")
    return stored


def _read_settings_by_run(coordinator: Coordinator) -> dict[str, Any]:
    """Return the settings of all runs; nothing if they cannot be read."""
    try:
        by_run = parse_json((coordinator.state / STORED_SETTINGS).read_bytes())
    except (OSError, ValueError):
        return {}
    return by_run if isinstance(by_run, dict) else {}


def _store_settings(coordinator: Coordinator, name: str, changes: Mapping[str, Any]) -> None:
    from udjfl._files import write_atomic

    stored = {key: value for key, value in changes.items() if key != "resume"}
    by_run = {**_read_settings_by_run(coordinator), name: stored}
    write_atomic(coordinator.state / STORED_SETTINGS, json.dumps(by_run).encode())


def follow_run(coordinator: Coordinator, submitted: Submitted, rounds: int) -> None:
    """Show the rounds of a run until it ends; raise its failure."""
    from udjfl.deployment.control import FAILED
    from udjfl.training.follow import FollowedRun
    from udjfl.training.records import Progress

    run = FollowedRun(submitted.out)
    with show_progress(1, rounds) as on_progress, coordinator.control() as control:
        reached = -1
        while True:
            info = _ask_for_run(control, submitted.run_id)
            run.update()
            if run.reached != reached:
                reached = run.reached
                seed = int(run.settings.get("seed", 0))
                on_progress(Progress(submitted.name, seed, "training", reached, rounds))
            if info.is_finished:
                break
            time.sleep(PAUSE)
        if not info.is_completed:
            resume = resume_command(coordinator, submitted.name)
            end = f"{submitted.name} {info.state} after round {run.reached}"
            if info.outcome != FAILED:
                raise DeploymentError(f"{end}; {resume} continues it")
            reason = control.describe_failure(info)
            raise DeploymentError(f"{end}: {reason}\nOnce that is mended: {resume}")


def resume_command(coordinator: Coordinator, name: str) -> str:
    """Return the command that continues a run, in backticks."""
    return f"`udjfl flower run {as_argument(coordinator.folder)} --resume {name}`"


def _ask_for_run(control: Control, run_id: int) -> RunInfo:
    """Return the state of a run; a SuperLink that is started again gets time to answer."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return control.run(run_id)
        except DeploymentError:
            if time.monotonic() > deadline:
                raise
        time.sleep(PAUSE)
