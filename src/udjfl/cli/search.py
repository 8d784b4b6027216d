"""`udjfl frontier` and `udjfl tune`: many points of the family, and the choice of one."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from udjfl.cli.command import CommandGroup
from udjfl.cli.options import AsJson, settings_command
from udjfl.cli.progress import show_progress
from udjfl.report.output import show
from udjfl.search.settings import FrontierSettings
from udjfl.settings import validate_settings

Out = Annotated[
    Path | None,
    typer.Option(
        "--out",
        metavar="FOLDER",
        help="Folder for the runs and what came out; the same command again resumes there.",
    ),
]


def trace_frontier(settings: FrontierSettings, out: Out = None, json: AsJson = False) -> None:
    """Train a grid of the family and show what every point does to the clients.

    Shows the most against the least advantaged client, the shared test against the spread, each
    theory with and without a budget, other methods, and a map of each theory's measure. All points
    are trained on the same splits and batches.
    """
    from udjfl.engine import tune_allocator
    from udjfl.report.frontier_table import frontier_view
    from udjfl.search.frontier import make_points, trace_frontier

    tune_allocator()
    runs = len(make_points(settings)) * len(settings.seeds)
    # At the edge of the grid a client at the cap is normal, in hundreds of runs.
    with show_progress(runs, settings.training.rounds, warnings=False) as on_progress:
        frontier = trace_frontier(settings, out=out, on_progress=on_progress)
    show(frontier_view(frontier), frontier.as_dict(), json)
    if out:
        print(f"kept in {out}: frontier.json and runs.csv", file=sys.stderr)


def resume_search(stored: Mapping[str, Any], folder: Path, json: bool) -> bool:
    """Continue what was stopped if a search was; return whether it was one."""
    values = stored.get("frontier")
    if not isinstance(values, dict):
        return False
    chosen = {key: value for key, value in values.items() if key != "fingerprint"}
    trace_frontier(validate_settings(FrontierSettings, chosen), folder, json)
    return True


def add_commands(app: CommandGroup) -> None:
    """Add the commands of this file."""
    settings_command(app, "frontier", FrontierSettings)(trace_frontier)
