"""The commands. Thin: they turn flags into settings, call the package, and show what came back."""

from __future__ import annotations

import contextlib
import inspect
import json
import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin

import typer

from udjfl.config import (
    AnySettings,
    CompareSettings,
    DataSettings,
    RunSettings,
    Settings,
    TrainingSettings,
    checked,
    read_toml,
    training_part,
)
from udjfl.errors import SettingsError, StorageError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from udjfl.methods import Method

# The one line of each command on the front page is in `udjfl.cli`, which imports this module only when one is called.
app = typer.Typer(rich_markup_mode=None, add_completion=False)

Config = Annotated[Path | None, typer.Option("--config", help="TOML file with settings; flags win over it.")]
Params = Annotated[
    list[str] | None,
    typer.Option("-p", "--param", metavar="KEY=VALUE", help="A parameter of the method; repeat for more."),
]
Out = Annotated[Path | None, typer.Option("--out", help="Folder to keep the run in; `udjfl resume` goes on from there.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document on standard output.")]


def with_settings(kind: type[Settings]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command one flag for every setting, so that flags and settings cannot drift apart.

    Flags arrive as text (None if not given) and the settings' own checks convert them: all mistakes are found at once.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.name != "flags"]
        for name, about in kind.model_fields.items():
            if name == "params":
                continue
            flag = "--" + name.replace("_", "-")
            is_switch = about.annotation is bool
            names = f"{flag}/--no-{name.replace('_', '-')}" if is_switch else flag
            default = about.default if not isinstance(about.default, list) else ",".join(map(str, about.default))
            choices = "|".join(map(str, get_args(about.annotation))) if get_origin(about.annotation) is Literal else None
            kind_name = "INTEGER" if about.annotation is int else "NUMBER" if about.annotation is float else "TEXT"
            option = typer.Option(
                names,
                metavar=None if is_switch else choices or kind_name,
                help=f"{about.description} (default: {default})",
                show_default=False,
            )
            annotation = Annotated[(bool | None) if is_switch else (str | None), option]  # type: ignore[valid-type]
            own.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation))

        def wrapper(**given: Any) -> None:
            flags = {name: given.pop(name) for name in kind.model_fields if name in given}
            command(flags={name: value for name, value in flags.items() if value is not None}, **given)

        wrapper.__signature__ = inspect.Signature(own)  # type: ignore[attr-defined]
        wrapper.__doc__ = command.__doc__
        wrapper.__name__ = command.__name__
        return wrapper

    return decorate


@app.command("run")
@with_settings(RunSettings)
def run_command(
    *,
    config: Config = None,
    param: Params = None,
    out: Out = None,
    json: AsJson = False,
    flags: dict[str, Any],
) -> None:
    """Train one method on one federation and show what it does to each client."""
    settings = _settings(RunSettings, config, flags, param)
    _run(settings, out, resume=False, as_json=json)


@app.command("compare")
@with_settings(CompareSettings)
def compare_command(
    *,
    config: Config = None,
    param: Params = None,
    out: Out = None,
    json: AsJson = False,
    flags: dict[str, Any],
) -> None:
    """Train several methods on the same federations, seed by seed. FedAvg is always among them."""
    settings = _settings(CompareSettings, config, flags, param)
    _compare(settings, out, resume=False, as_json=json)


@app.command("resume")
def resume_command(
    folder: Annotated[Path, typer.Argument(help="The folder given as --out to `udjfl run` or `udjfl compare`.")],
    json: AsJson = False,
) -> None:
    """Go on with a run or a comparison that was stopped. The result is what it would have been without the stop."""
    from udjfl.history import RunFolder

    kept_run = RunFolder.open(folder)
    about = kept_run.read_settings()
    if about.get("from_python"):
        raise SettingsError(
            f"{folder} was started from Python with data or methods of its own; call udjfl.compare(..., "
            f"out={str(folder)!r}, resume=True) with the same"
        )
    if "comparison" in about:
        if not isinstance(about["comparison"], dict):
            raise StorageError(f"{folder / 'settings.json'} is damaged; restore it, or start the comparison again elsewhere")
        _compare(checked(CompareSettings, about["comparison"]), folder, resume=True, as_json=json)
    else:
        about = kept_run.read_settings("training", "origin", "method", "params")
        if about["origin"] is None:
            raise SettingsError(
                f"{folder} was started from Python with data of its own; call udjfl.simulate(..., out={str(folder)!r}, "
                "resume=True) with the same federation"
            )
        kept = {**about["training"], **about["origin"], "method": about["method"]}
        _run(checked(RunSettings, {**kept, "params": about["params"]}), folder, resume=True, as_json=json)


@app.command("methods")
def methods_command(
    name: Annotated[str | None, typer.Argument(help="Show one method with its parameters.")] = None, json: AsJson = False
) -> None:
    """List the methods: whom they serve, how sure we are of them, their parameters."""
    from udjfl.report.catalogue import catalogue, catalogue_view, entry_view, find_entry

    if name is None:
        _show(catalogue_view(), catalogue(), json)
    else:
        _show(entry_view(find_entry(name)), find_entry(name), json)


def _settings(kind: type[AnySettings], config: Path | None, flags: dict[str, Any], param: list[str] | None) -> AnySettings:
    """Settings from file and flags, flags first. Every mistake in any of them is in the one error."""
    mistakes: list[str] = []
    params: dict[str, Any] = {}
    values: dict[str, Any] = dict(flags)
    try:
        values = {**(read_toml(config) if config else {}), **flags}
    except SettingsError as error:
        mistakes += error.mistakes
    for pair in param or []:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            mistakes.append(f"-p {pair}: expected KEY=VALUE, as in -p beta=5")
            continue
        params[key.strip()] = value.strip()
    if isinstance(values.get("params", {}), dict):
        values["params"] = {**values.get("params", {}), **params}
    try:
        settings = checked(kind, values)
    except SettingsError as error:
        mistakes += error.mistakes
    # Names are looked up separately: the types of the settings cannot know which methods and data there are.
    looked_up = ("method", "methods", "params", "data", "partition", "model", "device")
    names: dict[str, Any] = {key: values[key] for key in looked_up if key in values}
    with contextlib.suppress(SettingsError):
        mistakes += _wrong_names(checked(kind, names))
    if mistakes:
        raise SettingsError(mistakes)
    return settings


def _wrong_names(settings: Settings) -> list[str]:
    from udjfl.comparison import chosen_methods
    from udjfl.data import mistakes_in
    from udjfl.engine import check_device
    from udjfl.methods import parse_method
    from udjfl.models import check_model

    checks: list[Callable[[], object]] = []
    if isinstance(settings, RunSettings):
        checks.append(lambda: parse_method(settings.method, settings.params))
    if isinstance(settings, CompareSettings):
        checks.append(lambda: chosen_methods(settings))
    if isinstance(settings, TrainingSettings):
        checks += [lambda: check_model(settings.model), lambda: check_device(settings.device)]
    mistakes: list[str] = []
    for check in checks:
        try:
            check()
        except SettingsError as error:
            mistakes += error.mistakes
    if isinstance(settings, DataSettings):
        mistakes += mistakes_in(settings.data, settings.clients, settings.partition)
    return mistakes


def _run(settings: RunSettings, out: Path | None, *, resume: bool, as_json: bool) -> None:
    from udjfl.data import load
    from udjfl.methods import parse_method
    from udjfl.report.terminal import result_view
    from udjfl.result import summary
    from udjfl.simulation import run

    method = parse_method(settings.method, settings.params)
    training = training_part(settings)
    federation = load(settings.data, clients=settings.clients, partition=settings.partition, seed=settings.seed)
    with _warnings_shown(), _progress(1, settings.rounds) as progress:
        result = run(
            federation, method, training, settings.seed, out=out, resume=resume,
            progress=lambda stage, done, total: progress(method, settings.seed, stage, done, total),
        )  # fmt: skip
    _show(result_view(result), {**summary(result), "folder": str(out) if out else None}, as_json)
    if out:
        print(f"kept in {out}", file=sys.stderr)


def _compare(settings: CompareSettings, out: Path | None, *, resume: bool, as_json: bool) -> None:
    from udjfl.comparison import chosen_methods, compare
    from udjfl.report.terminal import comparison_view

    runs = len(chosen_methods(settings)) * len(settings.seeds)
    with _warnings_shown(), _progress(runs, settings.rounds) as progress:
        comparison = compare(settings, out=out, resume=resume, progress=progress)
    _show(comparison_view(comparison), comparison.as_dict(), as_json)
    if out:
        print(f"kept in {out}", file=sys.stderr)


@contextlib.contextmanager
def _warnings_shown() -> Iterator[None]:
    """What the package logs, on standard error."""
    from rich.console import Console
    from rich.logging import RichHandler

    logger = logging.getLogger("udjfl")
    handler = RichHandler(console=Console(stderr=True), show_time=False, show_path=False, markup=False)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


@contextlib.contextmanager
def _progress(runs: int, rounds: int) -> Iterator[Callable[[Method, int, str, int, int], None]]:
    """A bar on a terminal; a plain line per finished run elsewhere. On standard error, so that output stays clean."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:

        def lines(method: Method, seed: int, stage: str, done: int, total: int) -> None:
            if stage == "training" and done == total:
                print(f"seed {seed}: {method.label} done, {total} rounds", file=sys.stderr, flush=True)

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

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("rounds"))
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console, transient=True) as bar:
        task = bar.add_task("starting", total=runs * rounds)
        finished = 0

        def move(method: Method, seed: int, stage: str, done: int, total: int) -> None:
            nonlocal finished
            if stage == "uncertainty":
                bar.update(task, description=f"seed {seed}: each client alone, {done}/{total}")
                return
            bar.update(task, completed=finished + done, description=f"seed {seed}: {method.label}"[:40].ljust(40))
            if done == total:
                finished += total

        yield move


def _show(view: RenderableType, document: Any, as_json: bool) -> None:
    if as_json:
        print(json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False))
        return

    from rich.console import Console

    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=120)
    console.print(view)
