"""Data sources by name: the built-in ones, one module each, and those of other packages."""

import inspect

from udjfl._spec import Registry
from udjfl.data.source import Source, parse_data
from udjfl.data.sources import (
    cure_tsr,
    dirty_digits,
    dirty_mnist,
    files,
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

    `text` is a registered name or `package.module:NAME`, where NAME is a `Source` or a function
    without arguments that returns one; options follow as `:key=value`. Or it names files.
    """
    if files.name_files(text):
        return files.SOURCE, {"files": text}
    known = SOURCES.get(text.partition(":")[0].strip())
    name, options = parse_data(text, known.usual_option if known else None)
    found: object = SOURCES.find(name)
    if inspect.isfunction(found) and not inspect.signature(found).parameters:
        found = found()
    return _require_source(found, name), options


def _require_source(found: object, name: str) -> Source:
    if isinstance(found, Source):
        return found
    raise SettingsError(
        f"data: {name!r} is of type {type(found).__name__}; name a udjfl.data.Source, or a "
        "function without arguments that returns one"
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
