"""Options that commands share: a flag for every setting, and settings from flags and a file."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import typer
from pydantic.fields import FieldInfo

from udjfl.errors import SettingsError
from udjfl.settings import (
    AnySettings,
    CompareSettings,
    RunSettings,
    Settings,
    read_toml,
    validate_settings,
)

# The names that `--data` completes, listed here because `udjfl.data` imports torch.
DATA_NAMES = ("dirty-digits", "scanners", "dirty-mnist", "cure-tsr", "signs", "heart")
# Settings that name something to be looked up: their types cannot tell which names exist.
LOOKED_UP = ("method", "methods", "params", "data", "data_root", "partition", "model", "device")
METAVARS: dict[Any, str] = {int: "INTEGER", int | None: "INTEGER", float: "NUMBER"}

Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="TOML file with settings, named like the flags; flags win over it.",
    ),
]
Params = Annotated[
    list[str] | None,
    typer.Option(
        "-p",
        "--param",
        metavar="KEY=VALUE",
        help="A parameter of the method (`udjfl methods NAME`); repeat for more.",
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out",
        metavar="FOLDER",
        help="Folder to store the run in; `udjfl resume FOLDER` continues it.",
    ),
]
AsJson = Annotated[
    bool,
    typer.Option("--json", help="Print one JSON document instead of tables."),
]


def complete_data(incomplete: str) -> list[str]:
    """Complete the name of a data source."""
    return [name for name in DATA_NAMES if name.startswith(incomplete)]


def complete_method(incomplete: str) -> list[str]:
    """Complete the name of a built-in method."""
    from udjfl.report.methods import method_names

    return [name for name in method_names() if name.startswith(incomplete)]


def complete_methods(incomplete: str) -> list[str]:
    """Complete the last of several methods separated by commas."""
    before, comma, last = incomplete.rpartition(",")
    everything = [] if comma or not "all".startswith(last) else ["all"]
    return [f"{before}{comma}{name}" for name in [*complete_method(last), *everything]]


COMPLETIONS = {"data": complete_data, "method": complete_method, "methods": complete_methods}


def with_settings(cls: type[Settings]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command one flag for every setting, so that flags and settings cannot drift apart.

    Flags arrive as text, or None if not given; the settings' own checks convert them, so that all
    mistakes are found at once.
    """
    fields = {name: field for name, field in cls.flat_fields().items() if name != "params"}

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        def wrapper(**given: Any) -> None:
            flags = {name: given.pop(name) for name in fields}
            command(
                flags={name: value for name, value in flags.items() if value is not None}, **given
            )

        own = inspect.signature(command, eval_str=True).parameters.values()
        wrapper.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [
                *(parameter for parameter in own if parameter.name != "flags"),
                *(_make_flag(name, field) for name, field in fields.items()),
            ]
        )
        wrapper.__doc__ = command.__doc__
        wrapper.__name__ = command.__name__
        return wrapper

    return decorate


def _make_flag(name: str, field: FieldInfo) -> inspect.Parameter:
    """Make the keyword parameter that typer turns into the flag of a setting."""
    flag = name.replace("_", "-")
    is_switch = field.annotation is bool
    choices = [str(c) for c in get_args(field.annotation)] * (
        get_origin(field.annotation) is Literal
    )
    metavar = "|".join(choices) or METAVARS.get(field.annotation, "TEXT")
    option = typer.Option(
        f"--{flag}/--no-{flag}" if is_switch else f"--{flag}",
        metavar=None if is_switch else metavar,
        help=_describe(field),
        show_default=False,
        autocompletion=COMPLETIONS.get(name) or (_complete_from(choices) if choices else None),
    )
    value = bool | None if is_switch else str | None
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[value, option]
    )


def _describe(field: FieldInfo) -> str:
    """Return the description of a setting as a sentence, with its default."""
    text, default = field.description or "", field.default
    if not text.split()[0].endswith(","):  # a list of values begins in lower case
        text = text[:1].upper() + text[1:]
    if isinstance(default, list):
        default = ",".join(map(str, default))
    elif isinstance(default, bool):
        default = "yes" if default else "no"
    return f"{text}." if default is None else f"{text} (default: {default})."


def _complete_from(choices: Iterable[str]) -> Callable[[str], list[str]]:
    return lambda incomplete: [choice for choice in choices if choice.startswith(incomplete)]


def read_settings(
    cls: type[AnySettings],
    config: Path | None,
    flags: Mapping[str, Any],
    param: list[str] | None = None,
    defaults: Mapping[str, Any] | None = None,
) -> AnySettings:
    """Read settings from flags, then the file, then `defaults`. One error has every mistake."""
    mistakes: list[str] = []
    values: dict[str, Any] = dict(flags)
    try:
        values = {**(defaults or {}), **(read_toml(config) if config else {}), **flags}
    except SettingsError as error:
        mistakes += error.mistakes
    params, wrong_params = _parse_params(param or [])
    mistakes += wrong_params
    if "params" in cls.flat_fields() and isinstance(values.get("params", {}), dict):
        values["params"] = {**values.get("params", {}), **params}
    try:
        settings = validate_settings(cls, values)
    except SettingsError as error:
        mistakes += error.mistakes
    # Names are looked up even where another setting is wrong.
    with contextlib.suppress(SettingsError):
        mistakes += _find_wrong_names(
            validate_settings(cls, {key: values[key] for key in LOOKED_UP if key in values})
        )
    if mistakes:
        raise SettingsError(mistakes)
    return settings


def _parse_params(pairs: list[str]) -> tuple[dict[str, str], list[str]]:
    """Split `KEY=VALUE` pairs; return the parameters, and a sentence for each wrong pair."""
    params: dict[str, str] = {}
    mistakes = []
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if equals and key:
            params[key.strip()] = value.strip()
        else:
            mistakes.append(f"-p {pair}: expected KEY=VALUE, as in -p beta=5")
    return params, mistakes


def _find_wrong_names(settings: Settings) -> list[str]:
    """Return a sentence for each method, data source, partition, model or device not found."""
    from udjfl.data import find_data_mistakes
    from udjfl.engine import check_device
    from udjfl.methods import method as build_method
    from udjfl.models import check_model
    from udjfl.simulation.compare import choose_methods

    checks: list[Callable[[], object]] = []
    if isinstance(settings, RunSettings):
        checks.append(lambda: build_method(settings.method, **settings.params))
    elif isinstance(settings, CompareSettings):
        checks.append(lambda: choose_methods(settings))
    flat = settings.to_flat()
    checks += [lambda: check_model(flat["model"]), lambda: check_device(flat["device"])]
    mistakes: list[str] = []
    for check in checks:
        try:
            check()
        except SettingsError as error:
            mistakes += error.mistakes
    partition = flat.get("partition")
    return mistakes + find_data_mistakes(flat["data"], None, partition, root=flat["data_root"])
