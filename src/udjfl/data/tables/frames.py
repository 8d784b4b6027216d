"""From frames by client to pools: labels, schema, groups, and the rows in numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from udjfl.data.examples import Examples
from udjfl.data.partition import MIN_EXAMPLES, IndexArray
from udjfl.data.problems import as_rows, limit
from udjfl.data.source import Pools
from udjfl.data.split import TEST_SHARE
from udjfl.data.tables.columns import (
    Schema,
    as_texts,
    check_numbers,
    find_header_problems,
    infer_schema,
)
from udjfl.data.tables.labels import (
    Labels,
    Target,
    read_labels,
    read_numbers,
    suggest_column,
)
from udjfl.data.tables.preprocessor import TablePreprocessor
from udjfl.errors import DataError, did_you_mean
from udjfl.settings import TableSettings

if TYPE_CHECKING:
    import pandas as pd

MAX_CLIENTS = 4  # named in one problem that many have
MAX_COPIES = 0.1  # if more rows have an equal, equal rows are normal and may be on both sides
NEEDS_PANDAS = "tables need pandas: pip install 'udjfl[frames]'"
TEST = "the global test set"


@dataclass(frozen=True)
class Agreement:
    """Columns and classes that clients agreed on without showing each other their rows."""

    schema: Schema
    class_names: tuple[str, ...]


def make_pools(
    frames: Mapping[str, Any],
    settings: TableSettings,
    test: Any = None,
    *,
    has_owners: bool = True,
    title: str | None = None,
    agreed: Agreement | None = None,
) -> Pools:
    """Return the rows of all frames, labelled, in numbers and owned, ready to be split.

    frames      by client; all rows of all of them if the settings name a column of clients
    test        a frame of examples of no client, the global test set
    has_owners  False: the frames are one table, and nothing says which client has which row
    agreed      columns and classes that were agreed on before; None: those that the frames have
    """
    problems: list[str] = []
    tables = _read_frames(frames, test, settings, problems)
    target = _find_target(tables, settings.target)
    _check_columns(tables, settings, target)
    is_regression = settings.task == "regression"
    class_names = agreed.class_names if agreed else ()
    labels = (
        read_numbers(tables, target) if is_regression else read_labels(tables, target, class_names)
    )
    labelled = _select_labelled(tables, labels, target, problems)
    shared = labelled.pop(TEST, None)
    _check_sizes(labelled)
    schema = _find_schema(labelled, settings, target, agreed, problems)
    examples = _encode(schema, labelled, labels, settings.sensitive)
    groups = _group_rows(examples, labelled, settings.group)
    if settings.group is not None:  # folds and holdouts keep them together, too
        problems += _find_shared_groups(labelled, settings.group)
        examples = replace(examples, together=torch.from_numpy(groups))
    names, scaling = labels.class_names, settings.scaling
    return Pools(
        clean=examples,
        ambiguous=None,
        test=None if shared is None else _encode(schema, {TEST: shared}, labels),
        class_names=names,
        clean_groups=groups,
        ambiguous_groups=np.empty(0, dtype=np.int64),
        owners=_list_owners(labelled) if has_owners else None,
        preprocess=TablePreprocessor(
            schema, names, scaling, str(target), agreed is None, tuple(problems)
        ),
        title=title,
        tabular=True,
        stratify=not is_regression,
        test_share=settings.test_share or TEST_SHARE,
    )


def _read_frames(
    frames: Mapping[str, Any], test: Any, settings: TableSettings, problems: list[str]
) -> dict[str, Any]:
    """Return a frame for each client, and that of the test set under `TEST`."""
    if not frames:
        raise DataError("there are no clients: give at least one frame")
    tables = {str(name): _as_frame(str(name), frame) for name, frame in frames.items()}
    if settings.client is not None:
        tables = _split_by_client(tables, settings.client, problems)
    if test is not None:
        tables[TEST] = _as_frame(TEST, test)
    return tables


def _select_labelled(
    tables: Mapping[str, Any], labels: Labels, target: Any, problems: list[str]
) -> dict[str, Any]:
    """Return the frames without the rows that have no label; their number is a problem."""
    unlabelled: list[str] = []
    labelled = {
        name: _leave_out_unlabelled(name, table, labels, target, unlabelled)
        for name, table in tables.items()
    }
    problems += limit(unlabelled, MAX_CLIENTS)
    return labelled


def _find_schema(
    tables: Mapping[str, Any],
    settings: TableSettings,
    target: Any,
    agreed: Agreement | None,
    problems: list[str],
) -> Schema:
    """Return the columns that were agreed on, checked against the frames, or else theirs."""
    if agreed is None:
        return _infer_schema(tables, settings, target, problems)
    check_numbers(tables, agreed.schema)
    columns = [column.name for column in agreed.schema.columns]
    problems += limit(find_header_problems(tables, columns))
    return agreed.schema


def _list_owners(tables: Mapping[str, Any]) -> list[str]:
    return [name for name, table in tables.items() for _ in range(len(table))]


def import_pandas() -> Any:
    """Import pandas, an extra."""
    try:
        import pandas
    except ImportError:
        raise DataError(NEEDS_PANDAS) from None
    return pandas


def _as_frame(name: str, given: Any) -> pd.DataFrame:
    """Return a frame of pandas with plain names of columns and rows numbered from 0."""
    pandas = import_pandas()
    frame = given.to_pandas() if hasattr(given, "to_pandas") else given
    if not isinstance(frame, pandas.DataFrame):
        raise DataError(
            f"{_where(name)}: got {type(given).__name__}; give a DataFrame of pandas, or one that "
            "has `to_pandas`"
        )
    frame = frame.rename(columns=lambda column: str(column).strip()).reset_index(drop=True)
    twice = frame.columns[frame.columns.duplicated()].unique().tolist()
    if twice:
        raise DataError(
            f"{_where(name)}: has column{'s' if len(twice) > 1 else ''} "
            f"{', '.join(map(repr, twice))} more than once: give every column its own name"
        )
    return frame


def _split_by_client(
    tables: Mapping[str, pd.DataFrame], column: str, problems: list[str]
) -> dict[str, pd.DataFrame]:
    """Return the rows of each client, by the column that names it."""
    pandas = import_pandas()
    for name, table in tables.items():
        _require(name, "client", column, table)
    table = pandas.concat(list(tables.values()), ignore_index=True)
    nameless = int(table[column].isna().sum())
    if nameless:
        problems.append(f"column {column!r}: {nameless} rows name no client and are left out")
    table = table[table[column].notna()]
    return {
        str(name): rows.drop(columns=column).reset_index(drop=True)
        for name, rows in table.groupby(as_texts(table[column]), sort=True)
    }


def _find_target(tables: Mapping[str, pd.DataFrame], text: str | None) -> Target:
    columns = list(dict.fromkeys(column for table in tables.values() for column in table))
    if not text:
        raise DataError(
            f"target: name the column of the labels (target=..., --target): {', '.join(columns)}"
        )
    target = Target.parse(text, columns)
    for name, table in tables.items():
        _require(name, "target", target.column, table)
    return target


def _check_columns(
    tables: Mapping[str, pd.DataFrame], settings: TableSettings, target: Target
) -> None:
    """Raise an error if a setting names a column that no client, or not every one, has."""
    for setting in ("group", "sensitive"):
        column = getattr(settings, setting)
        for name, table in tables.items():
            if column is not None and name != TEST:
                _require(name, setting, column, table)
    columns = list(dict.fromkeys(column for table in tables.values() for column in table))
    for setting in ("drop", "categories"):
        for column in getattr(settings, setting):
            if column not in columns:
                raise DataError(
                    f"{setting}: there is no column {column!r}.{did_you_mean(column, columns)}"
                )
    if target.column in settings.drop:
        raise DataError(f"drop: {target.column!r} is the target; leave it out of `drop`")


def _require(name: str, setting: str, column: str, table: pd.DataFrame) -> None:
    if column not in table:
        hint = suggest_column(column, [str(other) for other in table.columns])
        raise DataError(f"{_where(name)}: there is no column {column!r} ({setting}).{hint}")


def _leave_out_unlabelled(
    name: str, table: pd.DataFrame, labels: Labels, target: Target, problems: list[str]
) -> pd.DataFrame:
    missing = ~labels.is_known(name)
    if missing.any():
        problems.append(
            f"{_where(name)}, column {target.column!r}: {int(missing.sum())} of {len(table)} rows "
            "have no label and are left out"
        )
    return table[~missing]


def _check_sizes(tables: Mapping[str, pd.DataFrame]) -> None:
    mistakes = [
        f"client {name!r} has {len(table)} labelled example{'' if len(table) == 1 else 's'}: it "
        f"needs at least {MIN_EXAMPLES}, one to train on and one to test on; leave it out, or "
        "merge it with another"
        for name, table in tables.items()
        if len(table) < MIN_EXAMPLES
    ]
    if mistakes:
        raise DataError("\n".join(mistakes))


def _infer_schema(
    tables: Mapping[str, pd.DataFrame],
    settings: TableSettings,
    target: Target,
    problems: list[str],
) -> Schema:
    unused = {target.column, settings.client, settings.group, *settings.drop}
    names = [
        column
        for column in dict.fromkeys(column for table in tables.values() for column in table)
        if column not in unused
    ]
    for name, table in tables.items():
        others = {column for other in tables if other != name for column in tables[other]}
        if names and len(tables) > 1 and not others.intersection(names).intersection(table):
            raise DataError(
                f"client {name!r} has none of the other clients' columns beside the target: is its "
                "header missing?"
            )
    problems += limit(find_header_problems(tables, names))
    problems += [
        f"client {name!r}, column {column!r}: {count} values are infinite and count as missing"
        for name, table in tables.items()
        for column in table.select_dtypes("float")
        if (count := int(np.isinf(table[column]).sum()))
    ]
    return infer_schema(tables, names, settings.categories)


def _encode(
    schema: Schema,
    tables: Mapping[str, pd.DataFrame],
    labels: Labels,
    sensitive: str | None = None,
) -> Examples:
    x = np.concatenate([schema.encode(table) for table in tables.values()])
    y = np.concatenate([labels.numbers[name][labels.is_known(name)] for name in tables])
    group = None
    if sensitive is not None:
        values = _join(table[sensitive] for table in tables.values())
        codes, _ = import_pandas().factorize(values, sort=True, use_na_sentinel=False)
        group = torch.from_numpy(codes.astype(np.int64))
    return Examples(torch.from_numpy(x), torch.from_numpy(y), group)


def _join(columns: Iterable[pd.Series]) -> Any:
    """Return the values of all clients as texts, so that they can be sorted; None if missing."""
    pandas = import_pandas()
    joined = pandas.concat(list(columns), ignore_index=True).astype(object)
    return joined.map(str, na_action="ignore").where(joined.notna(), None)


def _group_rows(
    examples: Examples, tables: Mapping[str, pd.DataFrame], column: str | None
) -> IndexArray:
    """Return a number for each row: equal for rows that stay on one side of the split.

    These are the rows of one group and, unless they are many, rows that are equal in everything.
    """
    rows = np.column_stack([examples.x.numpy(), examples.y.numpy()])
    _, copies, counts = np.unique(as_rows(rows), return_inverse=True, return_counts=True)
    if (counts[copies] > 1).mean() > MAX_COPIES:
        copies = np.arange(len(rows))
    if column is None:
        return copies.astype(np.int64)
    values = _join(table[column] for table in tables.values())
    groups, _ = import_pandas().factorize(values)
    # A row without a group is a group of its own.
    groups = np.where(groups < 0, groups.max() + 1 + np.arange(len(groups)), groups)
    return _connect(copies, groups)


def _find_shared_groups(tables: Mapping[str, pd.DataFrame], column: str) -> list[str]:
    """Say so if groups of several clients have the same name, which may not mean the same group."""
    names = [set(table[column].dropna()) for table in tables.values()]
    shared = Counter(name for own in names for name in own)
    count = sum(n > 1 for n in shared.values())
    if not count:
        return []
    return [
        f"column {column!r}: {count} of {len(shared)} values are of several clients, and count as "
        "one group; if each client numbers its own, put the client's name before them"
    ]


def _connect(first: IndexArray, second: IndexArray) -> IndexArray:
    """Return a number for each row: equal for rows that a chain of either grouping connects."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    size = int(first.max()) + 1 + int(second.max()) + 1
    ones = np.ones(len(first), dtype=np.int8)
    graph = coo_array((ones, (first, int(first.max()) + 1 + second)), shape=(size, size))
    _, labels = connected_components(graph.tocsr(), directed=False)
    return np.asarray(labels[first], dtype=np.int64)


def _where(name: str) -> str:
    return name if name == TEST else f"client {name!r}"
