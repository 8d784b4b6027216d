"""`udjfl reproduce`: the paper's tables, ours beside the published numbers."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from udjfl.cli.command import CommandGroup
from udjfl.cli.options import AsJson, Config, read_settings, with_settings
from udjfl.cli.progress import show_progress
from udjfl.report.output import show
from udjfl.settings import ReproduceSettings

if TYPE_CHECKING:
    from udjfl.paper.tables import Table

app = CommandGroup(
    "Reproduce the tables of the UDJ-FL paper (Carey & Wu, FAccT 2025) beside its numbers."
)

MakeTable = Callable[[ReproduceSettings, Path | None, bool], None]
QUICK = {"rounds": 10, "epochs": 10, "seeds": 2}
Quick = Annotated[
    bool,
    typer.Option(
        "--quick", help="Finish in minutes: 10 rounds, 10 epochs, 2 seeds, unless given otherwise."
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out",
        metavar="FOLDER",
        help="Folder for the runs and the table (Markdown, CSV, LaTeX, JSON); the same command "
        "again resumes there.",
    ),
]


def _table_command(name: str, short_help: str) -> Callable[[MakeTable], MakeTable]:
    """Turn a function of settings, folder and --json into a command with a flag per setting."""

    def decorate(make: MakeTable) -> MakeTable:
        def command(
            *,
            config: Config = None,
            quick: Quick = False,
            out: Out = None,
            json: AsJson = False,
            flags: dict[str, Any],
        ) -> None:
            from udjfl.engine import tune_allocator

            defaults = QUICK if quick else None
            settings = read_settings(ReproduceSettings, config, flags, defaults=defaults)
            tune_allocator()
            make(settings, out, json)

        command.__doc__ = make.__doc__
        app.command(name, short_help=short_help)(with_settings(ReproduceSettings)(command))
        return make

    return decorate


@_table_command("results", "The main table: twenty rows, six columns.")
def make_results(settings: ReproduceSettings, out: Path | None, as_json: bool) -> None:
    """Make the main table: FedAvg and nineteen rows of fair methods, six columns each.

    Each of the paper's claims about it is tested.
    """
    from udjfl.paper.paper_rows import paper_rows
    from udjfl.paper.profiles import PROFILES
    from udjfl.paper.run import reproduce_results

    trainings = len(paper_rows(PROFILES[settings.profile])) * len(settings.seeds)
    with show_progress(trainings, settings.rounds) as progress:
        table, _ = reproduce_results(settings, _runs_folder(out), progress)
    _show_table(table, out, as_json)


@_table_command("solo", "Clients that train alone.")
def make_solo(settings: ReproduceSettings, out: Path | None, as_json: bool) -> None:
    """Make the table of clients that train alone.

    It has each client's accuracy on its own and on clean test data, and its uncertainty.
    """
    from udjfl.paper.run import reproduce_solo

    with show_progress(len(settings.seeds), 1, "seeds") as progress:
        table = reproduce_solo(settings, out / "runs" / "solo" if out else None, progress)
    _show_table(table, out, as_json)


@_table_command("distributions", "FedAvg under the distributions of Appendix A.")
def make_distributions(settings: ReproduceSettings, out: Path | None, as_json: bool) -> None:
    """Make the table of FedAvg under three distributions of the data.

    All clients have the same mix, one has much clean data, or one has much ambiguous data.
    """
    from udjfl.paper.run import DISTRIBUTIONS, reproduce_distributions

    trainings = len(DISTRIBUTIONS) * len(settings.seeds)
    with show_progress(trainings, settings.rounds) as progress:
        table = reproduce_distributions(settings, _runs_folder(out), progress)
    _show_table(table, out, as_json)


@_table_command("search", "A search over the parameters of the paper's appendix.")
def make_search(settings: ReproduceSettings, out: Path | None, as_json: bool) -> None:
    """Choose the parameters of every method, then test the chosen ones.

    The choice uses data held out of the clients' train parts, and no test data.
    """
    from udjfl.paper.profiles import PROFILES
    from udjfl.paper.search import LEARNING_RATES, search_parameters, search_ranges
    from udjfl.paper.search_table import search_markdown, search_view

    ranges = search_ranges(PROFILES[settings.profile])
    methods = {method for searched in ranges for method in searched.methods}
    # FedAvg is trained too; the tests at the end are not counted.
    trainings = (len(methods) + 1) * len(LEARNING_RATES) * len(settings.seeds)
    with show_progress(trainings, settings.rounds) as progress:
        search = search_parameters(settings, _runs_folder(out), progress)
    document = search.as_dict()
    if out:
        _write(out / "search.md", search_markdown(search))
        _write(out / "search.json", _to_json(document))
    show(search_view(search), document, as_json)
    if out:
        print(f"kept in {out}: search.md and .json, and the runs", file=sys.stderr)


def _runs_folder(out: Path | None) -> Path | None:
    return None if out is None else out / "runs"


def _show_table(table: Table, out: Path | None, as_json: bool) -> None:
    """Print the table with its verdicts, and write it to the folder in every format."""
    from udjfl.paper.claims import judge_table
    from udjfl.paper.latex import latex
    from udjfl.paper.render import csv_rows, seed_rows, table_markdown, table_view

    verdicts = judge_table(table)
    document = {**table.as_dict(), "verdicts": [verdict.as_dict() for verdict in verdicts]}
    if out:
        _write(out / f"{table.kind}.json", _to_json(document))
        _write(out / f"{table.kind}.md", table_markdown(table, verdicts))
        _write(out / f"{table.kind}.csv", _to_csv(*csv_rows(table)))
        _write(out / f"{table.kind}-seeds.csv", _to_csv(*seed_rows(table)))
        _write(out / f"{table.kind}.tex", latex(table))
    show(table_view(table, verdicts), document, as_json)
    if out:
        files = f"{table.kind}.md, .csv, -seeds.csv, .tex and .json"
        print(f"kept in {out}: {files}, and the runs", file=sys.stderr)


def _to_json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _to_csv(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([header, *rows])
    return text.getvalue()


def _write(path: Path, text: str) -> None:
    from udjfl._files import explain_os_errors, write_atomic

    with explain_os_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, text.encode())
