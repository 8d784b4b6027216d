"""What commands have in common: a flag for every setting, settings from file and flags, warnings and progress on the way."""

from __future__ import annotations

import contextlib
import inspect
import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import typer

from udjfl.errors import SettingsError
from udjfl.settings import (
    AnySettings,
    CompareSettings,
    DataSettings,
    ReproduceSettings,
    RunSettings,
    Settings,
    TrainingSettings,
    checked,
    read_toml,
)

# Called with what is trained, the seed, the stage, how much is done, and of how much.
Telling = Callable[[str, int, str, int, int], None]

Config = Annotated[
    Path | None, typer.Option("--config", help="TOML file with settings; flags win over it.")
]
Params = Annotated[
    list[str] | None,
    typer.Option(
        "-p", "--param", metavar="KEY=VALUE", help="A parameter of the method; repeat for more."
    ),
]
Out = Annotated[
    Path | None,
    typer.Option("--out", help="Folder to keep the run in; `udjfl resume` goes on from there."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document on standard output.")]


def with_settings(kind: type[Settings]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command one flag for every setting, so that flags and settings cannot drift apart.

    Flags arrive as text (None if not given) and the settings' own checks convert them: all mistakes are found at once.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = [
            p
            for p in inspect.signature(command, eval_str=True).parameters.values()
            if p.name != "flags"
        ]
        for name, about in kind.model_fields.items():
            if name == "params":
                continue
            flag = "--" + name.replace("_", "-")
            is_switch = about.annotation is bool
            names = f"{flag}/--no-{name.replace('_', '-')}" if is_switch else flag
            default = (
                about.default
                if not isinstance(about.default, list)
                else ",".join(map(str, about.default))
            )
            choices = (
                "|".join(map(str, get_args(about.annotation)))
                if get_origin(about.annotation) is Literal
                else None
            )
            kinds: dict[Any, str] = {int: "INTEGER", int | None: "INTEGER", float: "NUMBER"}
            kind_name = kinds.get(about.annotation, "TEXT")
            option = typer.Option(
                names,
                metavar=None if is_switch else choices or kind_name,
                help=f"{about.description} (default: {default})"
                if default is not None
                else about.description,
                show_default=False,
            )
            annotation = Annotated[(bool | None) if is_switch else (str | None), option]  # type: ignore[valid-type]
            own.append(
                inspect.Parameter(
                    name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation
                )
            )

        def wrapper(**given: Any) -> None:
            flags = {name: given.pop(name) for name in kind.model_fields if name in given}
            command(
                flags={name: value for name, value in flags.items() if value is not None}, **given
            )

        wrapper.__signature__ = inspect.Signature(own)  # type: ignore[attr-defined]
        wrapper.__doc__ = command.__doc__
        wrapper.__name__ = command.__name__
        return wrapper

    return decorate


def settings_of(
    kind: type[AnySettings],
    config: Path | None,
    flags: Mapping[str, Any],
    param: list[str] | None = None,
    usual: Mapping[str, Any] | None = None,
) -> AnySettings:
    """Settings from flags, then the file, then what is usual. Every mistake in any of them is in the one error."""
    mistakes: list[str] = []
    params: dict[str, Any] = {}
    values: dict[str, Any] = dict(flags)
    try:
        values = {**(usual or {}), **(read_toml(config) if config else {}), **flags}
    except SettingsError as error:
        mistakes += error.mistakes
    for pair in param or []:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            mistakes.append(f"-p {pair}: expected KEY=VALUE, as in -p beta=5")
            continue
        params[key.strip()] = value.strip()
    if "params" in kind.model_fields and isinstance(values.get("params", {}), dict):
        values["params"] = {**values.get("params", {}), **params}
    try:
        settings = checked(kind, values)
    except SettingsError as error:
        mistakes += error.mistakes
    # Names are looked up separately: the types of the settings cannot know which methods and data there are.
    looked_up = ("method", "methods", "params", "data", "data_root", "partition", "model", "device")
    names: dict[str, Any] = {key: values[key] for key in looked_up if key in values}
    with contextlib.suppress(SettingsError):
        mistakes += _wrong_names(checked(kind, names))
    if mistakes:
        raise SettingsError(mistakes)
    return settings


def _wrong_names(settings: Settings) -> list[str]:
    from udjfl.data import mistakes_in
    from udjfl.engine import check_device
    from udjfl.methods import parse_method
    from udjfl.models import check_model
    from udjfl.simulation.compare import chosen_methods

    checks: list[Callable[[], object]] = []
    if isinstance(settings, RunSettings):
        checks.append(lambda: parse_method(settings.method, settings.params))
    if isinstance(settings, CompareSettings):
        checks.append(lambda: chosen_methods(settings))
    if isinstance(settings, TrainingSettings | ReproduceSettings):
        checks += [lambda: check_model(settings.model), lambda: check_device(settings.device)]
    mistakes: list[str] = []
    for check in checks:
        try:
            check()
        except SettingsError as error:
            mistakes += error.mistakes
    if isinstance(settings, DataSettings):
        mistakes += mistakes_in(
            settings.data, settings.clients, settings.partition, root=settings.data_root
        )
    if isinstance(settings, ReproduceSettings):
        mistakes += mistakes_in(settings.data, None, None, root=settings.data_root)
    return mistakes


@contextlib.contextmanager
def warnings_shown() -> Iterator[None]:
    """What the package logs, on standard error."""
    from rich.console import Console
    from rich.logging import RichHandler

    logger = logging.getLogger("udjfl")
    handler = RichHandler(
        console=Console(stderr=True), show_time=False, show_path=False, markup=False
    )
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


@contextlib.contextmanager
def progress_shown(runs: int, rounds: int, unit: str = "rounds") -> Iterator[Telling]:
    """A bar on a terminal; a plain line per finished run elsewhere. On standard error, so that output stays clean.

    There may be more runs in the end than was known at the beginning.
    """
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:

        def lines(label: str, seed: int, stage: str, done: int, total: int) -> None:
            if stage in ("training", "alone") and done == total:
                amount = f", {total} rounds" if stage == "training" else ""
                print(f"seed {seed}: {label} done{amount}", file=sys.stderr, flush=True)

        yield lines
        return

    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(unit),
    )
    with Progress(
        *columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console, transient=True
    ) as bar:
        task = bar.add_task("starting", total=runs * rounds)
        so_far: dict[
            tuple[str, int], int
        ] = {}  # several methods and seeds may be at work at the same time

        def move(label: str, seed: int, stage: str, done: int, total: int) -> None:
            if stage == "uncertainty":
                bar.update(task, description=f"seed {seed}: each client alone, {done}/{total}")
                return
            so_far[label, seed] = done
            description = f"seed {seed}: {label}"[:40].ljust(40)
            bar.update(
                task,
                completed=sum(so_far.values()),
                total=max(runs, len(so_far)) * rounds,
                description=description,
            )

        yield move
