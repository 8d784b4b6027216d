"""The commands. Thin: they turn flags into settings, call the package, and show what came back."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from udjfl.cli.data import app as data_commands
from udjfl.cli.options import (
    AsJson,
    Config,
    Out,
    Params,
    progress_shown,
    settings_of,
    warnings_shown,
    with_settings,
)
from udjfl.cli.paper import app as reproduce_commands
from udjfl.errors import SettingsError, StorageError
from udjfl.report.output import show
from udjfl.settings import CompareSettings, RunSettings, checked, training_part

# The one line of each command on the front page is in `udjfl.cli.main`, which imports this module only when one is called.
app = typer.Typer(rich_markup_mode=None, add_completion=False)
app.add_typer(data_commands, name="data")
app.add_typer(reproduce_commands, name="reproduce")


@app.command("run")
@with_settings(RunSettings)
def run_command(
    *,
    config: Config = None,
    param: Params = None,
    out: Out = None,
    json: AsJson = False,
    flags: dict[str, Any],
) -> None:
    """Train one method on one federation and show what it does to each client."""
    settings = settings_of(RunSettings, config, flags, param)
    _run(settings, out, resume=False, as_json=json)


@app.command("compare")
@with_settings(CompareSettings)
def compare_command(
    *,
    config: Config = None,
    param: Params = None,
    out: Out = None,
    json: AsJson = False,
    flags: dict[str, Any],
) -> None:
    """Train several methods on the same federations, seed by seed. FedAvg is always among them."""
    settings = settings_of(CompareSettings, config, flags, param)
    _compare(settings, out, resume=False, as_json=json)


@app.command("resume")
def resume_command(
    folder: Annotated[
        Path, typer.Argument(help="The folder given as --out to `udjfl run` or `udjfl compare`.")
    ],
    json: AsJson = False,
) -> None:
    """Go on with a run or a comparison that was stopped. The result is what it would have been without the stop."""
    from udjfl.training.run_folder import RunFolder

    kept_run = RunFolder.open(folder)
    about = kept_run.read_settings()
    if about.get("from_python"):
        raise SettingsError(
            f"{folder} was started from Python with data or methods of its own; call udjfl.compare(..., "
            f"out={str(folder)!r}, resume=True) with the same"
        )
    if "comparison" in about:
        if not isinstance(about["comparison"], dict):
            raise StorageError(
                f"{folder / 'settings.json'} is damaged; restore it, or start the comparison again elsewhere"
            )
        _compare(checked(CompareSettings, about["comparison"]), folder, resume=True, as_json=json)
    else:
        about = kept_run.read_settings("training", "origin", "method", "params")
        if about["origin"] is None:
            raise SettingsError(
                f"{folder} was started from Python with data of its own; call udjfl.simulate(..., out={str(folder)!r}, "
                "resume=True) with the same federation"
            )
        kept = {**about["training"], **about["origin"], "method": about["method"]}
        _run(
            checked(RunSettings, {**kept, "params": about["params"]}),
            folder,
            resume=True,
            as_json=json,
        )


@app.command("report")
def report_command(
    folders: Annotated[
        list[Path],
        typer.Argument(help="Folders of finished runs, or folders that have some below them."),
    ],
    json: AsJson = False,
) -> None:
    """Show finished runs again: one by itself; several side by side, if FedAvg is among them. Also runs on Flower."""
    from udjfl.report.comparison_table import comparison_view, result_view
    from udjfl.report.saved_runs import compared_runs, runs_below
    from udjfl.training.result import summary

    runs = runs_below(folders)
    if len(runs) == 1:
        show(result_view(runs[0]), summary(runs[0]), json)
    else:
        comparison = compared_runs(runs)
        show(comparison_view(comparison), comparison.as_dict(), json)


@app.command("methods")
def methods_command(
    name: Annotated[str | None, typer.Argument(help="Show one method with its parameters.")] = None,
    json: AsJson = False,
) -> None:
    """List the methods: whom they serve, how sure we are of them, their parameters."""
    from udjfl.report.methods import catalogue, catalogue_view, entry_view, find_entry

    if name is None:
        show(catalogue_view(), catalogue(), json)
    else:
        show(entry_view(find_entry(name)), find_entry(name), json)


def _run(settings: RunSettings, out: Path | None, *, resume: bool, as_json: bool) -> None:
    from udjfl.data import load
    from udjfl.methods import parse_method
    from udjfl.report.comparison_table import result_view
    from udjfl.simulation.simulate import run
    from udjfl.training.result import summary

    method = parse_method(settings.method, settings.params)
    training = training_part(settings)
    federation = load(
        settings.data, settings.clients, settings.partition, settings.seed, settings.data_root
    )
    with warnings_shown(), progress_shown(1, settings.rounds) as progress:
        result = run(
            federation,
            method,
            training,
            settings.seed,
            out=out,
            resume=resume,
            progress=lambda stage, done, total: progress(
                method.label, settings.seed, stage, done, total
            ),
        )
    show(result_view(result), {**summary(result), "folder": str(out) if out else None}, as_json)
    if out:
        print(f"kept in {out}", file=sys.stderr)


def _compare(settings: CompareSettings, out: Path | None, *, resume: bool, as_json: bool) -> None:
    from udjfl.report.comparison_table import comparison_view
    from udjfl.simulation.compare import chosen_methods, compare

    runs = len(chosen_methods(settings)) * len(settings.seeds)
    with warnings_shown(), progress_shown(runs, settings.rounds) as progress:
        comparison = compare(
            settings,
            out=out,
            resume=resume,
            progress=lambda method, seed, stage, done, total: progress(
                method.label, seed, stage, done, total
            ),
        )
    show(comparison_view(comparison), comparison.as_dict(), as_json)
    if out:
        print(f"kept in {out}", file=sys.stderr)
