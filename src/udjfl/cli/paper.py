"""`udjfl reproduce`: the paper's tables, ours beside the published numbers."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from udjfl._files import inner_folder
from udjfl.cli.command import CommandGroup
from udjfl.cli.options import AsJson, settings_command
from udjfl.cli.progress import show_progress
from udjfl.cli.wrapping import print_wrapped
from udjfl.paper.settings import ReproduceSettings
from udjfl.report.output import show, to_json
from udjfl.report.plain_tables import to_csv

if TYPE_CHECKING:
    from udjfl.paper.tables import Table
    from udjfl.training.records import OnProgress

Made = TypeVar("Made")
app = CommandGroup(
    "Reproduce the tables of the UDJ-FL paper (Carey & Wu, FAccT 2025) beside its numbers."
)

Out = Annotated[
    Path | None,
    typer.Option(
        "--out",
        metavar="FOLDER",
        help="Folder for the runs and the table (Markdown, CSV, LaTeX, JSON); the same command "
        "again resumes there.",
    ),
]


_table_command = functools.partial(settings_command, app, cls=ReproduceSettings, has_quick=True)


@_table_command("results", short_help="The main table: twenty rows, six columns.")
def make_results(settings: ReproduceSettings, out: Out = None, json: AsJson = False) -> None:
    """Make the main table: FedAvg and nineteen rows of fair methods, six columns each.

    Each of the paper's claims about it is tested.
    """
    from udjfl.paper.paper_rows import paper_rows
    from udjfl.paper.profiles import PROFILES
    from udjfl.paper.run import reproduce_results

    runs = len(paper_rows(PROFILES[settings.profile])) * len(settings.seeds)
    table, _ = _train(reproduce_results, settings, out, runs)
    _show_table(table, out, json)


@_table_command("solo", short_help="Clients that train alone.")
def make_solo(settings: ReproduceSettings, out: Out = None, json: AsJson = False) -> None:
    """Make the table of clients that train alone.

    It has each client's accuracy on its own and on clean test data, and its uncertainty.
    """
    from udjfl.paper.run import reproduce_solo

    table = _train(reproduce_solo, settings, out, len(settings.seeds), "runs/solo", 1, "seeds")
    _show_table(table, out, json)


@_table_command("distributions", short_help="FedAvg under the distributions of Appendix A.")
def make_distributions(settings: ReproduceSettings, out: Out = None, json: AsJson = False) -> None:
    """Make the table of FedAvg under three distributions of the data.

    All clients have the same mix, one has much clean data, or one has much ambiguous data.
    """
    from udjfl.paper.run import DISTRIBUTIONS, reproduce_distributions

    runs = len(DISTRIBUTIONS) * len(settings.seeds)
    _show_table(_train(reproduce_distributions, settings, out, runs), out, json)


@_table_command("search", short_help="A search over the parameters of the paper's appendix.")
def make_search(settings: ReproduceSettings, out: Out = None, json: AsJson = False) -> None:
    """Choose the parameters of every method, then test the chosen ones.

    The choice uses data held out of the clients' train parts, and no test data.
    """
    from udjfl.paper.claims import judge_table
    from udjfl.paper.profiles import PROFILES
    from udjfl.paper.search import search_parameters
    from udjfl.paper.search_choice import LEARNING_RATES, search_document, search_ranges
    from udjfl.paper.search_table import search_markdown, search_view

    ranges = search_ranges(PROFILES[settings.profile])
    methods = {method for searched in ranges for method in searched.methods}
    # FedAvg is trained too; the tests at the end are not counted.
    runs = (len(methods) + 1) * len(LEARNING_RATES) * len(settings.seeds)
    table = _train(search_parameters, settings, out, runs)
    verdicts = judge_table(table)
    document = {
        **search_document(table),
        "verdicts": [verdict.as_dict() for verdict in verdicts],
    }
    if out:
        _write_table(out, table, document, search_markdown(table, verdicts))
    show(search_view(table, verdicts), document, json)
    if out:
        _say_where(out, table)


def _train(
    reproduce: Callable[[ReproduceSettings, Path | None, OnProgress], Made],
    settings: ReproduceSettings,
    out: Path | None,
    runs: int,
    folder: str = "runs",
    rounds: int | None = None,
    unit: str = "rounds",
) -> Made:
    """Train under a progress bar for so many runs, which are kept in a folder below `out`."""
    from udjfl.engine import tune_allocator

    tune_allocator()
    with show_progress(runs, rounds or settings.rounds, unit) as progress:
        return reproduce(settings, inner_folder(out, folder) if out else None, progress)


def _show_table(table: Table, out: Path | None, as_json: bool) -> None:
    """Print the table with its verdicts, and write it to the folder in every format."""
    from udjfl.paper.claims import judge_table
    from udjfl.paper.latex import latex
    from udjfl.paper.render import table_markdown, table_view

    verdicts = judge_table(table)
    document = {**table.as_dict(), "verdicts": [verdict.as_dict() for verdict in verdicts]}
    if out:
        _write_table(out, table, document, table_markdown(table, verdicts))
        _write(out, {f"{table.kind}.tex": latex(table)})
    show(table_view(table, verdicts), document, as_json)
    if out:
        _say_where(out, table, ", .tex")


def _write_table(out: Path, table: Table, document: Mapping[str, Any], markdown: str) -> None:
    from udjfl.paper.render import csv_rows, seed_rows

    files = {
        ".json": to_json(document),
        ".md": markdown,
        ".csv": to_csv(*csv_rows(table)),
        "-seeds.csv": to_csv(*seed_rows(table)),
    }
    _write(out, {f"{table.kind}{ending}": text for ending, text in files.items()})


def _say_where(out: Path, table: Table, more: str = "") -> None:
    names = f"{table.kind}.md, .csv, -seeds.csv{more} and .json"
    print_wrapped(f"kept in `{out}`: {names}, and the runs")


def _write(folder: Path, files: Mapping[str, str]) -> None:
    from udjfl._files import explain_os_errors, write_atomic

    with explain_os_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        write_atomic(folder / name, text.encode())
