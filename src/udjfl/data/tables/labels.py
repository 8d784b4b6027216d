"""The target of a table: a column, or a comparison such as `delay>15`; labels in numbers.

An expression is read by the grammar `COLUMN OPERATOR VALUE` and nothing else: no code is run.
"""

from __future__ import annotations

import operator
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from udjfl.data.tables.columns import as_numbers, as_text
from udjfl.errors import DataError, did_you_mean, quote_values

if TYPE_CHECKING:
    import pandas as pd

OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
}
OPPOSITE = {">=": "<", "<=": ">", "==": "!=", "!=": "==", ">": "<=", "<": ">="}
COMPARISON = re.compile(r"\s*(.+?)\s*(>=|<=|==|!=|>|<)\s*(.+?)\s*")
MOST_NUMBERS = 100  # a target with more different numbers is a quantity, not a class
# So are more than a few numbers with few rows for each: ages, counts, days.
FEW_NUMBERS, ROWS_OF_A_CLASS = 20, 20
MAX_SHOWN, MOST_CLASSES = 3, 8


@dataclass(frozen=True)
class Target:
    """The column of the labels and, if they are made by a comparison, its operator and value."""

    column: str
    operator: str | None = None
    value: str | None = None

    @staticmethod
    def parse(text: str, columns: Sequence[str]) -> Target:
        """Read a target: one of the columns, or `COLUMN OPERATOR VALUE`."""
        if text in columns:
            return Target(text)
        match = COMPARISON.fullmatch(text)
        column = match[1] if match else text.strip()
        if column not in columns:
            hint = suggest_column(column, columns)
            raise DataError(f"target: there is no column {column!r}.{hint}")
        return Target(column, match[2], match[3]) if match else Target(column)

    def __str__(self) -> str:
        return f"{self.column}{self.operator or ''}{self.value or ''}"

    @property
    def class_names(self) -> tuple[str, str] | None:
        """The two classes of a comparison, None for a column."""
        if self.operator is None:
            return None
        return f"{self.column}{OPPOSITE[self.operator]}{self.value}", str(self)

    def compare(self, column: pd.Series) -> pd.Series:
        """Return 1 where the comparison holds, 0 where it does not, NaN where it is unknown."""
        import pandas as pd

        assert self.operator is not None
        assert self.value is not None
        value: float | str = self.value
        if pd.api.types.is_numeric_dtype(column):
            try:
                value = float(self.value)
            except ValueError:
                raise DataError(
                    f"target {str(self)!r}: column {self.column!r} has numbers, and "
                    f"{self.value!r} is none: compare it with a number"
                ) from None
        elif self.operator not in ("==", "!="):
            raise DataError(
                f"target {str(self)!r}: column {self.column!r} has texts: compare them with == or "
                "!= only"
            )
        else:
            column = column.astype(object).map(_clean_text, na_action="ignore")
        holds = OPERATORS[self.operator](column, value).astype("float64")
        return holds.where(column.notna())


@dataclass(frozen=True, eq=False)
class Labels:
    """Class numbers by client, -1 where the label is missing, and the names of the classes.

    Of a regression the labels themselves, NaN where they are missing, and no names.
    """

    numbers: Mapping[str, npt.NDArray[Any]]
    class_names: tuple[str, ...]

    def is_known(self, client: str) -> npt.NDArray[np.bool_]:
        """Tell which rows of a client have a label."""
        numbers = self.numbers[client]
        return numbers >= 0 if self.class_names else np.isfinite(numbers)


def read_labels(
    frames: Mapping[str, pd.DataFrame], target: Target, class_names: Sequence[str] = ()
) -> Labels:
    """Number the classes over all clients, sorted; labels of different types are an error.

    With `class_names`, classes are numbered by these, and other labels are an error.
    """
    if target.class_names is not None:
        numbers = {
            client: target.compare(frame[target.column]).fillna(-1).to_numpy().astype(np.int64)
            for client, frame in frames.items()
        }
        if not class_names:  # of one client alone, all rows may well be of one class
            _check_comparison(frames, target, numbers)
        return Labels(numbers, target.class_names)
    columns = {client: _clean_labels(frame[target.column]) for client, frame in frames.items()}
    if class_names:
        return _number_by(columns, target, tuple(class_names))
    _check_types(columns, target)
    values = sorted({value for column in columns.values() for value in column.dropna()})
    if len(values) < 2:
        only = f"only {quote_values([as_text(values[0])])}" if values else "no labels"
        raise DataError(
            f"target {str(target)!r}: there is {only} in the whole federation: a model needs at "
            "least two classes"
        )
    if isinstance(values[0], float):
        _check_class_numbers(values, target, sum(column.count() for column in columns.values()))
    if isinstance(values[0], str):
        _check_spellings(columns, target)
    position = {value: number for number, value in enumerate(values)}
    return Labels(
        {
            client: column.map(position).fillna(-1).to_numpy().astype(np.int64)
            for client, column in columns.items()
        },
        tuple(map(as_text, values)),
    )


def _number_by(
    columns: Mapping[str, pd.Series], target: Target, class_names: tuple[str, ...]
) -> Labels:
    position = {name: number for number, name in enumerate(class_names)}
    numbers = {}
    for client, column in columns.items():
        names = column.map(as_text, na_action="ignore")
        unknown = sorted(set(names.dropna()) - set(class_names))
        if unknown:
            raise DataError(
                f"client {client!r}, column {target.column!r}: label "
                f"{quote_values(unknown[:MAX_SHOWN])} is no class of this federation; "
                f"its classes are {', '.join(map(repr, class_names))}"
            )
        numbers[client] = names.map(position).fillna(-1).to_numpy().astype(np.int64)
    return Labels(numbers, class_names)


def read_numbers(frames: Mapping[str, pd.DataFrame], target: Target) -> Labels:
    """Read the labels of a regression; what is no number is an error, infinite ones are missing."""
    if target.operator is not None:
        raise DataError(
            f"target {str(target)!r}: is a comparison, which makes classes; a regression needs the "
            f"column {target.column!r} alone"
        )
    numbers = {client: as_numbers(frame[target.column]) for client, frame in frames.items()}
    mistakes = []
    for client, own in numbers.items():
        column = frames[client][target.column]
        wrong = column[np.isnan(own) & column.notna().to_numpy()]
        if len(wrong):
            shown = quote_values(wrong.unique()[:MAX_SHOWN])
            mistakes.append(
                f"client {client!r}, column {target.column!r}: {len(wrong)} of {len(column)} "
                f"labels are not numbers ({shown}); correct them, or leave out task=regression"
            )
    if mistakes:
        raise DataError("\n".join(mistakes))
    known = np.concatenate([own[np.isfinite(own)] for own in numbers.values()])
    if len(np.unique(known)) < 2:
        only = f"only {quote_values(as_text(float(known[0])))}" if len(known) else "no label"
        raise DataError(f"target {str(target)!r}: there is {only} in the whole federation")
    return Labels(numbers, ())


def suggest_column(wanted: str, names: Sequence[str]) -> str:
    """Return what may have been meant by a column that is not there, with the names that are.

    Without a header, names are the values of the first row.
    """
    if any(_is_number(name) for name in names):
        return " Some columns are named like numbers: is the header of the table missing?"
    return quote_values(did_you_mean(wanted, names))


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _clean_text(value: Any) -> str:
    return str(value).strip()


def _clean_labels(column: pd.Series) -> pd.Series:
    """Return bools as they are, numbers as floats, everything else as stripped texts."""
    import pandas as pd

    values = column.astype(object)
    known = values.dropna()
    if known.map(lambda value: isinstance(value, bool | np.bool_)).all():
        return values.map(bool, na_action="ignore")
    if pd.api.types.is_numeric_dtype(column):
        return column.astype("float64").astype(object).where(column.notna())
    return values.map(_clean_text, na_action="ignore")


def _check_types(columns: Mapping[str, pd.Series], target: Target) -> None:
    kinds = {
        client: _name_type(column.dropna().iloc[0])
        for client, column in columns.items()
        if column.notna().any()
    }
    if len(set(kinds.values())) < 2:
        return
    usual = Counter(kinds.values()).most_common(1)[0][0]
    shown = {
        client: quote_values(as_text(v) for v in list(column.dropna().unique())[:MAX_SHOWN])
        for client, column in columns.items()
    }
    model = next(client for client, kind in kinds.items() if kind == usual)
    raise DataError(
        "\n".join(
            f"client {client!r}, column {target.column!r}: labels are {kind} "
            f"({shown[client]}), elsewhere {usual} ({shown[model]}): write them in one way"
            for client, kind in kinds.items()
            if kind != usual
        )
    )


def _name_type(label: Any) -> str:
    if isinstance(label, bool | np.bool_):
        return "true and false"
    return "numbers" if isinstance(label, float) else "texts"


def _check_spellings(columns: Mapping[str, pd.Series], target: Target) -> None:
    """Raise an error for classes whose names differ in case only."""
    spellings: dict[str, dict[str, str]] = {}  # each spelling, and the first client that has it
    for client, column in columns.items():
        for label in column.dropna().unique():
            spellings.setdefault(label.casefold(), {}).setdefault(label, client)
    mistakes = [
        f"column {target.column!r}: "
        + ", ".join(f"client {client!r} has {quote_values([s])}" for s, client in own.items())
        + ", which differ in case only: write them in one way"
        for own in spellings.values()
        if len(own) > 1
    ]
    if mistakes:
        raise DataError("\n".join(mistakes))


def _check_comparison(
    frames: Mapping[str, pd.DataFrame], target: Target, numbers: Mapping[str, npt.NDArray[Any]]
) -> None:
    """Raise an error if a comparison holds for all rows, or for none."""
    found = {int(number) for own in numbers.values() for number in np.unique(own)} - {-1}
    if len(found) != 1:
        return
    values = [v for frame in frames.values() for v in frame[target.column].dropna().unique()]
    texts = sorted({_clean_text(value) for value in values if isinstance(value, str)})
    rows = "every row has" if found == {1} else "no row has"
    if texts:
        listed = ", ".join(map(quote_values, ([t] for t in texts[:MOST_CLASSES])))
        there = listed + (" and others" if len(texts) > MOST_CLASSES else "")
    else:
        low, high = (quote_values(as_text(float(v))) for v in (min(values), max(values)))
        there = f"numbers from {low} to {high}"
    raise DataError(f"target {str(target)!r}: {rows} {str(target)!r}; there are {there}")


def _check_class_numbers(values: Sequence[float], target: Target, n_rows: int) -> None:
    whole = all(value.is_integer() for value in values)
    is_sparse = len(values) > FEW_NUMBERS and n_rows < ROWS_OF_A_CLASS * len(values)
    if whole and len(values) <= MOST_NUMBERS and not is_sparse:
        return
    low, middle, high = (
        quote_values(as_text(value)) for value in (values[0], values[len(values) // 2], values[-1])
    )
    raise DataError(
        f"target {str(target)!r}: has {len(values)} different numbers, from {low} "
        f"to {high}: to predict the number choose task=regression (--task "
        f"regression); for two classes compare, as in '{target.column}>{middle}'"
    )
