"""Output that several commands share: tables, the page, the line that names the folder."""

import os
import sys
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING

from udjfl.cli.progress import show_status
from udjfl.cli.wrapping import print_wrapped
from udjfl.report.output import show

if TYPE_CHECKING:
    from udjfl.simulation.comparison import Comparison


def show_comparison(comparison: "Comparison", format: str | None) -> None:
    """Print a comparison as tables, or in one of the formats for other programs."""
    from udjfl.report.comparison_table import comparison_view
    from udjfl.report.plain_results import format_comparison

    if format in (None, "json"):
        show(comparison_view(comparison), comparison.as_dict(), format == "json")
    else:
        print(format_comparison(comparison, format), end="")


def write_page(folders: list[Path], path: Path, open_it: bool = False) -> None:
    """Write a report with figures; say where, and open it if asked to."""
    from udjfl._files import prepare_file
    from udjfl.report.html.page import write_report

    prepare_file(path)
    with show_status("drawing the report"):
        write_report(folders, path)
    print_wrapped(f"report written to `{path}`")
    if open_it:
        open_page(path.resolve().as_uri(), str(path))


def open_page(address: str, shown: str) -> None:
    """Open a page in a browser; where there is no desktop, say in one line what to open."""
    variables = ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY")
    # Without a desktop, Linux would try every text browser, each with an error of its own.
    can_open = not sys.platform.startswith("linux") or any(map(os.environ.get, variables))
    if not (can_open and webbrowser.open(address)):
        print_wrapped(f"there is no browser here; open `{shown}` where there is one")


def print_folder(out: Path | None) -> None:
    """Say where a command has kept its runs."""
    if out:
        print_wrapped(f"kept in `{out}`")
