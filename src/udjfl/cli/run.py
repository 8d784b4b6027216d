"""The commands that train and report. They turn flags into settings and print what comes back.

The line of each command on the front page is in `udjfl.cli.app`.
"""

import contextlib
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from udjfl._spec import names_code
from udjfl.cli.choose import choose_command
from udjfl.cli.command import CommandGroup, LightCommand
from udjfl.cli.data import app as data_commands
from udjfl.cli.options import (
    AsCsv,
    AsJson,
    AsLatex,
    AsMarkdown,
    Metrics,
    Out,
    complete_method,
    settings_command,
)
from udjfl.cli.paper import app as reproduce_commands
from udjfl.cli.progress import collect_warnings, show_progress, show_status
from udjfl.cli.results import export_command, predict_command
from udjfl.cli.search import Tuned, add_commands, resume_search, tune_first
from udjfl.errors import SettingsError, StorageError
from udjfl.report.output import show
from udjfl.settings import CompareSettings, RunSettings, validate_settings

if TYPE_CHECKING:
    from udjfl.simulation.comparison import Comparison

app = CommandGroup()


Folders = Annotated[
    list[Path],
    typer.Argument(help="Folders of runs, or folders that contain some at any depth."),
]


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
    html: Annotated[
        Path | None,
        typer.Option("--html", metavar="FILE", help="Write a page with figures, too."),
    ] = None,
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
    with contextlib.ExitStack() as stack:
        folder = out
        if html is not None and out is None:  # the page is made from a folder
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "demo"
        with show_progress(len(methods) * seeds, rounds) as on_progress:
            comparison = run_comparison(
                settings, methods, out=folder, on_progress=on_progress, by_name=True
            )
        show(demo_view(comparison), comparison.as_dict(), json)
        if html is not None and folder is not None:
            write_page([folder], html)
    _print_folder(out)


app.command("choose", cls=LightCommand)(choose_command)


@settings_command(app, "run", RunSettings)
def run(
    settings: RunSettings,
    out: Out = None,
    resume: bool = False,
    json: AsJson = False,
    metrics: Metrics = None,
) -> None:
    """Train one method on one federation and show what it does to each client."""
    from udjfl.data.problems import log_problems
    from udjfl.engine import tune_allocator
    from udjfl.methods import method as build_method
    from udjfl.metrics import choose_metrics
    from udjfl.report.comparison_table import result_view
    from udjfl.simulation.simulate import load_federation, run_method
    from udjfl.training.result import summary
    from udjfl.training.state import RunSpec

    tune_allocator()
    columns = choose_metrics(metrics)
    data, training = settings.federation, settings.training
    spec = RunSpec(build_method(settings.method, **settings.params), training, settings.seed)
    with collect_warnings(), show_status(f"loading {data.data}"):
        federation = load_federation(data.data, data, settings.seed)
        log_problems(federation)
    with show_progress(1, training.rounds) as on_progress:
        result = run_method(federation, spec, out=out, resume=resume, on_progress=on_progress)
    view = result_view(result, columns)
    show(view, {**summary(result), "folder": str(out) if out else None}, json)
    _print_folder(out)


@settings_command(app, "compare", CompareSettings)
def compare(
    settings: CompareSettings,
    out: Out = None,
    tuned: Tuned = False,
    resume: bool = False,
    json: AsJson = False,
    metrics: Metrics = None,
    csv: AsCsv = False,
    markdown: AsMarkdown = False,
    latex: AsLatex = False,
) -> None:
    """Train several methods on the same federations, seed by seed, and compare them.

    FedAvg is always among them, as the reference. To use all cores, raise --jobs if there are
    several seeds; --workers is for a single seed.
    """
    from udjfl.engine import tune_allocator
    from udjfl.metrics import choose_metrics
    from udjfl.report.plain_results import chosen_format
    from udjfl.simulation.compare import choose_methods, run_comparison

    tune_allocator()
    format = chosen_format(json=json, csv=csv, markdown=markdown, latex=latex)
    columns = choose_metrics(metrics)
    if tuned:
        settings = tune_first(settings, out)
    methods = choose_methods(settings)
    with show_progress(len(methods) * len(settings.seeds), settings.training.rounds) as on_progress:
        comparison = run_comparison(
            settings, methods, out=out, resume=resume, on_progress=on_progress, by_name=True
        )
    _show_comparison(replace(comparison, columns=columns), format)
    _print_folder(out)


add_commands(app)


@app.command("resume")
def resume_command(
    folder: Annotated[
        Path, typer.Argument(help="The folder given as --out to the command that was stopped.")
    ],
    trust_model: Annotated[
        bool,
        typer.Option(
            "--trust-model",
            help="Import what the folder names as package.module:Name: a model, methods, data.",
        ),
    ] = False,
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
    for kind in ("frontier", "tune"):
        if not trust_model and isinstance(stored.get(kind), dict):
            _refuse_code(folder, stored[kind])
    if resume_search(stored, folder, json):
        return
    if "comparison" in stored:
        if not isinstance(stored["comparison"], dict):
            raise StorageError(
                f"{folder / 'settings.json'} is damaged; restore it, "
                "or start the comparison again in another folder"
            )
        if not trust_model:
            _refuse_code(folder, stored["comparison"])
        settings = validate_settings(CompareSettings, stored["comparison"])
        compare(settings, folder, resume=True, json=json)
        return
    stored = run_folder.read_settings("training", "origin", "method", "params")
    if stored["origin"] is None:
        raise SettingsError(
            f"{folder} was started from Python with data of its own; "
            f"call udjfl.simulate(..., out={str(folder)!r}, resume=True) with the same federation"
        )
    named = {"method": stored["method"], "params": stored["params"]}
    values = {**stored["training"], **stored["origin"], **named}
    if not trust_model:
        _refuse_code(folder, values)
    run(validate_settings(RunSettings, values), folder, True, json)


@app.command("watch")
def watch_command(
    folder: Annotated[
        Path, typer.Argument(help="Folder of a run or comparison that goes on, or of several.")
    ],
    html: Annotated[
        Path | None,
        typer.Option("--html", metavar="FILE", help="Write the page to this file; no server."),
    ] = None,
    open_it: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    every: Annotated[
        float, typer.Option(min=0.5, max=3600, help="Seconds between two looks.")
    ] = 5.0,
) -> None:
    """Show runs while they go on: rounds, time left, curves of each client, absences.

    The page is offered on this machine only, at the address that is printed. Ends when all runs
    below the folder are finished; Ctrl-C ends it earlier. The runs are not disturbed: their files
    are read. Runs on Flower can be watched too.
    """
    from udjfl.report.watch.page import describe_progress, describe_state
    from udjfl.report.watch.progress import Watcher
    from udjfl.report.watch.server import LiveServer, watch_in_file

    watcher = Watcher(folder)
    if html is not None:
        print(f"writing {html} every {every:g} seconds", flush=True)
        address = html.resolve().as_uri()
        snapshot = watch_in_file(
            watcher, html, every, on_written=lambda: typer.launch(address) if open_it else None
        )
    else:
        with LiveServer(watcher, every) as server:
            print(server.address, flush=True)
            if open_it:
                typer.launch(server.address)
            snapshot = server.wait_until_finished()
    print(f"{describe_state(snapshot).lower()}: {describe_progress(snapshot)}")


def _refuse_code(folder: Path, settings: Mapping[str, Any]) -> None:
    """Refuse to import what the settings in a folder name, which another person may have written.

    Names without a colon are looked up among what is built in or installed.
    """
    names = [settings.get(key) for key in ("model", "method", "data")]
    given = settings.get("methods")
    names += given if isinstance(given, list) else []
    for name in names:
        if isinstance(name, str) and names_code(name):
            raise SettingsError(
                f"{folder} names code to import: {name}. If you trust it, add --trust-model"
            )


@app.command("report")
def report_command(
    folders: Folders,
    html: Annotated[
        Path | None,
        typer.Option("--html", metavar="FILE", help="Write a page with figures instead of tables."),
    ] = None,
    open_it: Annotated[
        bool, typer.Option("--open", help="Open that page in a browser (default: report.html).")
    ] = False,
    json: AsJson = False,
    metrics: Metrics = None,
    csv: AsCsv = False,
    markdown: AsMarkdown = False,
    latex: AsLatex = False,
) -> None:
    """Show finished runs: one by itself, or several as a comparison.

    A comparison needs a run of FedAvg. Runs on Flower can be shown too. With --html the report is
    one file with figures, which needs no network: what each choice does to each client, in words
    and pictures. It is made from what can be read, and says what is missing.
    """
    if html is not None or open_it:
        write_page(folders, html or Path("report.html"), open_it)
        if not (json or csv or markdown or latex):
            return
    from udjfl.metrics import choose_metrics
    from udjfl.report.comparison_table import result_view
    from udjfl.report.plain_results import chosen_format, format_result
    from udjfl.report.saved_runs import compare_runs, find_runs
    from udjfl.training.result import summary

    format = chosen_format(json=json, csv=csv, markdown=markdown, latex=latex)
    columns = choose_metrics(metrics)
    runs = find_runs(folders)
    if len(runs) > 1:
        _show_comparison(replace(compare_runs(runs), columns=columns), format)
    elif format in (None, "json"):
        show(result_view(runs[0], columns), summary(runs[0]), json)
    else:
        print(format_result(runs[0], format), end="")


@app.command("figures")
def figures_command(
    folders: Folders,
    out: Annotated[
        Path, typer.Option("--out", metavar="FOLDER", help="Folder to write the figures to.")
    ] = Path("figures"),
    formats: Annotated[
        str, typer.Option("--format", help="pdf, svg and png, separated by commas.")
    ] = "pdf",
    columns: Annotated[
        int, typer.Option(min=1, max=2, help="Width: one column of a paper, or two.")
    ] = 1,
) -> None:
    """Draw the figures of a report for a paper, a file each, with their captions."""
    from udjfl.report.html.figures import write_figures
    from udjfl.report.html.material import read_material

    with show_status("drawing"):
        written = write_figures(read_material(folders), out, formats.split(","), columns)
    print(f"{len(written)} files in {out}")


@app.command("check")
def check_command(
    folder: Annotated[
        Path, typer.Argument(help="A folder given as --out, or one that contains some.")
    ],
    json: AsJson = False,
) -> None:
    """Check every file of a run or a comparison against the manifest of its folder.

    Says what is whole, what is damaged, and what `udjfl resume` makes again. Nothing is changed.
    The exit code is 1 if something is damaged.
    """
    from udjfl.report.folders import describe_folders, folders_view
    from udjfl.training.folder_check import check_folder

    folders = check_folder(folder)
    show(folders_view(folders), describe_folders(folders), json)
    if any(each.is_damaged for each in folders):
        raise typer.Exit(1)


app.command("predict")(predict_command)
app.command("export")(export_command)


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


def write_page(folders: list[Path], path: Path, open_it: bool = False) -> None:
    """Write a report with figures; say where, and open it if asked to."""
    from udjfl.report.html.page import write_report

    with show_status("drawing the report"):
        write_report(folders, path)
    print(f"report written to {path}", file=sys.stderr)
    if open_it:
        typer.launch(path.resolve().as_uri())


def _show_comparison(comparison: "Comparison", format: str | None) -> None:
    from udjfl.report.comparison_table import comparison_view
    from udjfl.report.plain_results import format_comparison

    if format in (None, "json"):
        show(comparison_view(comparison), comparison.as_dict(), format == "json")
    else:
        print(format_comparison(comparison, format), end="")


def _print_folder(out: Path | None) -> None:
    if out:
        print(f"kept in {out}", file=sys.stderr)
