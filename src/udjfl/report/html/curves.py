"""Curves over rounds, read from the records of runs.

Records of long runs are large, so only some of the rounds are parsed, and of a method with many
seeds only the first few.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from udjfl._files import read_file
from udjfl.errors import UdjflError
from udjfl.report.html.figure import name_method
from udjfl.report.saved_runs import read_method
from udjfl.tasks import ACCURACY, ScoreKind
from udjfl.tasks.scores import R2
from udjfl.training.records import Record, parse_record
from udjfl.training.run_folder import RunFolder

MOST_SEEDS, MOST_POINTS = 5, 50
OPENING, ABSENCES = rb'\{"round": ', (b'"absent"', b'"excluded"')
# Metrics that a report draws; the others of a method are its own affair.
SHOWN = (
    *("test_accuracy", "test_loss", "score", "train_loss", "weight", "step_share"),
    *("step_norm", "price", "client_price", "violation", "capped", "absent", "excluded"),
)
Points = dict[int, float]  # by round


@dataclass(frozen=True)
class Curves:
    """One method over rounds, as the mean of a few seeds.

    rounds      how many the settings ask for
    reached     the last round with records
    seeds       the seeds that were read
    of_clients  metric -> client -> values by round
    of_server   metric -> values by round, of the whole round
    missed      client -> the number of rounds in which it was absent or excluded, over these seeds
    score       what `test_accuracy` and `score` are: accuracy, or R2 in a regression
    """

    label: str
    rounds: int
    reached: int
    seeds: tuple[int, ...]
    of_clients: Mapping[str, Mapping[str, Points]] = field(default_factory=dict)
    of_server: Mapping[str, Points] = field(default_factory=dict)
    missed: Mapping[str, int] = field(default_factory=dict)
    score: ScoreKind = ACCURACY


@dataclass(frozen=True)
class _Run:
    label: str
    seed: int
    rounds: int
    eval_every: int
    path: Path
    score: ScoreKind


def read_curves(folders: Sequence[Path]) -> tuple[Curves, ...]:
    """Read the curves of every method in these run folders; unfinished runs have some, too."""
    of_label: dict[str, list[_Run]] = {}
    for folder in folders:
        run = _open_run(folder)
        if run is not None:
            of_label.setdefault(run.label, []).append(run)
    curves = []
    for label, runs in of_label.items():
        first = sorted(runs, key=lambda run: run.seed)[:MOST_SEEDS]
        rounds = max(run.rounds for run in first)
        records = {run.seed: _read_records(run) for run in first}
        curves.append(make_curves(label, rounds, records, first[0].score))
    return tuple(curves)


def _open_run(path: Path) -> _Run | None:
    try:
        folder = RunFolder.open(path)
        settings = folder.read_settings("training", "method", "params", "seed")
        training = settings["training"]
        label = name_method(read_method(folder, settings), training.get("service", "none"))
        numbers = int(training["rounds"]), int(training.get("eval_every", 1))
        score = recorded_score(settings)
        return _Run(label, int(settings["seed"]), *numbers, folder.records.path, score)
    except (UdjflError, KeyError, TypeError, ValueError, AttributeError):
        return None  # listed among the problems of the report


def recorded_score(settings: Mapping[str, Any]) -> ScoreKind:
    """Return the score that a run records round by round; what is judged comes in the end."""
    clients = settings.get("federation", {}).get("clients", [])
    has_numbers = any("label_std" in client for client in clients[:1])
    is_regression = has_numbers or settings["training"].get("task") == "regression"
    return R2 if is_regression else ACCURACY


def make_curves(
    label: str,
    rounds: int,
    records: Mapping[int, Iterable[Record]],
    score: ScoreKind = ACCURACY,
) -> Curves:
    """Average the records of a method over seeds."""
    values: dict[tuple[str, str | None, int], list[float]] = {}
    missed: dict[str, int] = {}
    reached = 0
    for of_seed in records.values():
        for round, client, metric, value in of_seed:
            reached = max(reached, round)
            if metric in ("absent", "excluded"):
                missed[str(client)] = missed.get(str(client), 0) + 1
            elif metric in SHOWN and isinstance(value, (int, float)):
                values.setdefault((metric, client, round), []).append(float(value))
    of_clients: dict[str, dict[str, Points]] = {}
    of_server: dict[str, Points] = {}
    for (metric, client, round), numbers in values.items():
        mean = statistics.fmean(numbers)
        if client is None:
            of_server.setdefault(metric, {})[round] = mean
        else:
            of_clients.setdefault(metric, {}).setdefault(client, {})[round] = mean
    return Curves(
        label,
        rounds,
        reached,
        tuple(records),
        of_clients,
        of_server,
        missed,
        score,
    )


def _read_records(run: _Run) -> Iterable[Record]:
    """Yield the records of the rounds that are drawn, and every absence."""
    try:
        content = read_file(run.path)
    except OSError:
        return
    for line in find_lines(content, _choose_rounds(run.rounds, run.eval_every)):
        try:
            yield parse_record(line)
        except ValueError:
            continue  # a line that was being written, or is damaged


def find_lines(content: bytes, rounds: Iterable[int]) -> list[bytes]:
    """Return the lines of some rounds, and every absence, without parsing the others.

    One search over all lines: a long run has a million of them.
    """
    numbers = b"|".join(b"%d" % number for number in sorted(rounds))
    wanted = OPENING + b"(?:" + numbers + b"),.*"
    if any(word in content for word in ABSENCES):
        wanted += b"|.*(?:" + b"|".join(ABSENCES) + b").*"
    return re.findall(b"^(?:" + wanted + b")$", content, re.MULTILINE)


def _choose_rounds(rounds: int, eval_every: int) -> set[int]:
    """Choose evenly spaced rounds, evaluated ones if only some are; the first and last, too."""
    apart = math.ceil(rounds / MOST_POINTS)
    spacing = eval_every * math.ceil(apart / eval_every) if eval_every * 3 <= rounds else apart
    return {1, rounds, *range(spacing, rounds + 1, spacing)}
