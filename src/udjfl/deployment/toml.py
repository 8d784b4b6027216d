"""Values written as TOML (https://toml.io/en/v1.0.0), in which texts may have any character."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from udjfl.errors import DeploymentError

ConfigValue = str | int | float | bool
BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def to_toml(values: Mapping[str, ConfigValue]) -> str:
    """Return a line for each value."""
    return "".join(f"{format_key(key)} = {format_value(value)}\n" for key, value in values.items())


def format_key(key: str) -> str:
    """Return a key, quoted if it has to be."""
    return key if BARE_KEY.fullmatch(key) else format_value(key)


def format_value(value: ConfigValue) -> str:
    """Return a text, a number (also inf and nan), or true or false."""
    if isinstance(value, float):
        return repr(float(value))  # JSON has other names for inf and nan
    text = json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise DeploymentError(f"{value!r} is no text in UTF-8; write it in UTF-8") from None
    return text
