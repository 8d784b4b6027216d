"""Missing values filled, numbers scaled, categories encoded, client by client.

Clients agree on columns and categories (the schema). The numbers that fill and scale a column are
fitted by scikit-learn on each client's own train part, or (`scaling="shared"`) means and variances
are added up over clients. They are plain values: a run folder has them, and new rows can be
prepared with them.

- A number: missing becomes the median, then the mean is subtracted and the result divided by the
  standard deviation (ddof 0; 1 if all values are equal). All three are those of the known values:
  counting filled values too would shrink the deviation of a column that is mostly missing.
- A category: missing becomes the most frequent category, the first if there are several; then one
  feature, 0 or 1, for each category of the schema, whether or not the client has it. A category
  that the schema does not have is 0 everywhere.
- For each column that may be missing one indicator: 1 where it was missing, 0 elsewhere.
- A column without any value in a client's train part: its features are 0 and its indicator is 1
  for this client, even where the test part has a value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np

from udjfl.data.tables.columns import UNKNOWN, Column, Schema, Values
from udjfl.data.tables.stored import Numbers as StoredNumbers
from udjfl.data.tables.stored import StoredPreprocessing

Scaling = Literal["own", "shared", "none"]
# What fills and scales a column for one client; None: the client has no value.
Numbers = Mapping[str, float] | None


@dataclass(frozen=True)
class LabelScale:
    """The mean and deviation of all clients' train labels, which a regression is trained without.

    They are the same for all clients, since clients share a model.
    """

    mean: float
    scale: float

    @staticmethod
    def fit(train: Sequence[Values]) -> LabelScale:
        """Add up numbers, means and variances of labels over clients."""
        labels = np.concatenate(train)
        return LabelScale(float(labels.mean()), float(labels.std()) or 1.0)

    def apply(self, labels: Values) -> Values:
        """Return labels with a mean of 0 and a deviation of 1."""
        return (labels - self.mean) / self.scale

    def undo(self, values: Any) -> Any:
        """Return labels or predictions, an array or tensor, in the units of the table."""
        return values * self.scale + self.mean


@dataclass(frozen=True)
class Preprocessing:
    """The treatment of each column: the schema and, by client and column, the numbers fitted.

    `numbers` of the client None are those of the whole federation: for rows of no client. `labels`
    is the scale of a regression's labels; None for classes, and for labels left as they are.
    """

    schema: Schema
    scaling: Scaling
    numbers: Mapping[str | None, Mapping[str, Numbers]]
    target: str = ""
    missing: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    labels: LabelScale | None = None

    def transform(self, table: Values, client: str | None) -> Values:
        """Return the features of encoded rows [rows, columns], with the numbers of a client."""
        values: list[Values] = []
        missing: list[Values] = []
        for position, column in enumerate(self.schema.columns):
            numbers = self.numbers[client][column.name]
            known = np.full(len(table), np.nan) if numbers is None else table[:, position]
            values += _make_features(column, known, numbers or {})
            if column.may_miss:
                missing.append(np.isnan(known))
        return np.array([*values, *missing], dtype=np.float64).T

    def as_dict(self) -> dict[str, Any]:
        """Return everything in plain values, as run folders keep it."""
        return {
            "target": self.target,
            "scaling": self.scaling,
            "columns": [self._describe(column) for column in self.schema.columns],
            "left_out": dict(self.schema.left_out),
            "numbers": {
                client: {name: None if n is None else dict(n) for name, n in own.items()}
                for client, own in self.numbers.items()
                if client is not None
            },
            "shared_numbers": dict(self.numbers.get(None, {})),
            "problems": list(self.problems),
            **({} if self.labels is None else {"labels": asdict(self.labels)}),
        }

    def _describe(self, column: Column) -> dict[str, Any]:
        if column.codes:
            done = "most frequent category if missing, one feature for each category"
        else:
            scaled = {"own": "scaled by each client", "shared": "scaled by all", "none": "as it is"}
            done = f"median if missing, {scaled[self.scaling]}"
        return {
            "column": column.name,
            "kind": "category" if column.codes else "number",
            "done": done + (", indicator of missing values" if column.may_miss else ""),
            "features": list(column.features),
            "codes": list(column.codes),
            "labels": list(column.labels),
            "may_miss": column.may_miss,
            "missing": {client: own.get(column.name, 0) for client, own in self.missing.items()},
        }

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> Preprocessing:
        """Return what `as_dict` described; a ValueError if it is something else."""
        kept = StoredPreprocessing.model_validate(values)
        columns = tuple(
            Column(each.column, tuple(each.codes), tuple(each.labels), each.may_miss)
            for each in kept.columns
        )
        return Preprocessing(
            Schema(columns, kept.left_out),
            kept.scaling,
            {
                **{client: _plain(numbers) for client, numbers in kept.numbers.items()},
                None: _plain(kept.shared_numbers),
            },
            kept.target,
            {
                client: {each.column: each.missing[client] for each in kept.columns}
                for client in kept.columns[0].missing
            },
            tuple(kept.problems),
            None if kept.labels is None else LabelScale(kept.labels.mean, kept.labels.scale),
        )


def _plain(numbers: StoredNumbers) -> dict[str, Numbers]:
    return {name: None if own is None else dict(own) for name, own in numbers.items()}


def fit_numbers(
    schema: Schema, train: Mapping[str, Values], scaling: Scaling
) -> dict[str | None, dict[str, Numbers]]:
    """Fit what fills and scales each column, for each client and (None) for all together."""
    shared = _fit_shared(schema, list(train.values()), scaling)
    fitted: dict[str | None, dict[str, Numbers]] = {
        client: _fit_client(schema, table, scaling, shared) for client, table in train.items()
    }
    fitted[None] = shared
    return fitted


def _fit_client(
    schema: Schema, table: Values, scaling: Scaling, shared: Mapping[str, Numbers]
) -> dict[str, Numbers]:
    from sklearn.impute import SimpleImputer
    from sklearn.preprocessing import StandardScaler

    fitted: dict[str, Numbers] = {column.name: None for column in schema.columns}
    has_values = [bool((~np.isnan(values)).any()) for values in table.T]
    for is_category in (True, False):
        positions = [p for p in _positions(schema, is_category) if has_values[p]]
        if not positions:
            continue
        block = table[:, positions]
        strategy = "most_frequent" if is_category else "median"
        fills = SimpleImputer(strategy=strategy).fit(block).statistics_
        scaler = None if is_category or scaling != "own" else StandardScaler().fit(block)
        for index, position in enumerate(positions):
            name = schema.columns[position].name
            numbers = {"fill": float(fills[index])}
            if scaler is not None:
                numbers["mean"] = float(scaler.mean_[index])
                numbers["scale"] = float(scaler.scale_[index])
            elif not is_category:
                numbers = {**(shared[name] or {}), **numbers}
            fitted[name] = numbers
    return fitted


def _fit_shared(schema: Schema, train: Sequence[Values], scaling: Scaling) -> dict[str, Numbers]:
    """Add up numbers of values, means and variances over clients; counts for categories.

    No client's own values are needed for it: a missing value becomes the mean.
    """
    from sklearn.preprocessing import StandardScaler

    fitted: dict[str, Numbers] = {}
    for position, column in enumerate(schema.columns):
        known = [part[~np.isnan(part[:, position]), position] for part in train]
        known = [values for values in known if len(values)]
        if not known:
            fitted[column.name] = None
        elif column.codes:
            counts = [sum(int((v == code).sum()) for v in known) for code in column.codes]
            fitted[column.name] = {"fill": column.codes[int(np.argmax(counts))]}
        else:
            scaler = StandardScaler()
            for values in known:
                scaler.partial_fit(values.reshape(-1, 1))
            mean, scale = float(scaler.mean_[0]), float(scaler.scale_[0])
            is_scaled = scaling != "none"
            fitted[column.name] = {
                "fill": mean,
                "mean": mean if is_scaled else 0.0,
                "scale": scale if is_scaled else 1.0,
            }
    return fitted


def _positions(schema: Schema, is_category: bool) -> list[int]:
    return [p for p, column in enumerate(schema.columns) if bool(column.codes) == is_category]


def _make_features(column: Column, known: Values, numbers: Mapping[str, float]) -> list[Values]:
    """Return the features of one column: filled and scaled, or one for each category."""
    fill = numbers.get("fill", UNKNOWN if column.codes else 0.0)
    filled = np.where(np.isnan(known), fill, known)
    if column.codes:
        return [filled == code for code in column.codes]
    return [(filled - numbers.get("mean", 0.0)) / numbers.get("scale", 1.0)]
