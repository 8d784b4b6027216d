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

from udjfl.cli.options import (
    AsJson,
    Config,
    progress_shown,
    settings_of,
    warnings_shown,
    with_settings,
)
from udjfl.report.output import show
from udjfl.settings import ReproduceSettings

if TYPE_CHECKING:
    from udjfl.paper.tables import Table
    from udjfl.paper.verdicts import Verdict

app = typer.Typer(
    rich_markup_mode=None,
    add_completion=False,
    no_args_is_help=True,
    help="Make the tables of the UDJ-FL paper (Carey & Wu, FAccT 2025) again, beside its own numbers.",
)

QUICK = {"rounds": 10, "epochs": 10, "seeds": 2}
Quick = Annotated[
    bool,
    typer.Option("--quick", help="A look in minutes: 10 rounds, 10 epochs, 2 seeds unless given."),
]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out",
        help="Folder for runs and table (Markdown, CSV, LaTeX, JSON); the same call again goes on there.",
    ),
]


@app.command("results", short_help="The main table: twenty rows, six columns.")
@with_settings(ReproduceSettings)
def results_command(
    *,
    config: Config = None,
    quick: Quick = False,
    out: Out = None,
    json: AsJson = False,
    flags: dict[str, Any],
) -> None:
    """The main table: FedAvg and nineteen fair methods, six columns each, and a verdict on each of the paper's claims."""
    from udjfl.paper.claims import results_verdicts
    from udjfl.paper.paper_rows import paper_rows
    from udjfl.paper.profiles import PROFILES
    from udjfl.paper.render import results_view
    from udjfl.paper.run import results

    settings = _settings(config, flags, quick)
    trainings = len(paper_rows(PROFILES[settings.profile])) * len(settings.seeds)
    with warnings_shown(), progress_shown(trainings, settings.rounds) as progress:
        table, _ = results(settings, _runs(out), progress)
    _deliver(table, results_verdicts(table), results_view, out, json)


@app.command("solo", short_help="Each client training alone.")
@with_settings(ReproduceSettings)
def solo_command(
    *,
    config: Config = None,
    quick: Quick = False,
    out: Out = None,
    json: AsJson = False,
    flags: dict[str, Any],
) -> None:
    """Each client training alone: accuracy on its own and on clean test data, and its uncertainty."""
    from udjfl.paper.claims import solo_verdicts
    from udjfl.paper.render import solo_view
    from udjfl.paper.run import solo

    settings = _settings(config, flags, quick)
    with warnings_shown(), progress_shown(len(settings.seeds), 1, "seeds") as progress:
        table = solo(settings, out / "runs" / "solo" if out else None, progress)
    _deliver(table, solo_verdicts(table), solo_view, out, json)


@app.command("distributions", short_help="FedAvg under the distributions of appendix A.")
@with_settings(ReproduceSettings)
def distributions_command(
    *,
    config: Config = None,
    quick: Quick = False,
    out: Out = None,
    json: AsJson = False,
    flags: dict[str, Any],
) -> None:
    """FedAvg where all clients have the same mix, where one has much clean data, and where one has much ambiguous data."""
    from udjfl.paper.claims import distribution_verdicts
    from udjfl.paper.render import distributions_view
    from udjfl.paper.run import DISTRIBUTIONS, distributions

    settings = _settings(config, flags, quick)
    with (
        warnings_shown(),
        progress_shown(len(DISTRIBUTIONS) * len(settings.seeds), settings.rounds) as progress,
    ):
        table = distributions(settings, _runs(out), progress)
    _deliver(table, distribution_verdicts(table), distributions_view, out, json)


@app.command("search", short_help="Search the parameters of the paper's appendix.")
@with_settings(ReproduceSettings)
def search_command(
    *,
    config: Config = None,
    quick: Quick = False,
    out: Out = None,
    json: AsJson = False,
    flags: dict[str, Any],
) -> None:
    """Choose every method's parameters on data held out of the clients' train parts, then test what was chosen."""
    from udjfl.paper.profiles import PROFILES
    from udjfl.paper.search import LEARNING_RATES, ranges, search
    from udjfl.paper.search_table import search_markdown, search_view

    settings = _settings(config, flags, quick)
    candidates = {
        candidate for one in ranges(PROFILES[settings.profile]) for candidate in one.candidates
    }
    trainings = (
        (len(candidates) + 1) * len(LEARNING_RATES) * len(settings.seeds)
    )  # and FedAvg; the tests come on top
    with warnings_shown(), progress_shown(trainings, settings.rounds) as progress:
        found = search(settings, _runs(out), progress)
    if out:
        _write(out / "search.md", search_markdown(found))
        _write(out / "search.json", _document(found.as_dict()))
    show(search_view(found), found.as_dict(), json)
    if out:
        print(f"kept in {out}: search.md and .json, and the runs", file=sys.stderr)


def _settings(config: Path | None, flags: dict[str, Any], quick: bool) -> ReproduceSettings:
    return settings_of(ReproduceSettings, config, flags, usual=QUICK if quick else None)


def _runs(out: Path | None) -> Path | None:
    return None if out is None else out / "runs"


def _deliver(
    table: Table,
    verdicts: Sequence[Verdict],
    view: Callable[[Any, Sequence[Verdict]], Any],
    out: Path | None,
    as_json: bool,
) -> None:
    """Print the table, and keep it in every format."""
    from udjfl.paper.render import csv_rows, latex, markdown, seed_rows

    document = {**table.as_dict(), "verdicts": [verdict.as_dict() for verdict in verdicts]}
    if out:
        _write(out / f"{table.kind}.json", _document(document))
        _write(out / f"{table.kind}.md", markdown(table, verdicts))
        _write(out / f"{table.kind}.csv", _csv(*csv_rows(table)))
        _write(out / f"{table.kind}-seeds.csv", _csv(*seed_rows(table)))
        _write(out / f"{table.kind}.tex", latex(table))
    show(view(table, verdicts), document, as_json)
    if out:
        print(
            f"kept in {out}: {table.kind}.md, .csv, -seeds.csv, .tex and .json, and the runs",
            file=sys.stderr,
        )


def _document(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _csv(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([header, *rows])
    return text.getvalue()


def _write(path: Path, text: str) -> None:
    from udjfl._files import explain_os_errors, write_atomic

    with explain_os_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, text.encode())
