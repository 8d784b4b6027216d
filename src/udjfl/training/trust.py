"""Code that a folder names: refused, unless the caller says that it is trusted."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from udjfl._spec import names_code
from udjfl.errors import SettingsError
from udjfl.settings.base import split_names

# Settings that may be `package.module:Name`.
NAMES = ("model", "method", "methods", "data", "loss", "score")


def refuse_code(folder: Path, settings: Mapping[str, Any]) -> None:
    """Refuse to import what the settings in a folder name, which another person may have written.

    Names without a colon are looked up among what is built in or installed.
    """
    name = find_code(settings)
    if name is not None:
        raise SettingsError(
            f"{folder} names code to import: {name}. If you trust it, add --trust-model "
            "(in Python, trust_model=True)"
        )


def find_code(settings: Mapping[str, Any]) -> str | None:
    """Return the first name in the settings that would be imported, None if there is none."""
    return next((name for name in _names_in(settings) if names_code(name)), None)


def _names_in(settings: Mapping[str, Any]) -> Iterator[str]:
    for key in NAMES:
        given = settings.get(key)
        for value in given if isinstance(given, list) else [given]:
            if isinstance(value, str):
                # Methods may be given as one text with commas; so may options of a name.
                yield from dict.fromkeys([*split_names(value), value])
