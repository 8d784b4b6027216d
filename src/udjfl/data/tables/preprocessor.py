"""The step between raw rows and features, for all clients once they are split."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch

from udjfl.data.examples import Examples
from udjfl.data.problems import Rows, as_rows, find_duplicates, find_one_class, limit
from udjfl.data.source import Parts, Prepared
from udjfl.data.tables.columns import Schema, Values
from udjfl.data.tables.preprocessing import LabelScale, Preprocessing, Scaling, fit_numbers
from udjfl.data.tables.problems import find_column_problems, find_leaks


@dataclass(frozen=True, eq=False)
class TablePreprocessor:
    """Prepares the encoded rows of all clients, once they are split into train and test parts.

    class_names   none: a regression, whose labels are scaled by the train parts together
    is_inferred   the schema was made from the data: what no train part has is dropped from it
    problems      those found while the table was read
    """

    schema: Schema
    class_names: tuple[str, ...]
    scaling: Scaling = "own"
    target: str = ""
    is_inferred: bool = False
    problems: tuple[str, ...] = ()

    def __call__(self, parts: Parts, test: Examples | None) -> Prepared:
        """Fit on the train parts; return all parts with features in float32."""
        train = {client: part.x.double().numpy() for client, (part, _) in parts.items()}
        tests = {client: part.x.double().numpy() for client, (_, part) in parts.items()}
        schema, kept = self.schema, list(range(len(self.schema.columns)))
        if self.is_inferred:
            schema, kept = self.schema.keep(list(train.values()))
        own = {client: table[:, kept] for client, table in train.items()}
        labels = None
        if not self.class_names and self.scaling != "none":
            labels = LabelScale.fit([part.y.numpy() for part, _ in parts.values()])
        preprocessing = Preprocessing(
            schema,
            self.scaling,
            fit_numbers(schema, own, self.scaling),
            self.target,
            {client: _count_missing(schema, table) for client, table in own.items()},
            tuple(self._find_problems(schema, parts, train, tests)),
            labels,
        )

        def transform(client: str | None, part: Examples) -> Examples:
            table = part.x.double().numpy()[:, kept]
            features = preprocessing.transform(table, client).astype(np.float32)
            y = part.y
            if not self.class_names:
                numbers = y.numpy() if labels is None else labels.apply(y.numpy())
                y = torch.from_numpy(numbers.astype(np.float32))
            return replace(part, x=torch.from_numpy(features), y=y)

        return Prepared(
            {
                client: (transform(client, a), transform(client, b))
                for client, (a, b) in parts.items()
            },
            None if test is None else transform(None, test),
            preprocessing,
        )

    def _find_problems(
        self,
        schema: Schema,
        parts: Parts,
        train: Mapping[str, Values],
        test: Mapping[str, Values],
    ) -> list[str]:
        labels = {client: part.y.numpy() for client, (part, _) in parts.items()}
        pairs = list(parts.items())
        return [
            *self.problems,
            *(f"column {name!r} is left out: {why}" for name, why in schema.left_out.items()),
            *limit(find_one_class(labels, self.class_names, self.target)),
            *find_leaks(self.schema, train, labels, self.target),
            *limit(find_column_problems(self.schema, train, test)),
            *limit(
                find_duplicates(
                    {client: _label_rows(train[client], part) for client, (part, _) in pairs},
                    {client: _label_rows(test[client], part) for client, (_, part) in pairs},
                )
            ),
        ]


def _label_rows(table: Values, part: Examples) -> Rows:
    """Return rows with their labels: equal ones are copies."""
    return as_rows(np.column_stack([table, part.y.numpy()]))


def _count_missing(schema: Schema, table: Values) -> dict[str, int]:
    counts = np.isnan(table).sum(axis=0).tolist()
    return {column.name: count for column, count in zip(schema.columns, counts, strict=True)}
