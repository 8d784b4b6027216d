"""The frontier: what every point of the family does to the clients, beside other methods.

A point is an exponent p of the loss and a power gamma of the uncertainty, without a theory of its
own; the theories are points, too (docs/tuning.md has the table). All points, the theories with and
without budgets, and other methods are trained on the same splits and batches.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from udjfl._files import explain_os_errors, to_json, write_atomic
from udjfl._spec import names_code
from udjfl.errors import SettingsError, StorageError
from udjfl.methods import THEORIES, UDJ, FedAvg, Method
from udjfl.methods import method as build_method
from udjfl.methods.recorded import build_recorded
from udjfl.metrics import METRICS, compute_metrics
from udjfl.models import ModelChoice
from udjfl.search.folder import open_folder, open_to_read
from udjfl.search.point_runs import point_name, run_points
from udjfl.search.run_table import RUNS, Key, PointRun, RunTable
from udjfl.search.settings import FrontierSettings
from udjfl.search.stored import Kind, StoredFrontier, StoredPoint, check_stored
from udjfl.simulation.compare import choose_methods
from udjfl.simulation.simulate import DataChoice, load_and_warn
from udjfl.statistics import THEORY_METRIC, Summary, is_above, summarise
from udjfl.tasks import ACCURACY, ScoreKind
from udjfl.training.file_names import find_advice
from udjfl.training.folder_check import refuse_damage
from udjfl.training.records import OnProgress
from udjfl.training.run_folder import RunFolder
from udjfl.uncertainty.alone import task_of
from udjfl.verdicts import MARGIN, left_out_reason

DESCRIPTION = "frontier.json"
# Two trade-offs, each with the axis across first.
FRONTS = {
    "clients": ("accuracy_least_uncertain", "accuracy_most_uncertain"),
    "shared": ("std", "global_accuracy"),
}
MAPPED = tuple(THEORY_METRIC.values())  # the measures of the four theories


@dataclass(frozen=True)
class Point:
    """One method, and where it is in the family.

    kind      reference (FedAvg), theory (as the paper has it), grid, budget, or another method
    exponent  power of the loss; None for a rule without a common one
    gamma     power of the uncertainty; None for a rule without one
    """

    name: str
    label: str
    kind: Kind
    method: Method
    theory: str | None = None
    exponent: float | None = None
    gamma: float | None = None
    budget: float | None = None

    @classmethod
    def of(cls, method: Method, kind: Kind) -> Point:
        """Place a method."""
        label = method.label
        place: dict[str, Any] = {}
        if isinstance(method, UDJ):
            number = method.beta if isinstance(method.beta, int | float) else None
            place = {
                "theory": method.theory,
                "exponent": None if number is None else method.exponent(float(number)),
                "gamma": method.gamma,
                "budget": method.budget,
            }
        if kind == "grid":
            label = f"p = {place['exponent']:g}, gamma = {place['gamma']:g}"
        return cls(point_name(method), label, kind, method, **place)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        places = ("name", "label", "kind", "theory", "exponent", "gamma", "budget")
        method = {"method": self.method.spec_name, "params": self.method.params}
        return {key: getattr(self, key) for key in places} | method


def make_points(settings: FrontierSettings) -> list[Point]:
    """Return FedAvg, the theories, the rest of the grid, the budgets, and the other methods."""
    points = [Point.of(FedAvg(), "reference")]
    points += [Point.of(build_method(theory), "theory") for theory in THEORIES]
    places = {(point.exponent, point.gamma) for point in points}
    points += [
        Point.of(UDJ(beta=exponent, gamma=gamma), "grid")
        for exponent in settings.exponents
        for gamma in settings.gammas
        if (exponent, gamma) not in places
    ]
    points += [
        Point.of(build_method(theory, budget=budget), "budget")
        for theory in THEORIES
        for budget in settings.budgets
    ]
    others = choose_methods(settings) if settings.methods else []
    points += [Point.of(method, "method") for method in others]
    by_name = {point.name: point for point in reversed(points)}  # of equals, the first
    return list({point.name: by_name[point.name] for point in points}.values())


@dataclass(frozen=True)
class Frontier:
    """Points and their runs on the same seeds.

    settings  of the search, by their flat names
    points    FedAvg first
    runs      the numbers of each point's name and seed
    margin    points of mean accuracy below FedAvg's beyond which a point is on no front
    score     what is judged: accuracies and metrics are of it
    """

    data: str
    clients: tuple[str, ...]
    seeds: tuple[int, ...]
    settings: Mapping[str, Any]
    points: tuple[Point, ...]
    runs: Mapping[Key, PointRun]
    n_classes: int | None = None
    margin: float = MARGIN
    score: ScoreKind = ACCURACY

    @functools.cached_property
    def metrics(self) -> dict[str, dict[str, Summary]]:
        """Every metric over seeds, by the point's name and the metric's key."""
        return {point.name: self._summarise(point) for point in self.points}

    def _summarise(self, point: Point) -> dict[str, Summary]:
        """Summarise the metrics over the seeds that both the point and FedAvg finished."""
        by_seed: list[dict[str, float | None]] = []
        for seed in self.seeds:
            run, reference = self._finished(point, seed), self._finished(self.points[0], seed)
            if run is None or reference is None:
                by_seed.append({})
            else:
                by_seed.append(compute_metrics(run.outcome(reference, self.score))[0])
        return {key: summarise([values.get(key) for values in by_seed]) for key in METRICS}

    def _run(self, point: Point, seed: int) -> PointRun | None:
        return self.runs.get((point.name, seed))

    def _finished(self, point: Point, seed: int) -> PointRun | None:
        run = self._run(point, seed)
        return None if run is None or run.failed is not None else run

    def client_scores(self, point: Point) -> dict[str, Summary]:
        """Return each client's accuracy over seeds."""
        runs = [self._run(point, seed) for seed in self.seeds]
        return {
            client: summarise([r.accuracies[i] if r and r.accuracies else None for r in runs])
            for i, client in enumerate(self.clients)
        }

    @functools.cached_property
    def left_out(self) -> dict[str, str]:
        """The points that are on no front, and why: untrained, or below FedAvg by too much."""
        reasons = {}
        means = {name: own["mean_accuracy"].mean for name, own in self.metrics.items()}
        before, score = means[self.points[0].name], self.score
        factor = score.better * (1.0 if before is None else score.points_factor([before]))
        points = {name: None if mean is None else factor * mean for name, mean in means.items()}
        reference = points[self.points[0].name]
        n_classes = self.n_classes if score.is_share else None
        for point in self.points:
            budget = self.margin if point.budget is None else point.budget
            reason = left_out_reason(points[point.name], reference, budget, n_classes, score)
            if points[point.name] is None:
                who = "it" if reference is not None else "FedAvg"
                reason = f"{who} finished on no seed"
            if reason is not None:
                reasons[point.name] = reason
        return reasons

    def front(self, key: str) -> list[Point]:
        """Return the points of a trade-off of `FRONTS` that no other point beats on both axes.

        They are ordered along the first axis. Points that are left out are on no front. Means that
        differ by rounding are equal.
        """
        axes = FRONTS[key]
        complete = [
            point
            for point in self.points
            if point.name not in self.left_out
            and all(self.metrics[point.name][axis].mean is not None for axis in axes)
        ]
        best = [
            point
            for point in complete
            if not any(self._beats(other, point, axes) for other in complete)
        ]
        return sorted(best, key=lambda point: self.metrics[point.name][axes[0]].mean or 0.0)

    def _beats(self, one: Point, other: Point, axes: Sequence[str]) -> bool:
        """Tell if the first is not below on any axis, and above on one, up to rounding."""
        pairs = [
            (self.metrics[one.name][axis], self.metrics[other.name][axis], METRICS[axis])
            for axis in axes
        ]
        better = self.score.better
        return any(is_above(a, b, metric.better_for(better)) for a, b, metric in pairs) and not any(
            is_above(b, a, metric.better_for(better)) for a, b, metric in pairs
        )

    def map(self, key: str) -> dict[tuple[float, float], float]:
        """Return the mean of a metric by exponent and gamma."""
        return {
            (point.exponent, point.gamma): mean
            for point in self.points
            if point.exponent is not None and point.gamma is not None
            if (mean := self.metrics[point.name][key].mean) is not None
        }

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return {
            "data": self.data,
            "clients": list(self.clients),
            "seeds": list(self.seeds),
            "n_classes": self.n_classes,
            "margin": self.margin,
            **({} if self.score == ACCURACY else {"score": self.score.as_dict()}),
            "settings": dict(self.settings),
            "points": [self._point_to_dict(point) for point in self.points],
            "fronts": {key: [point.name for point in self.front(key)] for key in FRONTS},
        }

    def _point_to_dict(self, point: Point) -> dict[str, Any]:
        metrics = {key: _interval(s) for key, s in self.metrics[point.name].items() if s.n}
        runs = {seed: self._run(point, seed) for seed in self.seeds}
        return {
            **point.as_dict(),
            "metrics": metrics,
            "client_scores": {c: _interval(s) for c, s in self.client_scores(point).items()},
            "failed": {str(seed): run.failed for seed, run in runs.items() if run and run.failed},
            "left_out": self.left_out.get(point.name),
        }

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write `runs.csv` and `frontier.json` to a folder."""
        path = Path(folder)
        with explain_os_errors(path):
            path.mkdir(parents=True, exist_ok=True)
        if RunFolder(path).holds_a_run:
            raise StorageError(f"{path} holds a run or a search; choose another folder")
        for name, content in self._contents().items():
            write_atomic(path / name, content)

    def _contents(self) -> dict[str, bytes]:
        table = RunTable(self.clients)
        table.add(self.runs)
        return {RUNS: table.to_csv(), DESCRIPTION: to_json(self.as_dict())}

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Frontier:
        """Read what `save` or `trace_frontier` wrote."""
        opened = open_to_read(folder)
        path = opened.path / DESCRIPTION
        stored = opened.read_json(DESCRIPTION)
        if stored is None:
            raise StorageError(
                f"{folder} has no {DESCRIPTION}; make one with `udjfl frontier --out {folder}`"
            )
        refuse_damage(opened)
        try:
            kept = check_stored(StoredFrontier, stored)
            points = tuple(_read_point(entry) for entry in kept.points)
            table = RunTable(kept.clients, opened)
            seeds, settings = tuple(kept.seeds), kept.settings.model_dump()
            return cls(
                *(kept.data, table.clients, seeds, settings, points, table.runs),
                n_classes=kept.n_classes,
                margin=kept.margin,
                score=ACCURACY if kept.score is None else ScoreKind.from_dict(kept.score),
            )
        except StorageError:
            raise
        except (ValueError, KeyError, TypeError) as error:
            raise StorageError(f"{path} is damaged ({error}); {find_advice(DESCRIPTION)}") from None


def _interval(summary: Summary) -> dict[str, Any]:
    return {key: value for key, value in asdict(summary).items() if key != "values"}


def _read_point(kept: StoredPoint) -> Point:
    """Place a point as a file describes it; code that the file names is not imported."""
    try:
        method = build_recorded(kept.method, kept.params, label=kept.label)
    except SettingsError as error:
        raise ValueError(error) from None
    if names_code(kept.method):
        return Point(kept.name, kept.label, kept.kind, method)
    return Point.of(method, kept.kind)


def trace_frontier(
    settings: FrontierSettings,
    *,
    data: DataChoice | None = None,
    model: ModelChoice | None = None,
    out: str | os.PathLike[str] | None = None,
    on_progress: OnProgress | None = None,
) -> Frontier:
    """Train all points on all seeds; with a folder, those that it has are not trained again.

    `data` and `model` replace those that the settings name.
    """
    points = make_points(settings)
    chosen = settings.federation.data if data is None else data
    first = load_and_warn(chosen, settings.federation, settings.seeds[0])
    training = settings.training.model_copy(update={"eval_every": settings.training.rounds})
    flat = settings.to_flat()
    from_python = data is not None or model is not None
    folder = (
        open_folder(out, "frontier", flat, first.fingerprint, from_python)
        if out is not None
        else None
    )
    try:
        score = task_of(first, training).score.kind
        table = RunTable(first.ids, folder, score=score)
        run_points(
            settings.model_copy(update={"training": training}),
            [point.method for point in points],
            table,
            first,
            data=chosen,
            model=model,
            on_progress=on_progress,
        )
        table.sort([point.name for point in points], settings.seeds)
        frontier = Frontier(
            first.name,
            first.ids,
            tuple(settings.seeds),
            flat,
            tuple(points),
            table.runs,
            first.n_classes,
            score=score,
        )
        if folder:
            folder.write_files(frontier._contents())
    finally:
        if folder:
            folder.unlock()
    return frontier
