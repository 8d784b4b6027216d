"""The commands that show what run folders hold: `report`, `figures`, `watch`, `check`."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from udjfl.cli.options import AsCsv, AsJson, AsLatex, AsMarkdown, Metrics
from udjfl.cli.output import open_page, show_comparison, write_page
from udjfl.cli.progress import show_status
from udjfl.cli.search import show_search
from udjfl.report.output import show

Folders = Annotated[
    list[Path],
    typer.Argument(help="Folders of runs, or folders that contain some at any depth."),
]


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

    A comparison needs a run of FedAvg. Runs on Flower, frontiers and tunings can be shown too.
    With --html the report is one file with figures, which needs no network: what each choice does
    to each client, in words and pictures. It is made from what can be read, and says what is
    missing.
    """
    if html is not None or open_it:
        write_page(folders, html or Path("report.html"), open_it)
        if not (json or csv or markdown or latex):
            return
    from udjfl.metrics import choose_metrics
    from udjfl.report.comparison_table import result_view
    from udjfl.report.plain_results import chosen_format, format_result
    from udjfl.report.saved_comparison import compare_found, find_unfinished
    from udjfl.report.saved_runs import find_runs
    from udjfl.report.tuned_runs import refuse_damaged_tunings
    from udjfl.training.result import summary

    format = chosen_format(json=json, csv=csv, markdown=markdown, latex=latex)
    columns = choose_metrics(metrics)
    if len(folders) == 1 and format in (None, "json") and show_search(folders[0], json):
        return
    refuse_damaged_tunings(folders)
    runs = find_runs(folders)
    unfinished = find_unfinished(folders)
    if unfinished or len(runs) > 1:
        comparison = compare_found(runs, folders, unfinished)
        show_comparison(replace(comparison, columns=columns), format)
    elif format in (None, "json"):
        show(result_view(runs[0], columns), summary(runs[0]), json)
    else:
        print(format_result(runs[0], format), end="")


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
        source = ", ".join(map(str, folders))
        written = write_figures(read_material(folders), out, formats.split(","), columns, source)
    print(f"{len(written)} files in {out}")


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
    from udjfl._files import prepare_file
    from udjfl.report.watch.page import describe_progress, describe_state
    from udjfl.report.watch.progress import Watcher
    from udjfl.report.watch.server import LiveServer, watch_in_file

    watcher = Watcher(folder)
    watcher.refuse_unreadable()
    if html is not None:
        prepare_file(html)
        print(f"writing {html} every {every:g} seconds", flush=True)
        address, path = html.resolve().as_uri(), str(html)
        snapshot = watch_in_file(
            watcher, html, every, on_written=lambda: open_page(address, path) if open_it else None
        )
    else:
        with LiveServer(watcher, every) as server:
            print(server.address, flush=True)
            if open_it:
                open_page(server.address, server.address)
            snapshot = server.wait_until_finished()
    print(f"{describe_state(snapshot).lower()}: {describe_progress(snapshot)}")


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
    from udjfl.report.saved_comparison import count_unfinished
    from udjfl.training.folder_check import check_folder

    folders = check_folder(folder)
    unfinished = count_unfinished(folder)
    show(folders_view(folders, unfinished), describe_folders(folders, unfinished), json)
    if any(each.is_damaged for each in folders):
        raise typer.Exit(1)
