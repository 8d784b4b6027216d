"""The command `udjfl demo`."""

import contextlib
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from udjfl.cli.options import AsJson, Out
from udjfl.cli.output import print_folder, write_page
from udjfl.cli.progress import show_progress
from udjfl.report.output import show


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
    from udjfl._files import prepare_file
    from udjfl.report.demo_intro import introduction

    if html is not None:
        prepare_file(html)
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
    print_folder(out)
