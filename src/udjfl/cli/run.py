"""The commands that train and report. They turn flags into settings and print what comes back.

The line of each command on the front page is in `udjfl.cli.app`.
"""

import sys
from pathlib import Path
from typing import Annotated

import typer

from udjfl.cli.command import CommandGroup, LightCommand
from udjfl.cli.data import app as data_commands
from udjfl.cli.options import AsJson, Out, complete_method, settings_command
from udjfl.cli.paper import app as reproduce_commands
from udjfl.cli.progress import show_progress, show_status
from udjfl.cli.search import add_commands, resume_search
from udjfl.errors import SettingsError, StorageError
from udjfl.report.output import show
from udjfl.settings import CompareSettings, RunSettings, validate_settings

app = CommandGroup()


@app.command("demo")
def demo(
    seeds: Annotated[
        int, typer.Option(min=2, help="Number of seeds; fewer are quicker and decide less.")
    ] = 30,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of federated training.")] = 50,
    jobs: Annotated[
        int, typer.Option(min=0, help="Processes that share the seeds (0: one per core).")
    ] = 0,
    out: Out = None,
    json: AsJson = False,
) -> None:
    """See what four theories of justice do to five clients, each within a budget of 2 points.

    Five scanners of falling quality read handwritten digits and train one model together. Shows
    what each client has under FedAvg and alone, who gains and who pays under each theory, and what
    the paper's beta and gamma do.
    """
    from udjfl.report.demo_intro import introduction

    if not json:
        print(introduction(), flush=True)  # before anything that takes time to load
    from udjfl.engine import tune_allocator
    from udjfl.report.demo import demo_view
    from udjfl.simulation.compare import choose_methods, run_comparison
    from udjfl.simulation.demo import demo_settings

    tune_allocator()
    settings = demo_settings(seeds, rounds, jobs)
    methods = choose_methods(settings)
    with show_progress(len(methods) * seeds, rounds) as on_progress:
        comparison = run_comparison(
            settings, methods, out=out, on_progress=on_progress, by_name=True
        )
    show(demo_view(comparison), comparison.as_dict(), json)
    _print_folder(out)


@settings_command(app, "run", RunSettings)
def run(settings: RunSettings, out: Out = None, resume: bool = False, json: AsJson = False) -> None:
    """Train one method on one federation and show what it does to each client."""
    from udjfl.engine import tune_allocator
    from udjfl.methods import method as build_method
    from udjfl.report.comparison_table import result_view
    from udjfl.simulation.simulate import load_federation, run_method
    from udjfl.training.result import summary
    from udjfl.training.state import RunSpec

    tune_allocator()
    data, training = settings.federation, settings.training
    spec = RunSpec(build_method(settings.method, **settings.params), training, settings.seed)
    with show_status(f"loading {data.data}"):
        federation = load_federation(data.data, data, settings.seed)
    with show_progress(1, training.rounds) as on_progress:
        result = run_method(federation, spec, out=out, resume=resume, on_progress=on_progress)
    show(result_view(result), {**summary(result), "folder": str(out) if out else None}, json)
    _print_folder(out)


@settings_command(app, "compare", CompareSettings)
def compare(
    settings: CompareSettings, out: Out = None, resume: bool = False, json: AsJson = False
) -> None:
    """Train several methods on the same federations, seed by seed, and compare them.

    FedAvg is always among them, as the reference. To use all cores, raise --jobs if there are
    several seeds; --workers is for a single seed.
    """
    from udjfl.engine import tune_allocator
    from udjfl.report.comparison_table import comparison_view
    from udjfl.simulation.compare import choose_methods, run_comparison

    tune_allocator()
    methods = choose_methods(settings)
    with show_progress(len(methods) * len(settings.seeds), settings.training.rounds) as on_progress:
        comparison = run_comparison(
            settings, methods, out=out, resume=resume, on_progress=on_progress, by_name=True
        )
    show(comparison_view(comparison), comparison.as_dict(), json)
    _print_folder(out)


add_commands(app)


@app.command("resume")
def resume_command(
    folder: Annotated[
        Path, typer.Argument(help="The folder given as --out to the command that was stopped.")
    ],
    json: AsJson = False,
) -> None:
    """Continue a run, a comparison, a frontier or a search that was stopped.

    The result is the same as without the stop, to the last bit.
    """
    from udjfl.training.run_folder import RunFolder

    run_folder = RunFolder.open(folder)
    stored = run_folder.read_settings()
    if stored.get("from_python"):
        raise SettingsError(
            f"{folder} was started from Python with data or methods of its own; "
            f"call udjfl.compare(..., out={str(folder)!r}, resume=True) with the same"
        )
    if resume_search(stored, folder, json):
        return
    if "comparison" in stored:
        if not isinstance(stored["comparison"], dict):
            raise StorageError(
                f"{folder / 'settings.json'} is damaged; restore it, "
                "or start the comparison again in another folder"
            )
        compare(validate_settings(CompareSettings, stored["comparison"]), folder, True, json)
        return
    stored = run_folder.read_settings("training", "origin", "method", "params")
    if stored["origin"] is None:
        raise SettingsError(
            f"{folder} was started from Python with data of its own; "
            f"call udjfl.simulate(..., out={str(folder)!r}, resume=True) with the same federation"
        )
    named = {"method": stored["method"], "params": stored["params"]}
    settings = validate_settings(RunSettings, {**stored["training"], **stored["origin"], **named})
    run(settings, folder, True, json)


@app.command("report")
def report_command(
    folders: Annotated[
        list[Path],
        typer.Argument(
            help="Folders of finished runs, or folders that contain some at any depth.",
        ),
    ],
    json: AsJson = False,
) -> None:
    """Show finished runs: one by itself, or several as a comparison.

    A comparison needs a run of FedAvg. Runs on Flower can be shown too.
    """
    from udjfl.report.comparison_table import comparison_view, result_view
    from udjfl.report.saved_runs import compare_runs, find_runs
    from udjfl.training.result import summary

    runs = find_runs(folders)
    if len(runs) == 1:
        show(result_view(runs[0]), summary(runs[0]), json)
    else:
        comparison = compare_runs(runs)
        show(comparison_view(comparison), comparison.as_dict(), json)


@app.command("methods", cls=LightCommand)
def methods_command(
    name: Annotated[
        str | None,
        typer.Argument(help="A method to describe in full.", autocompletion=complete_method),
    ] = None,
    json: AsJson = False,
) -> None:
    """List the methods: their theories of justice, grades, parameters and papers."""
    from udjfl.report.methods import catalogue, catalogue_view, entry_view, find_entry

    if name is None:
        entries = catalogue()
        show(catalogue_view(entries), entries, json)
    else:
        entry = find_entry(name)
        show(entry_view(entry), entry, json)


app.add_typer(data_commands, name="data")
app.add_typer(reproduce_commands, name="reproduce")


def _print_folder(out: Path | None) -> None:
    if out:
        print(f"kept in {out}", file=sys.stderr)
