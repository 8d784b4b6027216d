"""`udjfl frontier` and `udjfl tune`: many points of the family, and the choice of one."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from udjfl._files import inner_folder
from udjfl.cli.options import AsJson
from udjfl.cli.progress import show_progress
from udjfl.cli.wrapping import print_wrapped
from udjfl.errors import SettingsError
from udjfl.report.output import show, to_json
from udjfl.search.settings import FrontierSettings, TuneSettings
from udjfl.settings import CompareSettings, validate_settings

if TYPE_CHECKING:
    from udjfl.search.frontier import Frontier

Out = Annotated[
    Path | None,
    typer.Option(
        "--out",
        metavar="FOLDER",
        help="Folder for the runs and what came out; the same command again resumes there.",
    ),
]
Tuned = Annotated[
    bool,
    typer.Option(
        "--tuned",
        help="First choose each method's parameters on held-out data, by the search of `udjfl "
        "tune`; --out keeps the searches in its folder tuned.",
    ),
]


def trace_frontier(settings: FrontierSettings, out: Out = None, json: AsJson = False) -> None:
    """Train a grid of the family and show what every point does to the clients.

    Shows the most against the least advantaged client, global accuracy against the spread, each
    theory with and without a budget, other methods, and a map of each theory's measure. All points
    are trained on the same splits and batches.
    """
    from udjfl.engine import tune_allocator
    from udjfl.report.frontier_table import frontier_view
    from udjfl.search.frontier import make_points, trace_frontier

    tune_allocator()
    runs = len(make_points(settings)) * len(settings.seeds)
    # At the edge of the grid a client at the cap is normal, in hundreds of runs.
    with show_progress(runs, settings.training.rounds, warnings="data") as on_progress:
        frontier = trace_frontier(settings, out=out, on_progress=on_progress)
    show(frontier_view(frontier), frontier.as_dict(), json)
    if out:
        drawn = _draw(frontier, out)
        print_wrapped(f"kept in `{out}`: frontier.json, runs.csv{drawn}")


def _draw(frontier: Frontier, out: Path) -> str:
    """Draw the figures as PNG and SVG, and say so, or say what would draw them."""
    from udjfl.report.html.figures import COLUMN_WIDTHS, draw_figures
    from udjfl.report.html.frontier_charts import frontier_figures
    from udjfl.search.folder import add_files

    try:
        figures = frontier_figures(frontier, COLUMN_WIDTHS[2])
        contents = draw_figures(figures, ("png", "svg"), columns=2)
    except SettingsError as error:  # the extra is not installed
        return f" (no figures: {error})"
    add_files(out, contents)
    return ", figures as .png and .svg"


def tune(settings: TuneSettings, out: Out = None, json: AsJson = False) -> None:
    """Choose the best beta, gamma, step rule and budget for a theory, then test the choice.

    The choice uses data held out of the clients' train parts; test data are used once, at the end.
    Writes tuned.toml, which `udjfl run --config` takes, to the folder.
    """
    from udjfl.engine import tune_allocator
    from udjfl.report.tune_table import tune_view
    from udjfl.search.folder import add_files
    from udjfl.search.tune import tune
    from udjfl.search.tuned_methods import tuned_config

    tune_allocator()
    runs = round(settings.cost) * len(settings.seeds)
    with show_progress(runs, settings.training.rounds, warnings="data") as on_progress:
        tuned = tune(settings, out=out, on_progress=on_progress)
    config = tuned_config(settings, tuned.choice.chosen.candidate.method)
    if out:
        document = to_json(tuned.as_dict())
        add_files(out, {"tuned.toml": config.encode(), "tune.json": document.encode()})
    show(tune_view(tuned), {**tuned.as_dict(), "config": config}, json)
    if out:
        print_wrapped(f"kept in `{out}`; train the chosen point with:")
        print(f"udjfl run --config {shlex.quote(str(out / 'tuned.toml'))}", file=sys.stderr)


def tune_first(settings: CompareSettings, out: Path | None) -> CompareSettings:
    """Return settings of a comparison with the parameters of its methods chosen."""
    from udjfl.search.tuned_methods import to_spec, tune_methods
    from udjfl.simulation.compare import choose_methods

    methods = choose_methods(settings)
    folder = inner_folder(out, "tuned") if out else None
    # Until the first event, which tells how much there is.
    runs = (len(methods) - 1) * len(settings.seeds)
    with show_progress(runs, settings.training.rounds, warnings="none") as on_progress:
        tuned = tune_methods(settings, methods, out=folder, on_progress=on_progress)
    specs = [to_spec(method) for method in tuned]
    return settings.model_copy(update={"methods": specs, "params": {}})


def resume_search(stored: Mapping[str, Any], folder: Path, json: bool) -> bool:
    """Continue what was stopped if a search was; return whether it was one."""
    given = stored.get("frontier", stored.get("tune"))
    if not isinstance(given, dict):
        return False
    chosen = {key: value for key, value in given.items() if key not in ("fingerprint", "searched")}
    if "frontier" in stored:
        trace_frontier(validate_settings(FrontierSettings, chosen), folder, json)
    else:
        tune(validate_settings(TuneSettings, chosen), folder, json)
    return True


def show_search(folder: Path, json: bool) -> bool:
    """Show the frontier or the tuning in a folder, if it holds one; return whether it does."""
    from udjfl.report.frontier_table import frontier_view
    from udjfl.report.tune_table import choice_view, tune_view
    from udjfl.report.tuned_runs import read_tuned
    from udjfl.search.frontier import DESCRIPTION, Frontier
    from udjfl.search.tune import CHOICE

    if (folder / DESCRIPTION).exists():
        frontier = Frontier.load(folder)
        show(frontier_view(frontier), frontier.as_dict(), json)
        return True
    if not (folder / CHOICE).exists():
        return False
    choice, tuned = read_tuned(folder)
    if tuned is None:
        show(choice_view(choice, folder), choice.as_dict(), json)
    else:
        show(tune_view(tuned), tuned.as_dict(), json)
    return True
