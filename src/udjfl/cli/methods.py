"""The command `udjfl methods`."""

from typing import Annotated

import typer

from udjfl.cli.options import AsJson, complete_method
from udjfl.report.output import show


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
