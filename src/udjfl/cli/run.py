"""The commands that train, `run` and `compare`, and `resume`, which goes on with either."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from udjfl.cli.options import AsCsv, AsJson, AsLatex, AsMarkdown, Log, Metrics, Out, TrustModel
from udjfl.cli.output import print_folder, show_comparison
from udjfl.cli.progress import collect_warnings, show_progress, show_status
from udjfl.cli.search import Tuned, resume_search, tune_first
from udjfl.errors import SettingsError, StorageError
from udjfl.report.output import show
from udjfl.settings import CompareSettings, RunSettings, validate_settings


def run(
    settings: RunSettings,
    out: Out = None,
    resume: bool = False,
    json: AsJson = False,
    metrics: Metrics = None,
    log: Log = None,
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
    parameters = settings.to_flat()
    with show_progress(1, training.rounds, log=log, parameters=parameters) as on_progress:
        result = run_method(federation, spec, out=out, resume=resume, on_progress=on_progress)
    view = result_view(result, columns)
    show(view, {**summary(result), "folder": str(out) if out else None}, json)
    print_folder(out)


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
    log: Log = None,
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
    runs, rounds = len(methods) * len(settings.seeds), settings.training.rounds
    parameters = settings.to_flat()
    with show_progress(runs, rounds, log=log, parameters=parameters) as on_progress:
        comparison = run_comparison(
            settings, methods, out=out, resume=resume, on_progress=on_progress, by_name=True
        )
    show_comparison(replace(comparison, columns=columns), format)
    print_folder(out)


def resume_command(
    folder: Annotated[
        Path, typer.Argument(help="The folder given as --out to the command that was stopped.")
    ],
    trust_model: TrustModel = False,
    json: AsJson = False,
) -> None:
    """Continue a run, a comparison, a frontier or a search that was stopped.

    The result is the same as without the stop, to the last bit.
    """
    from udjfl.training.run_folder import RunFolder
    from udjfl.training.trust import refuse_code

    run_folder = RunFolder.open(folder)
    stored = run_folder.read_settings()
    if stored.get("from_python"):
        raise SettingsError(
            f"{folder} was started from Python with data or methods of its own; "
            f"call udjfl.compare(..., out={str(folder)!r}, resume=True) with the same"
        )
    for kind in ("frontier", "tune"):
        if not trust_model and isinstance(stored.get(kind), dict):
            refuse_code(folder, stored[kind])
    if resume_search(stored, folder, json):
        return
    if "comparison" in stored:
        if not isinstance(stored["comparison"], dict):
            raise StorageError(
                f"{folder / 'settings.json'} is damaged; restore it, "
                "or start the comparison again in another folder"
            )
        if not trust_model:
            refuse_code(folder, stored["comparison"])
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
        refuse_code(folder, values)
    run(validate_settings(RunSettings, values), folder, True, json)
