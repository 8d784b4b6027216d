"""Build settings from given values or a TOML file; every mistake is told at once."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from udjfl._files import parse_toml, read_prefix
from udjfl.errors import SettingsError, did_you_mean, show_short
from udjfl.settings.base import AnySettings

MOST_TOML_BYTES = 1 << 20
# What a value must be, by pydantic's names of mistakes.
RULES = {
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "a whole number"),
    "int_parsing_size": "a whole number with fewer digits",
    **dict.fromkeys(("float_type", "float_parsing"), "a number"),
    "finite_number": "a finite number",
    **dict.fromkeys(("bool_type", "bool_parsing"), "true or false"),
    "string_type": "a text",
    **dict.fromkeys(("list_type", "tuple_type"), "a list"),
    **dict.fromkeys(("dict_type", "mapping_type"), "a table of names and values"),
    "callable_type": "a function",
    "greater_than": "more than {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
}
OTHER_SPELLINGS = {
    "optimizer": "optimiser",
    "uncertainty_optimizer": "uncertainty_optimiser",
    "server_optimiser": "server_optimizer",
}


def validate_settings(cls: type[AnySettings], values: Mapping[str, Any]) -> AnySettings:
    """Build settings from values by their flat names; a `SettingsError` lists every mistake."""
    known, groups = cls.flat_fields(), cls.group_names()
    mistakes = find_double_spellings(values)
    values = unify_spelling(values)
    mistakes += [f"{k}: no such setting.{did_you_mean(k, known)}" for k in values if k not in known]
    try:
        settings = cls(**{key: value for key, value in values.items() if key in known})
    except ValidationError as error:
        mistakes += describe_mistakes(error, known, groups=groups)
    if mistakes:
        raise SettingsError(mistakes)
    return settings


def find_double_spellings(values: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each setting that is given in both of its spellings."""
    return [
        f"{ours}: is given twice, as {ours} and as {other}; leave one out"
        for other, ours in OTHER_SPELLINGS.items()
        if ours in values and other in values
    ]


def unify_spelling(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values by the names that settings have here."""
    return {OTHER_SPELLINGS.get(key, key): value for key, value in values.items()}


def read_toml(path: Path) -> dict[str, Any]:
    """Read the values of a TOML file, by the names that settings have here."""
    try:
        values = parse_toml(read_prefix(path, MOST_TOML_BYTES))
    except OSError as error:
        raise SettingsError(f"config: cannot read {path}: {error.strerror}") from None
    except ValueError as error:  # of the syntax, the encoding, or a number with too many digits
        raise SettingsError(f"config: {path} is not valid TOML: {error}") from None
    mistakes = find_double_spellings(values)
    if mistakes:
        raise SettingsError(mistakes)
    return unify_spelling(values)


def describe_mistakes(
    error: ValidationError,
    known: Iterable[str],
    noun: str = "setting",
    groups: Iterable[str] = (),
) -> list[str]:
    """Return one sentence for each mistake that pydantic found, naming the field.

    `known` are the existing fields; names of `groups` are left out of a field's location.
    """
    lines: list[str] = []
    of_items: list[str] = []
    names = set(groups)
    for mistake in error.errors(include_url=False):
        location = list(mistake["loc"])
        while location and location[0] in names:
            del location[0]
        is_item = bool(location) and isinstance(location[-1], int)
        if is_item:
            del location[-1]  # the value shows which one it is
        field = ".".join(str(part) for part in location if not _is_union_branch(part))
        if mistake["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
            lines.append(f"{field}: no such {noun}.{did_you_mean(field, known)}")
        elif mistake["type"] == "missing":
            lines.append(f"{field}: is missing")
        elif mistake["type"] == "literal_error":
            options = re.findall(r"'([^']*)'", mistake["ctx"]["expected"])
            hint = did_you_mean(str(mistake["input"]), options)
            lines.append(f"{field}: unknown value {show_short(mistake['input'])}.{hint}")
        elif mistake["type"] == "value_error":
            lines.append(
                f"{field}: {mistake['ctx']['error']}" if field else str(mistake["ctx"]["error"])
            )
        else:
            line = f"{field}: {describe_rule(mistake, is_item)}, got {show_short(mistake['input'])}"
            (of_items if is_item else lines).append(line)
    # Pydantic lists every branch of a union; one sentence about a field is enough: that about a
    # value of a list where a list was given, else the first.
    sentences: dict[str, str] = {}
    for line in (*of_items, *lines):
        sentences.setdefault(line.partition(":")[0], line)
    return list(sentences.values())


def _is_union_branch(part: int | str) -> bool:
    """Tell whether pydantic added this part of a location for a branch of a union."""
    return isinstance(part, str) and (
        part in ("float", "int", "str", "bool", "callable") or "[" in part
    )


def describe_rule(mistake: Mapping[str, Any], is_item: bool = False) -> str:
    """Return the rule that a value breaks, from a mistake as pydantic describes it.

    With `is_item` it is one value of a list.
    """
    rule = RULES.get(mistake["type"])
    if rule is None:
        text = str(mistake["msg"])
        return text[:1].lower() + text[1:]
    must = "each must be" if is_item else "must be"
    limits = {key: _plain(value) for key, value in mistake.get("ctx", {}).items()}
    return f"{must} {rule.format(**limits)}"


def _plain(limit: Any) -> Any:
    return int(limit) if isinstance(limit, float) and limit.is_integer() else limit
