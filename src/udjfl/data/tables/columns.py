"""The schema of a table: which columns are numbers, which are categories, which are left out.

Clients agree on it: a column means the same everywhere, and so does each category. The schema says
nothing about values; those that are needed to fill and scale a column are in `preprocessing`.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from udjfl.errors import DataError, quote_values

if TYPE_CHECKING:
    import pandas as pd

Values: TypeAlias = npt.NDArray[np.float64]

UNKNOWN = -1.0  # the code of a category that a schema does not have
MOST_CATEGORIES = 128  # a column with more different texts is an id or free text
FEWEST_NUMBERED_ROWS = 10  # shorter columns 1, 2, 3, ... may be measurements
MOSTLY = 0.5
MAX_SHOWN = 3


@dataclass(frozen=True)
class Column:
    """A number or, if it has `codes`, a category: one code and one label for each.

    `may_miss` columns get a feature that says where the value was missing.
    """

    name: str
    codes: tuple[float, ...] = ()
    labels: tuple[str, ...] = ()
    may_miss: bool = True

    @property
    def features(self) -> tuple[str, ...]:
        """The names of the features made from it, without the one for missing values."""
        return tuple(f"{self.name}={label}" for label in self.labels) or (self.name,)


@dataclass(frozen=True)
class Schema:
    """The columns that become features, in order, and the reasons why others do not."""

    columns: tuple[Column, ...]
    left_out: Mapping[str, str] = field(default_factory=dict)

    @property
    def features(self) -> tuple[str, ...]:
        """The names of all features: those of the columns, then those for missing values."""
        values = [name for column in self.columns for name in column.features]
        missing = [f"{column.name} missing" for column in self.columns if column.may_miss]
        return (*values, *missing)

    def encode(self, frame: pd.DataFrame) -> Values:
        """Return the values of a frame [rows, columns], categories as codes, NaN if missing.

        A category that the schema does not have is `UNKNOWN`; a column that the frame does not have
        is missing.
        """
        table = np.full((len(frame), len(self.columns)), np.nan)
        for position, column in enumerate(self.columns):
            if column.name not in frame:
                continue
            if column.codes:
                codes = dict(zip(column.labels, column.codes, strict=True))
                texts = as_texts(frame[column.name])
                known = texts.map(lambda text, codes=codes: codes.get(text, UNKNOWN), "ignore")
                table[:, position] = known.astype("float64")
            else:
                table[:, position] = as_numbers(frame[column.name])
        table[~np.isfinite(table)] = np.nan
        return table

    def keep(self, train: Sequence[Values]) -> tuple[Schema, list[int]]:
        """Drop what no train part has: columns without two values, categories, indicators.

        Return the schema and the positions of the columns that are kept.
        """
        columns, kept, left_out = [], [], dict(self.left_out)
        for position, column in enumerate(self.columns):
            values = np.concatenate([part[:, position] for part in train])
            known = np.unique(values[~np.isnan(values)])
            if len(known) < 2:
                only = _show_value(column, known[0]) if len(known) else "no value"
                left_out[column.name] = f"constant: {only} in every train part"
                continue
            every = zip(column.codes, column.labels, strict=True)
            pairs = [(code, label) for code, label in every if code in known]
            columns.append(
                replace(
                    column,
                    codes=tuple(code for code, _ in pairs),
                    labels=tuple(label for _, label in pairs),
                    may_miss=bool(np.isnan(values).any()),
                )
            )
            kept.append(position)
        if not columns:
            raise DataError(f"no column is left to learn from: {_list_reasons(left_out)}")
        return Schema(tuple(columns), left_out), kept


def infer_schema(
    frames: Mapping[str, pd.DataFrame], names: Sequence[str], categories: Collection[str] = ()
) -> Schema:
    """Agree on the columns of these names; `categories` are categories also if they are numbers.

    Columns that cannot be used are left out, with the reason. A column that is a number for one
    client and a text for another is an error.
    """
    columns: list[Column] = []
    left_out: dict[str, str] = {}
    mistakes: list[str] = []
    for name in names:
        parts = {client: frame[name] for client, frame in frames.items() if name in frame}
        known = {client: part for client, part in parts.items() if part.notna().any()}
        if not known:
            left_out[name] = "no client has a value"
        elif len(known) == 1 and len(frames) > 1:
            left_out[name] = f"client {next(iter(known))!r} alone has it"
        elif name not in categories and _are_numbers(name, known, mistakes):
            if all(_numbers_rows(part) for part in known.values()):
                left_out[name] = "it numbers the rows"
            else:
                columns.append(Column(name))
        elif not mistakes or not mistakes[-1].startswith(_where(name)):
            labels = sorted({text for part in known.values() for text in as_texts(part).dropna()})
            if len(labels) > MOST_CATEGORIES:
                left_out[name] = f"{len(labels):,} different texts: an id, or free text"
            else:
                codes = tuple(float(number) for number in range(len(labels)))
                columns.append(Column(name, codes, tuple(labels)))
    if mistakes:
        raise DataError("\n".join(mistakes))
    if not columns:
        raise DataError(f"no column is left to learn from: {_list_reasons(left_out)}")
    return Schema(tuple(columns), left_out)


def find_header_problems(frames: Mapping[str, pd.DataFrame], names: Sequence[str]) -> list[str]:
    """Find columns that some clients do not have, with the name that was perhaps meant."""
    problems = []
    for client, frame in frames.items():
        lacking = [name for name in names if name not in frame]
        if not lacking:
            continue
        own = [name for name in frame if sum(name in other for other in frames.values()) == 1]
        shown = []
        for name in lacking:
            folded = {str(other).strip().casefold(): other for other in own}
            near = difflib.get_close_matches(name.strip().casefold(), folded, n=1, cutoff=0.8)
            shown.append(f"{name!r}" + (f" (is it {folded[near[0]]!r}?)" if near else ""))
        problems.append(
            f"client {client!r}: does not have column{'s' if len(shown) > 1 else ''} "
            f"{', '.join(shown)}"
        )
    return problems


def as_numbers(column: pd.Series) -> Values:
    """Return the numbers of a column, NaN for what is none; dates are days since 1970."""
    import pandas as pd

    if pd.api.types.is_datetime64_any_dtype(column):
        days = (column - pd.Timestamp(0, tz=column.dt.tz)) / pd.Timedelta(days=1)
        return np.asarray(days.to_numpy(dtype=np.float64, na_value=np.nan))
    numbers = pd.to_numeric(column, errors="coerce")
    return np.asarray(numbers.to_numpy(dtype=np.float64, na_value=np.nan))


def as_texts(column: pd.Series) -> pd.Series:
    """Return a column as stripped texts; whole numbers without a decimal point."""
    return column.astype(object).map(as_text, na_action="ignore")


def as_text(value: Any) -> str:
    """Return a value as a stripped text; a whole number with all its digits, without a point.

    Other numbers have seven digits where single precision has no more to say.
    """
    if not isinstance(value, float):
        return str(value).strip()
    if value.is_integer():
        return str(int(value))
    short = f"{value:.7g}"
    return short if math.isclose(float(short), value, rel_tol=1e-7) else repr(float(value))


def _are_numbers(name: str, parts: Mapping[str, pd.Series], mistakes: list[str]) -> bool:
    """Tell whether a column has numbers; add a mistake if it has them only here and there."""
    import pandas as pd

    wrong: dict[str, list[str]] = {}
    share: dict[str, float] = {}
    for client, part in parts.items():
        known = part.dropna()
        if pd.api.types.is_bool_dtype(part) or known.map(lambda v: isinstance(v, bool)).all():
            share[client], wrong[client] = 0.0, []
            continue
        is_number = ~np.isnan(as_numbers(known))
        share[client] = float(is_number.mean())
        wrong[client] = list(dict.fromkeys(map(str, known[~is_number])))
    if all(value == 1 for value in share.values()):
        return True
    if max(share.values()) < 1 and np.mean(list(share.values())) <= MOSTLY:
        return False
    wrong_clients = [
        f"{_where(name)}client {client!r}: {round((1 - share[client]) * len(part.dropna()))} of "
        f"{len(part)} values are not numbers ({quote_values(wrong[client][:MAX_SHOWN])}); "
        "others are: correct them, leave them empty, or name the column in `categories`"
        for client, part in parts.items()
        if share[client] < 1
    ]
    mistakes += wrong_clients[:MAX_SHOWN]
    if len(wrong_clients) > MAX_SHOWN:
        mistakes.append(f"{_where(name)}and {len(wrong_clients) - MAX_SHOWN} more clients")
    return False


def check_numbers(frames: Mapping[str, pd.DataFrame], schema: Schema) -> None:
    """Raise an error if a column that was agreed to be a number has something else with a client.

    `Schema.encode` would take it for missing.
    """
    mistakes = []
    for column in schema.columns:
        for client, frame in frames.items():
            if column.codes or column.name not in frame:
                continue
            values = frame[column.name]
            wrong = values[np.isnan(as_numbers(values)) & values.notna().to_numpy()]
            if len(wrong):
                mistakes.append(
                    f"client {client!r}, column {column.name!r}: {len(wrong)} of {len(values)} "
                    f"values are not numbers ({quote_values(wrong.unique()[:MAX_SHOWN])}): correct "
                    "them, or leave them empty"
                )
    if mistakes:
        raise DataError("\n".join(mistakes))


def _where(name: str) -> str:
    return f"column {name!r}, "


def _numbers_rows(column: pd.Series) -> bool:
    """Tell whether a column is 1, 2, 3, ... from any beginning."""
    numbers = as_numbers(column)
    return len(numbers) >= FEWEST_NUMBERED_ROWS and bool((np.diff(numbers) == 1).all())


def _show_value(column: Column, value: float) -> str:
    return repr(
        dict(zip(column.codes, column.labels, strict=True)).get(value, as_text(float(value)))
    )


def _list_reasons(left_out: Mapping[str, str]) -> str:
    return "; ".join(f"{name!r}: {reason}" for name, reason in left_out.items())
