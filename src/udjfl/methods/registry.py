"""Methods by name: registration, short names, and building one from its specification."""

import inspect
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import is_dataclass
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from udjfl._spec import parse_spec
from udjfl.errors import SettingsError, did_you_mean
from udjfl.methods.base import METHODS, THEORIES, Method, parameter_defaults

MethodClass = TypeVar("MethodClass", bound=type[Method])

# Short names for points of a family: name -> (method, parameters).
ALIASES: dict[str, tuple[str, dict[str, Any]]] = {
    theory: ("udj", {"theory": theory}) for theory in THEORIES
}


def register_method(cls: MethodClass) -> MethodClass:
    """Add a method's class under its `name`. Works as a decorator, above `parameters`."""
    _check_class(cls, repr(cls))
    if cls.name in ALIASES:
        raise SettingsError(f"method: {cls.name!r} is taken; choose another name")
    METHODS.register(cls.name, cls)
    return cls


def method(spec: str, /, **params: Any) -> Method:
    """Build a method from its specification; `params` win over parameters in the text.

    method("fedavg")                       a name
    method("rawls", beta=5)                a short name
    method("udj:theory=rawls:beta=5")      with parameters in the text
    method("my_package.rules:TrimmedMean:drop=2")   a class of another package
    """
    parsed = parse_spec(spec, "method")
    cls, preset = find(parsed.name)
    params = {**parsed.options, **params}
    for key, value in preset.items():
        if params.get(key, value) != value:
            raise SettingsError(
                f"{parsed.name}: {key} is what the short name stands for; "
                f"to choose another, ask for {cls.name!r}"
            )
    if "self" in params:  # Python's own name in the call below
        known = did_you_mean("self", parameter_defaults(cls))
        raise SettingsError(f"{parsed.name}: self: no such parameter.{known}")
    try:
        return cls(**{**preset, **params})
    except SettingsError as error:  # name the method as it was asked for, perhaps by a short name
        mistakes = [parsed.name + line.removeprefix(cls.name) for line in error.mistakes]
        raise SettingsError(mistakes) from None


def find(name: str) -> tuple[type[Method], dict[str, Any]]:
    """Return the class behind a name or `package.module:Class`, and what a short name sets."""
    target, preset = ALIASES.get(name, (name, {}))
    if target in METHODS:
        return METHODS[target], preset
    first, colon, rest = name.partition(":")
    if colon and (first in METHODS or first in ALIASES):
        raise SettingsError(
            f"method: {name!r} has {rest!r} where key=value was expected, "
            "as in udj:theory=rawls:beta=5"
        )
    if not colon:
        METHODS.load_entry_points()
        if name not in METHODS:
            known = did_you_mean(name, [*METHODS, *ALIASES])
            raise SettingsError(f"method: unknown name {name!r}.{known}")
    cls = METHODS.find(name)
    _check_class(cls, name)
    return cls, preset


def parameter_names(spec: str) -> set[str]:
    """Return the names of the parameters of the method that a specification names."""
    return set(parameter_defaults(find(parse_spec(spec, "method").name)[0]))


def fixed_parameters(spec: str) -> dict[str, Any]:
    """Return the parameters that a specification sets, through a short name too."""
    parsed = parse_spec(spec, "method")
    return {**find(parsed.name)[1], **parsed.options}


def shared_parameters(spec: str, shared: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of the parameters for several methods that one of them can use.

    They have a meaning for it, and its specification does not set them already.
    """
    cls, _ = find(parse_spec(spec, "method").name)
    own = fixed_parameters(spec)
    unset = {key: value for key, value in shared.items() if key not in own}
    usable = cls.parameters_beside({**unset, **own})
    return {key: value for key, value in unset.items() if key in usable}


def declared_needs(cls: type[Method]) -> dict[str, str]:
    """Return what a method may need: each field with its condition, `weights=size`, or ""."""
    preset = next((preset for name, preset in ALIASES.values() if METHODS.get(name) is cls), {})
    try:
        default = cls(**preset)
    except SettingsError:  # it has parameters without defaults
        return {}
    conditions = dict.fromkeys(default.needs, "")
    for parameter, hint in get_type_hints(cls).items():
        if parameter not in default.params:
            continue
        needs = {}
        for value in _choices(hint):
            with suppress(SettingsError):
                needs[value] = cls(**{**default.params, parameter: value}).needs
        for name in {name for found in needs.values() for name in found}:
            values = [f"{parameter}={value}" for value, found in needs.items() if name in found]
            if len(values) < len(needs):
                conditions[name] = " or ".join(values)
    return conditions


def _choices(hint: Any) -> list[Any]:
    """Return the values that a type names literally, such as 'size' and 'uniform'."""
    if get_origin(hint) is Literal:
        return list(get_args(hint))
    return [choice for part in get_args(hint) for choice in _choices(part)]


def _check_class(cls: Any, name: str) -> None:
    """Reject anything that is not the class of a complete method."""
    if not (isinstance(cls, type) and issubclass(cls, Method)):
        raise SettingsError(f"method: {name} is not a subclass of udjfl.Method; name such a class")
    if not is_dataclass(cls):
        raise SettingsError(f"method: {name} has no parameters; decorate it with udjfl.parameters")
    if inspect.isabstract(cls):
        raise SettingsError(f"method: {name} has no aggregate; write one")
    missing = [a for a in ("name", "title", "paper", "grade") if not hasattr(cls, a)]
    if missing:
        raise SettingsError(f"method: {name} does not set {', '.join(missing)}; every method does")
