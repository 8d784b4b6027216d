"""CSV and parquet files of your own: one for each client, or with a column that names the client.

`--data hospitals/*.csv --target ill` names this source by the files themselves.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from udjfl.data.source import Pools, Request, Source
from udjfl.data.tables.files import describe_files, find_files, name_files, read_tables
from udjfl.data.tables.frames import make_pools
from udjfl.errors import DataError
from udjfl.settings import TableSettings

__all__ = ["SOURCE", "name_files"]


class Options(TableSettings):
    """The files, and their columns."""

    files: Annotated[str, Field(description="paths, folders or patterns, separated by commas")] = ""


def load_pools(request: Request) -> Pools:
    """Read the files; a single one without a column of clients has no owners."""
    options: Options = request.options
    if not options.files:
        raise DataError("files: name them in place of the data, as in --data hospitals/*.csv")
    is_one = len(find_files(options.files)) == 1 and options.client is None
    if is_one and request.clients is None:
        raise DataError(
            f"{options.files} is one file: name the column that says which client a row belongs to "
            "(--client), or cut it into clients with --partition iid, dirichlet or quantity"
        )
    tables = read_tables(options.files, has_client_column=True)
    title = describe_files(options.files)
    return make_pools(tables, options, has_owners=not is_one, title=title)


SOURCE = Source(
    name="files",
    summary="CSV or parquet files of your own, named in place of the data: hospitals/*.csv",
    how_to_get="They are yours.",
    load_pools=load_pools,
    options=Options,
    clients=None,
    partition="natural",
)
