"""The base of all settings, and fields that several of them have."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, PlainSerializer, model_validator
from pydantic.fields import FieldInfo

MOST = 2**31 - 1  # of what is only counted


def split_names(text: str) -> list[str]:
    """Split names that are separated by commas."""
    return [part.strip() for part in text.split(",") if part.strip()]


class Settings(BaseModel):
    """Base of all settings. Settings may contain others, but are written flat everywhere.

    In TOML files, on the command line, in keywords and in run folders a setting has one name,
    whichever group it belongs to: `rounds`, not `training.rounds`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @classmethod
    @functools.cache
    def groups(cls) -> dict[str, type[Settings]]:
        """Return the settings that these are composed of, by attribute."""
        kinds = {name: field.annotation for name, field in cls.model_fields.items()}
        return {
            name: kind
            for name, kind in kinds.items()
            if isinstance(kind, type) and issubclass(kind, Settings)
        }

    @classmethod
    def group_names(cls) -> list[str]:
        """Return the attributes of all groups, also of groups in groups."""
        inner = [name for group in cls.groups().values() for name in group.group_names()]
        return [*cls.groups(), *inner]

    @classmethod
    @functools.cache
    def flat_fields(cls) -> dict[str, FieldInfo]:
        """Return every setting by its flat name."""
        groups = cls.groups()
        own = {name: field for name, field in cls.model_fields.items() if name not in groups}
        return {k: f for group in groups.values() for k, f in group.flat_fields().items()} | own

    def to_flat(self) -> dict[str, Any]:
        """Return every value by its flat name."""
        values = self.model_dump()
        nested = {k: v for name in self.groups() for k, v in getattr(self, name).to_flat().items()}
        return nested | {name: v for name, v in values.items() if name not in self.groups()}

    @model_validator(mode="before")
    @classmethod
    def _nest(cls, values: Any) -> Any:
        """Sort flat names into the groups they belong to; a name of several goes to each."""
        groups = cls.groups()
        if not isinstance(values, dict) or not groups:
            return values
        nested = dict(values)
        used: set[str] = set()
        for name, group in groups.items():
            if isinstance(nested.get(name), group):
                continue
            given = nested.pop(name, {})
            flat = {key: values[key] for key in group.flat_fields() if key in values}
            used |= flat.keys()
            nested[name] = {**given, **flat} if isinstance(given, dict) else given
        return {key: value for key, value in nested.items() if key not in used - groups.keys()}


AnySettings = TypeVar("AnySettings", bound=Settings)


# Settings that several commands have.
DataRoot = Annotated[
    str | None,
    Field(description="folder with the data's files; default: UDJFL_DATA, then the cache"),
]
ModelName = Annotated[
    str, Field(description="mlp, cnn, logistic, or your own as package.module:function")
]
Rounds = Annotated[int, Field(ge=1, le=MOST, description="rounds of federated training")]
Device = Annotated[str, Field(description="cpu, cuda, cuda:1, ...")]


def describe_function(value: Any) -> Any:
    """Return a function as `module:name`, for JSON; other values as they are."""
    if not callable(value):
        return value
    return f"{getattr(value, '__module__', '?')}:{getattr(value, '__qualname__', type(value))}"


# A name, package.module:function or, in Python, a function; in JSON always a text.
FunctionOrName = Annotated[str | Callable[..., Any], PlainSerializer(describe_function)]
Workers = Annotated[
    int,
    Field(
        ge=0,
        le=MOST,
        description="cores for each process (0: an equal share); results do not depend on it",
    ),
]
TaskChoice = Annotated[
    Literal["auto", "classification", "binary", "regression"],
    Field(
        description="what is predicted: classes; binary, two classes by a model that may have "
        "one logit; regression, numbers; auto: numbers if the labels are, and of tables classes"
    ),
]
