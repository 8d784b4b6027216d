"""The front of the command line: its help page, its version, and what becomes of errors. `udjfl.cli.run` has the rest."""

from __future__ import annotations

import io
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_group

from udjfl.errors import UdjflError

INTERRUPTED = 130  # what typer exits with on Ctrl-C
GOES_ON = "a run with --out goes on with `udjfl resume FOLDER`"
GOES_ON_AGAIN = "with --out it goes on where it was with the same command"
DOWNLOAD_GOES_ON = "a download goes on where it was with the same command"

# Each command in one line, in the order of the help page.
COMMANDS = {
    "run": "Train one method.",
    "compare": "Train several methods and compare them.",
    "resume": "Go on with a run that was stopped.",
    "report": "Show finished runs again.",
    "methods": "List the methods there are.",
    "data": "List data sources, look at one, get its files ready.",
    "reproduce": "Make the paper's tables again, beside its own numbers.",
}


class Front(TyperGroup):
    """Imports the commands when one is called: the help page and the version do not wait for pydantic and rich."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name, command, rest = super().resolve_command(
            ctx, args
        )  # a name that is not in COMMANDS ends here
        if name is not None:
            from udjfl.cli.run import app as commands

            command = get_group(commands).commands[name]
        return name, command, rest


app = typer.Typer(
    name="udjfl",
    cls=Front,
    rich_markup_mode=None,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Distributive justice for federated learning: four theories of whom the shared model should serve.",
)


def _listed() -> None:
    """Stands for a command on the help page; `Front` puts the command itself in its place."""


for _name, _line in COMMANDS.items():
    app.command(_name, short_help=_line)(_listed)


def _print_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        print(f"udjfl {version('udjfl')}")
        raise typer.Exit


Version = Annotated[
    bool,
    typer.Option(
        "--version", callback=_print_version, is_eager=True, help="Show the version and exit."
    ),
]


@app.callback()
def front(version: Version = False) -> None:
    pass


def main() -> None:
    """Entry point: errors meant for the user become one line each on standard error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(
            stream, io.TextIOWrapper
        ):  # after all the work, an arrow the terminal cannot show must not matter
            stream.reconfigure(errors="replace")
    try:
        app()
    except SystemExit as stop:
        if stop.code == INTERRUPTED:
            preparing, reproducing = (
                sys.argv[1:3] == ["data", "prepare"],
                sys.argv[1:2] == ["reproduce"],
            )
            again = GOES_ON_AGAIN if reproducing else DOWNLOAD_GOES_ON if preparing else GOES_ON
            print(f"udjfl: stopped; {again}", file=sys.stderr)
        raise
    except UdjflError as error:
        for line in str(error).splitlines():
            print(f"udjfl: {line}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
