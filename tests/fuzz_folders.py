"""Readers of the folders of runs and searches."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from fuzz_damage import change_dict
from fuzz_reader import FolderReader, Reader, of_json, save_to_files


def make_run_reader() -> Reader:
    """Return a reader of a run folder in which anything may be written.

    It is read as `udjfl report` does.
    """
    from small_runs import make_federation, make_older

    import udjfl
    from udjfl.report.saved_runs import compare_runs, read_run

    def save(folder: Path) -> None:
        federation = make_federation(n_clients=2, n=10, classes=2)
        how: dict[str, Any] = {"model": "logistic", "rounds": 1, "uncertainty_epochs": 1}
        udjfl.simulate(federation, "fedavg", out=folder, **how)
        make_older(folder)

    files = save_to_files(save)
    valid = {name: json.loads(text) for name, text in files.items() if name.endswith(".json")}
    read_folder = FolderReader(lambda path: compare_runs([read_run(path)]).as_dict(), files)

    def read(documents: Any, folder: Path) -> object:
        # One that is the valid one is not encoded again.
        changed = {
            name: json.dumps(documents.get(name)).encode()
            for name in valid
            if documents.get(name) is not valid[name]
        }
        return read_folder(changed, folder)

    return Reader(valid, read, change=change_dict)


def make_small_frontier() -> Any:
    """Return FedAvg, a point of the grid and a budget, which failed on the last seed."""
    from frontier_cases import make_frontier

    from udjfl.search.run_table import PointRun

    full = make_frontier()
    points = tuple(point for point in full.points if point.kind in ("reference", "grid", "budget"))
    points = (points[0], *points[-2:])
    names = [point.name for point in points]
    runs = {key: run for key, run in full.runs.items() if key[0] in names}
    runs[names[-1], full.seeds[-1]] = PointRun(failed="the loss is NaN")
    return replace(full, points=points, runs=runs)


@functools.cache
def make_frontier_folder() -> FolderReader:
    """Return a reader of the folder of a frontier, which then shows it."""
    from udjfl.report.frontier_table import frontier_view
    from udjfl.search.frontier import Frontier

    return FolderReader(
        lambda folder: frontier_view(Frontier.load(folder)),
        save_to_files(make_small_frontier().save),
    )


def make_frontier_reader() -> Reader:
    read = make_frontier_folder()
    valid = json.loads(read.files["frontier.json"])
    for point in valid["points"]:  # one metric of many, all of which are computed again
        point["metrics"] = {"std": point["metrics"]["std"]}
    return Reader(valid, read.of_json("frontier.json"), change=change_dict)


def make_runs_reader() -> Reader:
    read = make_frontier_folder()
    return Reader(read.files["runs.csv"], read.of_bytes("runs.csv"))


def make_choice_reader() -> Reader:
    """Return a reader of the choice of a search, which then shows it."""
    from udjfl.report.tune_table import choice_view
    from udjfl.search.tune import HeldOutChoice

    score = {
        **{"label": "UDJ-FL", "method": "udj", "params": {"theory": "rawls"}, "measure": 1.0},
        **{"measure_by_seed": [1.0, 2.0], "mean_accuracy": -0.5, "beneficiaries": 0.5},
        **{"shared": None, "clients": {"a": 50.0, "b": 75.0}, "broken": {}, "failed": None},
        "near_budget": False,
    }
    choice = {
        **{"method": "UDJ-FL", "theory": "rawls", "budget": 2.0, "floor": {"a": 40.0}},
        **{"chosen": score, "default": score, "neighbours": [score]},
        **{"rungs": [{"rounds": 2, "scores": [score, score]}], "defaults": ["udj"]},
        **{"cost": 4.0, "grid_cost": 9.0},
    }

    def read(path: Path) -> object:
        return choice_view(HeldOutChoice.load(path.parent), path.parent)

    return Reader(choice, of_json(read, "choice.json"), change=change_dict)


READERS: dict[str, Callable[[], Reader]] = {
    "folder": make_run_reader,
    "frontier": make_frontier_reader,
    "runs": make_runs_reader,
    "choice": make_choice_reader,
}
