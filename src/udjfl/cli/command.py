"""The classes of all commands: help pages with sections, and torch imported under a status line."""

import signal
import threading
from collections.abc import Callable
from typing import Any, ClassVar

import click
import typer
from typer.core import TyperCommand

from udjfl.cli.progress import show_status

# The sections of a help page and their flags, in order. Flags that are not named here come last.
SECTIONS = {
    "Answers": "aim cause gap false_reports examples client_limit defaults",
    "Experiment": "method methods params theory budget floor cost sampler exponents gammas budgets "
    "seed seeds profile quick tuned",
    "Data": "data data_root clients partition",
    "Columns of tables": "target client group sensitive drop categories scaling test_share",
    "Model": "model hidden weight_norm",
    "Task": "task loss score",
    "Training": "rounds epochs optimiser lr lr_schedule momentum nesterov weight_decay clip_norm "
    "class_weights batch_size local_epochs local_steps server_optimizer loss_at participation "
    "drop_out holdout on_bad_report",
    "Uncertainty": "uncertainty uncertainty_epochs uncertainty_lr uncertainty_optimiser "
    "uncertainty_folds uncertainty_models",
    "Evaluation and storage": "service eval_every checkpoint_every",
    "Machine": "engine device jobs workers",
    "Input and output": "config out log html open_it formats columns metrics csv markdown latex "
    "json",
}
ORDER = " ".join(SECTIONS.values()).split()
SECTION_OF = {name: section for section, names in SECTIONS.items() for name in names.split()}
WIDEST_FLAG = 26  # the help of a longer flag begins on the next line


class Command(TyperCommand):
    """A command whose help page has sections."""

    needs_torch: ClassVar[bool] = True

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write arguments and flags, by section."""
        sections: dict[str, list[tuple[str, str]]] = {
            name: [] for name in ("Arguments", *SECTIONS, "Options")
        }
        for param in sorted(self.get_params(ctx), key=_position):
            record = param.get_help_record(ctx)
            if record is not None:
                is_argument = param.param_type_name == "argument"
                section = (
                    "Arguments" if is_argument else SECTION_OF.get(param.name or "", "Options")
                )
                # Typer escapes brackets for rich, which does not print this page.
                sections[section].append((record[0], record[1].replace("\\[", "[")))
        flags = [flag for records in sections.values() for flag, _ in records]
        width = min(max(map(len, flags)), WIDEST_FLAG)
        for section, records in sections.items():
            if records:
                with formatter.section(click.style(section, bold=True)):
                    # Padded, so that all sections are aligned.
                    formatter.write_dl(
                        [(flag.ljust(width), text) for flag, text in records], col_max=WIDEST_FLAG
                    )

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. From here on Ctrl-C raises `KeyboardInterrupt`: work ends cleanly."""
        if self.needs_torch:
            with show_status("loading torch"):
                import torch  # noqa: F401
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, signal.default_int_handler)
        return super().invoke(ctx)


def _position(param: click.Parameter) -> int:
    return ORDER.index(param.name) if param.name in ORDER else len(ORDER)


class DataCommand(Command):
    """A command whose --data takes several files, as a shell expands `hospitals/*.csv`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Join the words after --data by commas."""
        words: list[str] = []
        joins = False
        for word in args:
            if joins and not word.startswith("-"):
                words[-1] += f",{word}"
                continue
            # The word after --data is its value; those after it are joined to it.
            joins = len(words) > 0 and words[-1] == "--data"
            words.append(word)
        return super().parse_args(ctx, words)


class LightCommand(Command):
    """A command that works without torch."""

    needs_torch = False


class CommandGroup(typer.Typer):
    """A group of commands of these classes."""

    def __init__(self, help: str | None = None) -> None:
        super().__init__(
            rich_markup_mode=None, add_completion=False, no_args_is_help=True, help=help
        )

    def command(  # type: ignore[override]  # few of typer's many options
        self, name: str, *, short_help: str | None = None, cls: type[Command] = Command
    ) -> Callable[[Callable[..., None]], Callable[..., None]]:
        """Add a command."""
        return super().command(name, short_help=short_help, cls=cls)
