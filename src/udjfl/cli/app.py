"""The front page: the list of commands, the version and shell completion."""

from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_group

from udjfl.cli.progress import show_status

# Each command in one line, in the order of the front page.
COMMANDS = {
    "demo": "See what four theories of justice do to five clients: under a minute.",
    "choose": "Find a theory and a budget for your situation.",
    "run": "Train one method.",
    "compare": "Train several methods and compare them.",
    "frontier": "Train a grid of the family and show what every point does.",
    "tune": "Choose the best point for a theory on held-out data, then test it.",
    "resume": "Continue a run or a comparison that was stopped.",
    "watch": "Show runs while they go on.",
    "report": "Show finished runs, as tables or as a page with figures.",
    "figures": "Draw the figures of a report for a paper.",
    "check": "Say what is whole in a run folder, what is damaged, what can be made again.",
    "predict": "Predict with the model of a finished run.",
    "export": "Write the model of a finished run as ONNX or TorchScript.",
    "methods": "List the methods, or describe one.",
    "data": "List and describe data sources, prepare their files.",
    "flower": "Deploy a federation on real machines with Flower: a coordinator and nodes.",
    "reproduce": "Compute the paper's tables beside its own numbers.",
}


class Front(TyperGroup):
    """The top-level command. Imports the others when one is called: the front page is quick."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Find the command that the arguments name. A name that is not in COMMANDS is an error."""
        name, command, rest = super().resolve_command(ctx, args)
        if name is not None:
            with show_status("starting", quiet=ctx.resilient_parsing):  # quiet in completion
                from udjfl.cli.commands import app as commands
            command = get_group(commands).commands[name]
        return name, command, rest


app = typer.Typer(
    name="udjfl",
    cls=Front,
    rich_markup_mode=None,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    help="Distributive justice for federated learning: "
    "four theories of whom the shared model should serve.",
    epilog="`udjfl COMMAND --help` describes a command.",
)


def _stand_in() -> None:
    """Stand for a command on the front page; `Front` puts the command itself in its place."""


for _name, _line in COMMANDS.items():
    app.command(_name, short_help=_line)(_stand_in)


def _print_version(requested: bool) -> None:
    if requested:
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
    """Accept the options of the front page."""
