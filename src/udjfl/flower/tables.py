"""Tables of clients that never meet: columns and classes that are agreed on beforehand.

The simulator reads all clients' tables and finds the columns that they share. On real machines no
process sees more than one table, so an app brings the agreement: the names of columns and of the
classes, and the different texts of columns with categories; no numbers. Each client fills and
scales its columns by its own train part (`scaling="own"` in docs/data.md), so that nothing else
has to be shared.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from udjfl._files import parse_json
from udjfl.data.federate import federate
from udjfl.data.partition import Partition
from udjfl.data.problems import log_problems
from udjfl.data.split import TEST_SHARE
from udjfl.data.tables.columns import MOSTLY, Column, Schema, Values
from udjfl.data.tables.files import read_table
from udjfl.data.tables.frames import Agreement, make_pools
from udjfl.errors import DataError
from udjfl.flower.data import ClientData, ServerData
from udjfl.settings import TableSettings, validate_settings

FEW = 2  # a text that no more rows have may be somebody's name or id


@dataclass(frozen=True)
class TableSchema:
    """The agreement on a table: the target, the classes and the columns.

    left_out    columns of the table that it was made from which are no features, and why
    """

    target: str
    class_names: tuple[str, ...]
    columns: tuple[Column, ...]
    left_out: dict[str, str] = field(default_factory=dict)

    @staticmethod
    def infer(
        path: Path, target: str, *, drop: Sequence[str] = (), categories: Sequence[str] = ()
    ) -> "TableSchema":
        """Make an agreement of the columns, categories and classes that a table has.

        All clients receive it: columns of texts that seem to be names or ids are left out, unless
        they are named in `categories`.
        """
        settings = _table_settings(target, drop=list(drop), categories=list(categories))
        pools = make_pools({path.stem: read_table(path)}, settings)
        found: Schema = pools.preprocess.schema  # type: ignore[union-attr]
        values = pools.clean.x.numpy()
        schema, positions = found.keep([values])
        # `keep` quotes the only value of a constant column.
        left_out = {name: found.left_out.get(name, "constant") for name in schema.left_out}
        left_out |= dict.fromkeys(drop, "named in --drop")
        columns = []
        for column, position in zip(schema.columns, positions, strict=True):
            if column.name not in categories and _has_rare_texts(column, values[:, position]):
                left_out[column.name] = (
                    f"most of its {len(column.labels)} texts are in one or two rows: an id, or "
                    "free text; --categories keeps it"
                )
            else:
                columns.append(column)
        if not columns:
            reasons = "; ".join(f"{name!r}: {reason}" for name, reason in left_out.items())
            raise DataError(f"no column is left to learn from: {reasons}")
        return TableSchema(target, pools.class_names, tuple(columns), left_out)

    @staticmethod
    def load(path: Path) -> "TableSchema":
        """Read the file that `save` writes."""
        try:
            values: dict[str, Any] = parse_json(path.read_bytes())
            columns = [
                Column(
                    entry["name"],
                    tuple(float(number) for number in range(len(entry["categories"]))),
                    tuple(map(str, entry["categories"])),
                    bool(entry["may_miss"]),
                )
                for entry in values["columns"]
            ]
            names = tuple(map(str, values["classes"]))
            return TableSchema(str(values["target"]), names, tuple(columns), values["left_out"])
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"{path} is not a schema: {error!r}") from None

    def save(self, path: Path) -> None:
        """Write a file for people to read and change: a line for each column."""
        columns = [
            {"name": own.name, "categories": list(own.labels), "may_miss": own.may_miss}
            for own in self.columns
        ]
        lines = ",\n    ".join(json.dumps(column, ensure_ascii=False) for column in columns)
        head = {"target": self.target, "classes": self.class_names, "left_out": self.left_out}
        parts = [
            f"  {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}"
            for key, value in head.items()
        ]
        parts.append(f'  "columns": [\n    {lines}\n  ]')
        path.write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")

    def read_client(
        self, client: str, path: Path | str, *, test_share: float = TEST_SHARE, seed: int = 0
    ) -> ClientData:
        """Read a client's table (CSV or parquet): split by the seed, filled, scaled, encoded."""
        settings = _table_settings(self.target, test_share=test_share)
        agreed = Agreement(Schema(self.columns, {}), self.class_names)
        pools = make_pools({client: read_table(Path(path))}, settings, agreed=agreed)
        federation = federate(client, pools, None, Partition("natural"), seed)
        log_problems(federation)
        (own,) = federation.clients
        # Equal rows are among the problems that were logged.
        return ClientData(own.id, own.train, own.test, len(self.class_names), allow_duplicates=True)

    def server_data(self) -> ServerData:
        """Return what a server without examples knows: the shape of one."""
        shape = (len(Schema(self.columns, {}).features),)
        return ServerData(None, None, input_shape=shape, n_classes=len(self.class_names))


def _has_rare_texts(column: Column, values: Values) -> bool:
    """Tell if most categories of a column are in very few rows."""
    if not column.codes:
        return False
    _, counts = np.unique(values[~np.isnan(values)], return_counts=True)
    return bool((counts <= FEW).mean() > MOSTLY)


def _table_settings(target: str, **values: Any) -> TableSettings:
    return validate_settings(TableSettings, {"target": target, **values})
