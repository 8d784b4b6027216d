"""`udjfl data`: which data there are, what a federation of them looks like, and getting their files."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import Field
from typer.core import TyperCommand

from udjfl.cli.options import AsJson
from udjfl.errors import SettingsError, StorageError
from udjfl.report.output import show
from udjfl.settings import DataSettings, checked

if TYPE_CHECKING:
    from udjfl.data import Federation, Source

app = typer.Typer(
    rich_markup_mode=None,
    add_completion=False,
    no_args_is_help=True,
    help="List data sources, look at one, get its files ready.",
)

Name = Annotated[
    str,
    typer.Argument(metavar="NAME", help="Name of the data, options after colons: signs:level=3."),
]
Root = Annotated[
    str | None,
    typer.Option("--data-root", help="Folder with the data (default: UDJFL_DATA, then the cache)."),
]
CONTACT_SHEET = "--contact-sheet"


class DescribeSettings(DataSettings):
    """Which federation to look at."""

    seed: Annotated[int, Field(ge=0)] = 0


class WithContactSheet(TyperCommand):
    """Lets --contact-sheet stand without a file name; the file is then in the current folder."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        filled = []
        for place, word in enumerate(args):
            filled.append(word)
            if word == CONTACT_SHEET and (
                place + 1 == len(args) or args[place + 1].startswith("-")
            ):
                filled.append(".")
        return super().parse_args(ctx, filled)


@app.command("list", short_help="List the data sources.")
def list_command(data_root: Root = None, json: AsJson = False) -> None:
    """List the data sources: what they are, their options, and whether their files are here."""
    from udjfl.report.data import source_list, source_list_view

    entries = source_list(data_root)
    show(source_list_view(entries), entries, json)


@app.command("describe", short_help="Load one and show its clients.", cls=WithContactSheet)
def describe_command(
    name: Name,
    seed: Annotated[
        str | None, typer.Option(metavar="INTEGER", help="Seed of everything random (default: 0).")
    ] = None,
    clients: Annotated[
        str | None, typer.Option(metavar="INTEGER", help="Number of clients (default: the usual).")
    ] = None,
    partition: Annotated[
        str | None, typer.Option(help="How data are cut into clients (default: the usual).")
    ] = None,
    data_root: Root = None,
    contact_sheet: Annotated[
        Path | None,
        typer.Option(
            CONTACT_SHEET,
            metavar="[FILE.png]",
            help="Also draw clean and ambiguous images, by class; without a file: NAME-contact-sheet.png, in this folder.",
        ),
    ] = None,
    json: AsJson = False,
) -> None:
    """Load a federation and show what each client holds, its classes, and its fingerprint."""
    from udjfl.data import load
    from udjfl.report.data import description, description_view

    given = {
        "data": name,
        "seed": seed,
        "clients": clients,
        "partition": partition,
        "data_root": data_root,
    }
    settings = _checked(
        {key: value for key, value in given.items() if value is not None}, contact_sheet
    )
    federation = load(
        settings.data, settings.clients, settings.partition, settings.seed, settings.data_root
    )
    drawn = None if contact_sheet is None else _draw(settings, federation, contact_sheet)
    about = description(federation, settings.data, settings.seed)
    show(description_view(about), {**about, "contact_sheet": str(drawn) if drawn else None}, json)
    if drawn:
        print(f"drawn in {drawn}", file=sys.stderr)


@app.command("prepare", short_help="Get the files of one ready.")
def prepare_command(
    name: Name,
    regenerate: Annotated[
        bool, typer.Option("--regenerate", help="Make what cannot be downloaded (dirty-mnist).")
    ] = False,
    data_root: Root = None,
) -> None:
    """Download or make what a data source needs. What is there already is kept; stopped, it goes on where it was."""
    from udjfl.data import mistakes_in, source_of
    from udjfl.data.source import Preparation

    mistakes = mistakes_in(name, None, None, root=data_root)
    source = _source(name)
    if regenerate and source is not None and not source.regenerates:
        mistakes.append(f"regenerate: {source.name} has nothing that could be made; leave it out")
    if mistakes:
        raise SettingsError(mistakes)
    source, options = source_of(name)
    if source.prepare is None:
        print(f"{source.name}: nothing to prepare. {source.how_to_get}")
        return
    with _progress() as progress:
        told = source.prepare(
            Preparation(source.request(0, data_root, options), regenerate, progress)
        )
    print("\n".join(told))


def _source(name: str) -> Source | None:
    """The source of this name, None if there is no such; what is wrong with its options is not asked."""
    from udjfl.data import source_of

    with contextlib.suppress(SettingsError):
        return source_of(name)[0]
    return None


def _checked(values: dict[str, Any], contact_sheet: Path | None) -> DescribeSettings:
    """Settings, or one error with every mistake."""
    from udjfl.data import mistakes_in

    mistakes: list[str] = []
    settings = None
    try:
        settings = checked(DescribeSettings, values)
    except SettingsError as error:
        mistakes += error.mistakes
    # What only the sources know; numbers were checked above.
    mistakes += mistakes_in(
        values["data"], None, values.get("partition"), root=values.get("data_root")
    )
    source = _source(values["data"])
    if contact_sheet is not None:
        if source is not None and source.to_pixels is None:
            mistakes.append(
                f"contact_sheet: the examples of {source.name} are not images; leave it out"
            )
        elif not contact_sheet.is_dir() and contact_sheet.suffix.lower() != ".png":
            mistakes.append(
                f"contact_sheet: {contact_sheet} is no .png file; give it a name that ends so"
            )
        elif not contact_sheet.parent.is_dir():
            mistakes.append(
                f"contact_sheet: there is no folder {contact_sheet.parent}; make it, or choose another"
            )
    if mistakes or settings is None:
        raise SettingsError(mistakes)
    return settings


def _draw(settings: DescribeSettings, federation: Federation, target: Path) -> Path:
    """Write the contact sheet. A folder gets a file named after the data."""
    from udjfl._files import write_atomic
    from udjfl.data import source_of
    from udjfl.report.contact_sheet import contact_sheet

    source, options = source_of(settings.data)
    assert source.to_pixels is not None, "checked with the settings"
    pools = source.pools(source.request(settings.seed, settings.data_root, options))
    sheet = contact_sheet(
        federation.name, pools, source.to_pixels, settings.seed, federation.clients
    )
    path = target / f"{source.name}-contact-sheet.png" if target.is_dir() else target
    try:
        write_atomic(path, sheet)
    except StorageError as error:  # its advice is about runs
        reason = getattr(error.__cause__, "strerror", None) or "it is not possible"
        raise StorageError(
            f"contact_sheet: cannot write {path}: {reason}; choose another file"
        ) from None
    return path


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[str, int, int], None]]:
    """A bar for each stage on a terminal; plain lines elsewhere. On standard error, so that output stays clean."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield _line_for_each_quarter()
        return

    from rich.progress import (
        BarColumn,
        Progress,
        TaskID,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[amount]}"),
    )
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console) as bar:
        tasks: dict[str, TaskID] = {}

        def move(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bar.add_task(stage, total=None, amount="")
            # A total of 0 is one that nobody knows; the bar then only shows that something happens.
            bar.update(
                tasks[stage],
                completed=done,
                total=total or None,
                amount=_amount(stage, done, total),
            )

        yield move


def _line_for_each_quarter() -> Callable[[str, int, int], None]:
    """Prints a line when another quarter of a stage is done, so that a log stays readable."""
    quarters: dict[str, int] = {}

    def told(stage: str, done: int, total: int) -> None:
        reached = 4 * done // total if total else 0
        if reached != quarters.setdefault(stage, 0):
            quarters[stage] = reached
            print(f"{stage}: {_amount(stage, done, total)}", file=sys.stderr, flush=True)

    return told


def _amount(stage: str, done: int, total: int) -> str:
    """How much of how much: in bytes for downloads, whose stage is the name of a file."""
    from rich.filesize import decimal

    is_file = PurePath(stage).suffix != ""
    shown = [decimal(number) if is_file else f"{number:,}" for number in (done, total)]
    return " of ".join(shown if total else shown[:1])
