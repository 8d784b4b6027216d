"""`udjfl data`: list data sources, describe a federation made from one, prepare its files."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import Field

from udjfl.cli.command import Command, CommandGroup
from udjfl.cli.options import AsJson, complete_data
from udjfl.cli.progress import collect_warnings
from udjfl.cli.wrapping import print_wrapped
from udjfl.errors import SettingsError, StorageError
from udjfl.report.output import show
from udjfl.settings import DataSettings, TableSettings, validate_settings

if TYPE_CHECKING:
    from udjfl.data import Federation, Source

app = CommandGroup("List and describe data sources, prepare their files.")

Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="Name of the data, options after colons: signs:level=3.",
        autocompletion=complete_data,
    ),
]
NameOrFiles = Annotated[
    list[str],
    typer.Argument(
        metavar="NAME...",
        help="Name of the data, options after colons: signs:level=3; or files, hospitals/*.csv; "
        "or a folder of images (client/class/image) or of a saved federation.",
        autocompletion=complete_data,
    ),
]
Root = Annotated[
    str | None,
    typer.Option("--data-root", help="Folder with the data (default: UDJFL_DATA, then the cache)."),
]
CONTACT_SHEET = "--contact-sheet"


class DescribeSettings(DataSettings):
    """The federation to describe."""

    seed: Annotated[int, Field(ge=0)] = 0


class WithContactSheet(Command):
    """Lets --contact-sheet stand without a file name; the file is then in the current folder."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Insert the current folder after a --contact-sheet without a value."""
        words = []
        for word, following in pairwise([*args, "-"]):
            words.append(word)
            if word == CONTACT_SHEET and following.startswith("-"):
                words.append(".")
        return super().parse_args(ctx, words)


@app.command("list", short_help="List the data sources.")
def list_command(data_root: Root = None, json: AsJson = False) -> None:
    """List the data sources, their options, and whether their files are available."""
    from udjfl.report.data import list_sources, view_sources

    sources = list_sources(data_root)
    show(view_sources(sources), sources, json)


@app.command("describe", short_help="Load a source and show its clients.", cls=WithContactSheet)
def describe_command(
    name: NameOrFiles,
    seed: Annotated[
        str | None, typer.Option(metavar="INTEGER", help="Seed of everything random (default: 0).")
    ] = None,
    clients: Annotated[
        str | None,
        typer.Option(metavar="INTEGER", help="Number of clients (default: the source's)."),
    ] = None,
    partition: Annotated[
        str | None,
        typer.Option(help="How examples are cut into clients (default: the source's)."),
    ] = None,
    data_root: Root = None,
    target: Annotated[
        str | None, typer.Option(help="Column of the labels, or a comparison: 'delay>15'.")
    ] = None,
    client: Annotated[
        str | None, typer.Option(help="Column that names the client of each row.")
    ] = None,
    group: Annotated[
        str | None, typer.Option(help="Column of groups that no split may cut.")
    ] = None,
    sensitive: Annotated[str | None, typer.Option(help="Column of a sensitive attribute.")] = None,
    drop: Annotated[
        str | None, typer.Option(help="Columns to leave out, separated by commas.")
    ] = None,
    categories: Annotated[
        str | None, typer.Option(help="Columns whose numbers are codes of categories.")
    ] = None,
    scaling: Annotated[
        str | None, typer.Option(metavar="own|shared|none", help="Whose means and variances.")
    ] = None,
    test_share: Annotated[
        str | None, typer.Option(metavar="NUMBER", help="Share of rows in test parts.")
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(metavar="classification|regression", help="What the target is (of tables)."),
    ] = None,
    contact_sheet: Annotated[
        Path | None,
        typer.Option(
            CONTACT_SHEET,
            metavar="[FILE.png]",
            help="Also draw clean and ambiguous images by class "
            "(default file: NAME-contact-sheet.png in this folder).",
        ),
    ] = None,
    json: AsJson = False,
) -> None:
    """Load a federation and show its clients, its classes, its columns and its problems."""
    from udjfl.data import load
    from udjfl.report.data import describe_federation, view_federation

    given = {
        "data": ",".join(name),
        "seed": seed,
        "clients": clients,
        "partition": partition,
        "data_root": data_root,
        "target": target,
        "client": client,
        "group": group,
        "sensitive": sensitive,
        "drop": drop,
        "categories": categories,
        "scaling": scaling,
        "test_share": test_share,
        "task": task,
    }
    settings = _check_settings({k: v for k, v in given.items() if v is not None}, contact_sheet)
    with collect_warnings():
        federation = load(
            settings.data,
            settings.clients,
            settings.partition,
            settings.seed,
            settings.data_root,
            options=settings.table.given,
        )
    path = None if contact_sheet is None else _draw(settings, federation, contact_sheet)
    description = describe_federation(federation, settings.data, settings.seed)
    document = {**description, "contact_sheet": str(path) if path else None}
    show(view_federation(description), document, json)
    if path:
        print_wrapped(f"drawn in `{path}`")


@app.command("prepare", short_help="Download or generate the files of a source.")
def prepare_command(
    name: Name,
    regenerate: Annotated[
        bool, typer.Option("--regenerate", help="Generate what cannot be downloaded (dirty-mnist).")
    ] = False,
    data_root: Root = None,
) -> None:
    """Download or generate the files of a source. Existing files are kept, downloads resume."""
    from udjfl.data import Preparation, find_data_mistakes, find_source

    mistakes = find_data_mistakes(name, None, None, root=data_root)
    known = _find_source(name)
    if regenerate and known is not None and not known.can_regenerate:
        mistakes.append(f"regenerate: {known.name} has nothing to generate; leave it out")
    if mistakes:
        raise SettingsError(mistakes)
    source, options = find_source(name)
    if source.prepare is None:
        print(f"{source.name}: nothing to prepare. {source.how_to_get}")
        return
    with _show_progress() as on_progress:
        lines = source.prepare(
            Preparation(source.request(0, data_root, options), regenerate, on_progress)
        )
    print("\n".join(lines))


def _find_source(name: str) -> Source | None:
    """Return the source of this name, None if there is none. Options are not checked."""
    from udjfl.data import find_source

    with contextlib.suppress(SettingsError):
        return find_source(name)[0]
    return None


def _check_settings(values: dict[str, Any], contact_sheet: Path | None) -> DescribeSettings:
    """Return the settings, or raise one error with every mistake."""
    from udjfl.data import find_data_mistakes

    # Names are checked separately: the settings do not know the sources. Numbers were checked.
    columns = {k: v for k, v in values.items() if k in TableSettings.model_fields}
    mistakes = find_data_mistakes(
        values["data"],
        None,
        values.get("partition"),
        root=values.get("data_root"),
        options=columns,
    )
    if contact_sheet is not None:
        mistakes += _find_sheet_mistakes(contact_sheet, _find_source(values["data"]))
    try:
        settings = validate_settings(DescribeSettings, values)
    except SettingsError as error:
        mistakes = list(dict.fromkeys([*error.mistakes, *mistakes]))
    if mistakes:
        raise SettingsError(mistakes)
    return settings


def _find_sheet_mistakes(path: Path, source: Source | None) -> list[str]:
    if source is not None and source.to_pixels is None:
        return [f"contact_sheet: the examples of {source.name} are not images; leave it out"]
    if not path.is_dir() and path.suffix.lower() != ".png":
        return [f"contact_sheet: {path} is no .png file; give it a name that ends so"]
    if not path.parent.is_dir():
        return [f"contact_sheet: there is no folder {path.parent}; make it, or choose another"]
    return []


def _draw(settings: DescribeSettings, federation: Federation, target: Path) -> Path:
    """Write the contact sheet, in a folder under a name made from the source's."""
    from udjfl._files import write_atomic
    from udjfl.data import find_source
    from udjfl.report.contact_sheet import draw_contact_sheet

    source, options = find_source(settings.data)
    assert source.to_pixels is not None, "checked with the settings"
    clients = len(federation.clients)
    request = source.request(settings.seed, settings.data_root, options, clients)
    pools = source.load_pools(request)
    sheet = draw_contact_sheet(
        federation.name, pools, source.to_pixels, settings.seed, federation.clients
    )
    path = target / f"{source.name}-contact-sheet.png" if target.is_dir() else target
    try:
        write_atomic(path, sheet)
    except StorageError as error:  # its own advice is about run folders
        reason = getattr(error.__cause__, "strerror", None) or "it is not possible"
        raise StorageError(
            f"contact_sheet: cannot write {path}: {reason}; choose another file"
        ) from None
    return path


@contextlib.contextmanager
def _show_progress() -> Iterator[Callable[[str, int, int], None]]:
    """Show a bar for each stage on a terminal, plain lines elsewhere, on standard error."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield _print_quarters()
        return

    from rich import progress
    from rich.table import Column

    # Amounts and times are shown whole; name and bar share the rest of the line.
    name = Column(ratio=2, no_wrap=True, overflow="ellipsis")
    columns = (
        progress.TextColumn("{task.description}", markup=False, table_column=name),
        progress.BarColumn(bar_width=None, table_column=Column(ratio=1)),
        progress.TextColumn("{task.fields[amount]}", table_column=Column(no_wrap=True)),
        progress.TimeRemainingColumn(elapsed_when_finished=True),
    )
    with progress.Progress(*columns, console=console, expand=True) as bar:
        tasks: dict[str, progress.TaskID] = {}

        def on_progress(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bar.add_task(stage, total=None, amount="")
            # Without a total the bar only pulses.
            amount = _format_amount(stage, done, total)
            bar.update(tasks[stage], completed=done, total=total or None, amount=amount)

        yield on_progress


def _print_quarters() -> Callable[[str, int, int], None]:
    """Return a callback that prints a line for each quarter of a stage, for short logs."""
    quarters: dict[str, int] = {}

    def on_progress(stage: str, done: int, total: int) -> None:
        quarter = 4 * done // total if total else 0
        if quarter != quarters.setdefault(stage, 0):
            quarters[stage] = quarter
            print(f"{stage}: {_format_amount(stage, done, total)}", file=sys.stderr, flush=True)

    return on_progress


def _format_amount(stage: str, done: int, total: int) -> str:
    """Format "done of total": in bytes for downloads, whose stage is the name of a file."""
    from rich.filesize import decimal

    is_file = PurePath(stage).suffix != ""
    shown = [decimal(number) if is_file else f"{number:,}" for number in (done, total)]
    return " of ".join(shown if total else shown[:1])
