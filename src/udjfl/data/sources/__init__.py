"""Data sources by name: the built-in ones, one module each, and those of other packages."""

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from udjfl._spec import Registry
from udjfl.data.source import Request, Source, parse_data
from udjfl.data.sources import (
    cure_tsr,
    dirty_digits,
    dirty_mnist,
    files,
    folders,
    heart,
    rdatasets,
    scanners,
    synthetic,
    traffic_signs,
)
from udjfl.errors import SettingsError

SOURCES: Registry[Source] = Registry("data", "udjfl.sources")


def register_source(source: Source) -> Source:
    """Add a source under its own name, as in `load(source.name)` and `--data`."""
    source = _require_source(source, "register_source")
    return SOURCES.register(source.name, source)


def find_source(text: str) -> tuple[Source, dict[str, str]]:
    """Return the source that a text names, and its options as text.

    `text` is a registered name or `package.module:NAME`, where NAME is a `Source`, or a function
    that returns one or a `Federation`: without arguments, or of the seed. Options follow as
    `:key=value`. Or it names files, or a folder of images or of a saved federation.
    """
    known = SOURCES.get(text.partition(":")[0].strip())
    if known is None:
        folder = folders.name_folder(text)
        if folder is not None:
            path, options = parse_data(text)
            return folder, {"folder": path, **options}
        if files.name_files(text):
            return files.SOURCE, {"files": text}
    name, options = parse_data(text, known.usual_option if known else None)
    found: object = SOURCES.find(name)
    if inspect.isfunction(found):
        found = _call(found, name)
    return _require_source(found, name), options


def _call(function: Callable[..., object], name: str) -> object:
    """Return the source that a function without arguments gives, or one of its federations."""
    parameters = list(inspect.signature(function).parameters)
    if parameters == ["seed"]:
        return _make_source(name, function)
    if parameters:
        return function
    found = function()
    return _make_source(name, lambda _: found) if _is_federation(found) else found


def _make_source(name: str, load: Callable[[int], object]) -> Source:
    """Make a source of a function from the seed to a federation."""

    def load_federation(request: Request) -> Any:
        federation: Any = load(request.seed)
        if not _is_federation(federation):
            raise SettingsError(
                f"data: {name} returned {type(federation).__name__}; it must return a "
                "udjfl.Federation"
            )
        return replace(federation, is_checked=True)  # the user's own stays as it is

    return Source(
        name=name,
        summary="a function of your own",
        how_to_get="It is yours.",
        load_federation=load_federation,
        clients=None,
        partition="natural",
    )


def _is_federation(found: object) -> bool:
    from udjfl.data.federation import Federation

    return isinstance(found, Federation)


def _require_source(found: object, name: str) -> Source:
    if isinstance(found, Source):
        return found
    raise SettingsError(
        f"data: {name!r} is of type {type(found).__name__}; name a udjfl.data.Source, or a "
        "function, without arguments or of the seed, that returns one or a udjfl.Federation"
    )


for _module in (
    dirty_digits,
    scanners,
    synthetic,
    dirty_mnist,
    cure_tsr,
    traffic_signs,
    heart,
    rdatasets,
    files,
):
    register_source(_module.SOURCE)
register_source(folders.IMAGES)
register_source(folders.SAVED)
