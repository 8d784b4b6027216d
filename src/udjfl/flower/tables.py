"""Tables of clients that never meet: columns and classes that are agreed on beforehand.

The simulator reads all clients' tables and finds the columns that they share. On real machines no
process sees more than one table, so an app brings the agreement: the names of columns, of their
categories, and of the classes; no values. Each client fills and scales its columns by its own
train part (`scaling="own"` in docs/data.md), so that nothing else has to be shared.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from udjfl.data.federate import federate
from udjfl.data.partition import Partition
from udjfl.data.problems import log_problems
from udjfl.data.split import TEST_SHARE
from udjfl.data.tables.columns import Column, Schema
from udjfl.data.tables.files import read_table
from udjfl.data.tables.frames import Agreement, make_pools
from udjfl.errors import DataError
from udjfl.flower.data import ClientData, ServerData
from udjfl.settings import TableSettings, validate_settings


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
        """Make an agreement of the columns, categories and classes that a table has."""
        settings = _table_settings(target, drop=list(drop), categories=list(categories))
        pools = make_pools({path.stem: read_table(path)}, settings)
        schema, _ = pools.preprocess.schema.keep([pools.clean.x.numpy()])  # type: ignore[union-attr]
        dropped = dict.fromkeys(drop, "named in --drop")
        return TableSchema(
            target, pools.class_names, schema.columns, {**schema.left_out, **dropped}
        )

    @staticmethod
    def load(path: Path) -> "TableSchema":
        """Read the file that `save` writes."""
        try:
            values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
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


def _table_settings(target: str, **values: Any) -> TableSettings:
    return validate_settings(TableSettings, {"target": target, **values})
