"""The types of a stored preprocessing, checked when it is read: it may be somebody else's."""

from __future__ import annotations

import itertools
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, Strict, StrictBool, StrictStr, model_validator

Number = Annotated[float, Strict(), Field(allow_inf_nan=False)]


class FilledCode(BaseModel, extra="forbid"):
    """The code that a missing category becomes."""

    fill: Number


class FilledNumber(BaseModel, extra="forbid"):
    """The number that a missing one becomes, and the mean and scale of the column."""

    fill: Number
    mean: Number
    scale: Annotated[Number, Field(gt=0)]


Numbers = dict[StrictStr, FilledNumber | FilledCode | None]  # by column


class StoredColumn(BaseModel):
    """A column, with the codes and texts of its categories if it has some."""

    column: StrictStr
    codes: list[Number]
    labels: list[StrictStr]
    may_miss: StrictBool
    missing: dict[StrictStr, int]

    @model_validator(mode="after")
    def _codes_are_sorted_and_named(self) -> StoredColumn:
        if len(self.codes) != len(self.labels):
            raise ValueError(f"column {self.column!r} has other codes than labels")
        if any(a >= b for a, b in itertools.pairwise(self.codes)):
            raise ValueError(f"column {self.column!r} has codes that are not in order")
        return self


class StoredLabels(BaseModel):
    """The scale of the labels of a regression."""

    mean: Number
    scale: Annotated[Number, Field(gt=0)]


class StoredPreprocessing(BaseModel):
    """The dictionary that `Preprocessing.as_dict` returns."""

    target: StrictStr
    scaling: Literal["own", "shared", "none"]
    columns: Annotated[list[StoredColumn], Field(min_length=1)]
    left_out: dict[StrictStr, Any]
    numbers: dict[StrictStr, Numbers]
    shared_numbers: Numbers
    problems: list[StrictStr]
    labels: StoredLabels | None = None

    @model_validator(mode="after")
    def _every_client_has_every_column(self) -> StoredPreprocessing:
        names = {column.column for column in self.columns}
        if len(names) < len(self.columns):
            raise ValueError("a column is there twice")
        for numbers in (self.shared_numbers, *self.numbers.values()):
            if names - set(numbers):
                raise ValueError("a column has no numbers")
            if not all(_are_of_kind(each, numbers[each.column]) for each in self.columns):
                raise ValueError("a number lacks its mean and scale, or a category has them")
        if any(column.missing.keys() != self.columns[0].missing.keys() for column in self.columns):
            raise ValueError("a column has no count of missing values")
        return self


def _are_of_kind(column: StoredColumn, numbers: FilledNumber | FilledCode | None) -> bool:
    return numbers is None or isinstance(numbers, FilledCode if column.codes else FilledNumber)
