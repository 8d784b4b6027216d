"""The one grammar for methods, data, partitions and models, and the registries of names.

    name                          fedavg, dirty-digits, mlp
    name:key=value:key=value      udj:theory=rawls:beta=5
    name:value                    dirichlet:0.3, where one option is the usual one
    package.module:Name           an object of another package, imported when it is used
    package.module:Name:key=value

Keys may be written with `-` or `_`. The same text works on the command line, in TOML, in Python
and on Flower. Another package adds names with a `register_...` function, or with an entry point of
the registry's group.
"""

import importlib
import importlib.metadata
import re
from dataclasses import dataclass
from typing import Any, TypeVar

from udjfl.errors import SettingsError, did_you_mean

Entry = TypeVar("Entry")
DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


@dataclass(frozen=True)
class Spec:
    """A registered name or `package.module:Name`, and its options as text."""

    name: str
    options: dict[str, str]


def parse_spec(
    text: str, kind: str, usual_option: str | None = None, separators: str = ":"
) -> Spec:
    """Split `name:key=value:...`. A first option without `=` is the value of `usual_option`.

    `kind` names what is specified (`method`, `data`, `model`, ...) in error messages. Each
    character of `separators` ends the name or an option.
    """
    name, *parts = (piece.strip() for piece in re.split(f"[{re.escape(separators)}]", str(text)))
    if parts and "=" not in parts[0] and usual_option is None:
        name = f"{name}:{parts.pop(0)}"
    options: dict[str, str] = {}
    for number, part in enumerate(parts):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals and number == 0 and usual_option is not None:
            key, value = usual_option, part
        elif not equals or not key:
            raise SettingsError(
                f"{kind}: {text!r} has {part!r} where key=value was expected, as in name:key=value"
            )
        key = key.replace("-", "_")
        if key in options:
            raise SettingsError(f"{kind}: {text!r} gives {key} twice; give it once")
        options[key] = value
    return Spec(name, options)


def names_code(text: str) -> bool:
    """Tell whether a specification is of the form `package.module:Name`, which is imported."""
    parts = str(text).split(":")[1:]
    return bool(parts) and "=" not in parts[0]


def import_object(name: str, kind: str) -> Any:
    """Import `package.module:Name`."""
    module_name, _, attribute = name.partition(":")
    if not DOTTED.fullmatch(module_name) or not DOTTED.fullmatch(attribute):
        raise SettingsError(f"{kind}: {name!r} is not of the form package.module:Name")
    try:
        found: Any = importlib.import_module(module_name)
        for part in attribute.split("."):
            found = getattr(found, part)
    except ImportError as error:
        raise SettingsError(
            f"{kind}: cannot import {name!r}: {error}; is it installed, or in the current folder?"
        ) from None
    except AttributeError as error:
        raise SettingsError(f"{kind}: cannot import {name!r}: {error}") from None
    except Exception as error:  # the module's own code can raise anything
        raise SettingsError(
            f"{kind}: cannot import {name!r}: {type(error).__name__}: {error}"
        ) from error
    return found


class Registry(dict[str, Entry]):
    """Objects by name.

    Other names are looked up among entry points, `package.module:Name` is imported.
    """

    def __init__(self, kind: str, group: str) -> None:
        super().__init__()
        self.kind, self.group = kind, group

    def register(self, name: str, entry: Entry) -> Entry:
        """Add an entry under a new name."""
        if not re.fullmatch(r"[A-Za-z0-9_-]+", name):
            raise SettingsError(
                f"{self.kind}: {name!r} is not a name; use letters, digits, - and _ only"
            )
        if name in self and self[name] is not entry:
            raise SettingsError(f"{self.kind}: {name!r} is taken; choose another name")
        self[name] = entry
        return entry

    def find(self, name: str) -> Entry:
        """Return the entry of a name, or import `package.module:Name`."""
        if name in self:
            return self[name]
        if ":" in name:
            known, _, rest = name.partition(":")
            if known in self:
                raise SettingsError(
                    f"{self.kind}: {name!r} has {rest!r} where key=value was expected, "
                    f"as in {known}:key=value"
                )
            found: Entry = import_object(name, self.kind)
            return found
        for point in importlib.metadata.entry_points(group=self.group, name=name):
            return self.register(name, point.load())
        raise SettingsError(f"{self.kind}: unknown name {name!r}.{did_you_mean(name, self)}")

    def load_entry_points(self) -> None:
        """Register everything that installed packages offer under this registry's group."""
        for point in importlib.metadata.entry_points(group=self.group):
            if point.name not in self:
                self.register(point.name, point.load())
