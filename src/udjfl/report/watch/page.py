"""The live page: how far the runs are, and their curves so far."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from udjfl._ids import printable, sort_ids
from udjfl.errors import UdjflError
from udjfl.methods.recorded import build_recorded
from udjfl.report.html.curves import Curves, recorded_score
from udjfl.report.html.figure import name_method, without_checks
from udjfl.report.html.page import hash_source, make_environment, read_template
from udjfl.report.html.round_charts import round_figures
from udjfl.report.watch.progress import Snapshot
from udjfl.tasks import ACCURACY
from udjfl.training.follow import FollowedRun

MOST_DRAWN, MOST_FIGURES, MOST_LISTED, MOST_MISSED = 6, 3, 100, 10
ORDER = {"training": 0, "preparing": 1, "stopped": 2, "finished": 3}


@dataclass(frozen=True)
class ListedRun:
    """A line of the table of runs."""

    label: str
    seed: str
    progress: str
    status: str
    folder: str


@dataclass(frozen=True)
class Content:
    """Everything on the page; `every` is 0 on the last one, which is not loaded again."""

    folder: str
    every: float
    headline: str
    summary: str
    done: int
    total: int
    runs: list[ListedRun]
    more_runs: int
    sections: list[Any]
    footer: str


class LivePage:
    """Renders snapshots. The figures of a run are drawn again only if it went on."""

    def __init__(self) -> None:
        self._drawn: dict[tuple[Path, int], tuple[tuple[int, str], Any]] = {}

    def render(self, snapshot: Snapshot, every: float) -> str:
        """Return the page; with `every` 0 it does not load itself again."""
        scripts = [read_template(name) for name in ("page.js", "watch.js")]
        style = read_template("page.css")
        page: str = (
            make_environment()
            .get_template("watch.html.jinja")
            .render(
                content=self._make_content(snapshot, every),
                scripts=scripts,
                style=style,
                script_hashes=[hash_source(script) for script in scripts],
                style_hash=hash_source(style),
            )
        )
        return page

    def _make_content(self, snapshot: Snapshot, every: float) -> Content:
        newest = sorted(snapshot.runs, key=lambda run: (ORDER[run.status], -run.reached))
        ended = "All runs are finished." if snapshot.is_finished else "The watch has ended."
        return Content(
            folder=printable(str(snapshot.folder)),
            every=every,
            headline=describe_state(snapshot),
            summary=describe_progress(snapshot),
            done=snapshot.done,
            total=snapshot.total,
            runs=[_list_run(run, snapshot.folder) for run in newest[:MOST_LISTED]],
            more_runs=max(0, len(newest) - MOST_LISTED),
            sections=[
                self._draw(run, index) for index, run in enumerate(choose_drawn(newest), start=1)
            ],
            footer="Made by udjfl from the folders of these runs alone."
            + ("" if every else f" {ended} This page is not updated any more."),
        )

    def _draw(self, run: FollowedRun, index: int) -> Any:
        from markupsafe import Markup

        key, version = (run.path, index), (run.reached, run.status)
        if key not in self._drawn or self._drawn[key][0] != version:
            template = make_environment().get_template("watch_run.html.jinja")
            curves = curves_of(run)
            with without_checks():
                charts = round_figures(curves, index - 1, most=MOST_FIGURES)
            text = template.render(
                id=f"run-{index}",
                title=f"{curves.label}, seed {_seed(run)}",
                remarks=_remarks(run),
                charts=charts,
            )
            self._drawn[key] = version, Markup(text)
        return self._drawn[key][1]


def choose_drawn(runs: list[FollowedRun]) -> list[FollowedRun]:
    """Choose one run of each method, the one furthest in training; of few methods."""
    of_label: dict[str, FollowedRun] = {}
    for run in runs:
        if run.points:
            of_label.setdefault(label_of(run), run)
    return list(of_label.values())[:MOST_DRAWN]


def label_of(run: FollowedRun) -> str:
    """Return the short name of a run's method, as far as its settings tell."""
    settings = run.settings
    try:
        named = settings["method"]
        method = build_recorded(named, settings["params"], label=named)
        return name_method(method, settings["training"].get("service", "none"))
    except (UdjflError, KeyError, TypeError, ValueError, AttributeError):
        return printable(str(settings.get("method", run.path.name)))


def curves_of(run: FollowedRun) -> Curves:
    """Return the curves of one run."""
    of_clients: dict[str, Mapping[str, dict[int, float]]] = {
        metric: {client: points for client, points in by_client.items() if client is not None}
        for metric, by_client in run.points.items()
    }
    missed = {client: missed.rounds for client, missed in run.missed.items()}
    seed = run.settings.get("seed", 0)
    seeds = (seed if isinstance(seed, int) else 0,)
    try:
        score = recorded_score(run.settings)
    except (KeyError, TypeError, AttributeError):
        score = ACCURACY
    return Curves(label_of(run), run.rounds, run.reached, seeds, of_clients, {}, missed, score)


def describe_state(snapshot: Snapshot) -> str:
    """Return the state of all runs together in a few words."""
    statuses = {run.status for run in snapshot.runs}
    if snapshot.is_finished:
        return "Finished"
    if not statuses:
        return "No run here yet"
    if statuses & {"training", "preparing"}:
        return "Training" if "training" in statuses else "Preparing"
    return "Between two runs" if statuses == {"finished"} else "Stopped"


def describe_progress(snapshot: Snapshot) -> str:
    """Return how far the runs are, and how long they will take."""
    if not snapshot.runs:
        return "It will be shown as soon as it starts."
    n = len(snapshot.runs)
    text = f"{snapshot.done} of {snapshot.total} rounds in {n} run{'s' if n > 1 else ''}."
    if snapshot.is_finished:
        return text
    if describe_state(snapshot) == "Stopped":
        return f"{text} No process is writing; `udjfl resume` continues a run."
    if snapshot.seconds_left is None:
        return f"{text} How long it takes is not known yet."
    return f"{text} About {format_duration(snapshot.seconds_left)} left."


def format_duration(seconds: float) -> str:
    """Return a duration in its one or two largest units.

    >>> format_duration(3700)
    '1 h 2 min'
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes = round(whole / 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, rest = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {rest} min"
    return f"{hours // 24} days"


def _list_run(run: FollowedRun, folder: Path) -> ListedRun:
    inside = run.path.relative_to(folder)
    progress = f"{run.reached} of {run.rounds}" if run.rounds else str(run.reached)
    return ListedRun(label_of(run), _seed(run), progress, run.status, printable(str(inside)))


def _seed(run: FollowedRun) -> str:
    return printable(str(run.settings.get("seed", "?")))


def _remarks(run: FollowedRun) -> list[str]:
    """List the clients that missed rounds, and lines that could not be read."""
    remarks = []
    for client in sort_ids(run.missed)[:MOST_MISSED]:
        missed = run.missed[client]
        rounds = "1 round" if missed.rounds == 1 else f"{missed.rounds} rounds"
        reason = printable(missed.reason)
        remarks.append(f"{printable(client)} missed {rounds}, last round {missed.last}: {reason}")
    if len(run.missed) > MOST_MISSED:
        remarks.append(f"{len(run.missed) - MOST_MISSED} more clients missed rounds")
    if run.damaged:
        remarks.append(f"{run.damaged} lines of records.jsonl could not be read")
    return remarks
