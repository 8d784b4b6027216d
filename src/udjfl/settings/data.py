"""The data of a federation, and the columns of a table."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from udjfl.settings.base import DataRoot, Settings, TaskChoice, split_names

MOST_CLIENTS = 100_000


class TableSettings(Settings):
    """The columns of a table, for data that are one: files, or a source made of columns."""

    target: Annotated[
        str | None,
        Field(description="column of the labels, or a comparison: 'delay>15'; default: none"),
    ] = None
    client: Annotated[
        str | None,
        Field(description="column that names the client of each row; default: a client per file"),
    ] = None
    group: Annotated[
        str | None,
        Field(description="column of groups, such as patients, that no split cuts; default: none"),
    ] = None
    sensitive: Annotated[
        str | None,
        Field(description="column of a sensitive attribute of the rows; default: none"),
    ] = None
    drop: Annotated[list[str], Field(description="columns to leave out, separated by commas")] = []
    categories: Annotated[
        list[str],
        Field(description="columns whose numbers are codes of categories, separated by commas"),
    ] = []
    scaling: Annotated[
        Literal["own", "shared", "none"],
        Field(
            description="means and variances of columns: of a client's own train part, of all "
            "clients by sums, or none"
        ),
    ] = "own"
    test_share: Annotated[
        float | None,
        Field(gt=0, lt=1, description="share of a client's rows in its test part; default: 0.2"),
    ] = None
    task: TaskChoice = "auto"  # also of the training: one setting for both

    @field_validator("drop", "categories", mode="before")
    @classmethod
    def _names_from_text(cls, value: Any) -> Any:
        return split_names(value) if isinstance(value, str) else value

    @property
    def given(self) -> dict[str, Any]:
        """The settings that are not their defaults; of tasks only one that labels depend on."""
        values = self.model_dump(include=set(TableSettings.model_fields), exclude_defaults=True)
        if self.task != "regression":
            values.pop("task", None)
        return values


class DataSettings(Settings):
    """The data of a federation."""

    data: Annotated[
        str,
        Field(
            description="name of the data (`udjfl data list`), options after colons: "
            "signs:level=3; or CSV and parquet files, one for each client: hospitals/*.csv; or a "
            "folder of images (client/class/image) or of a saved federation"
        ),
    ] = "dirty-digits"
    data_root: DataRoot = None
    table: TableSettings = TableSettings()
    clients: Annotated[
        int | None,
        Field(
            ge=1,
            le=MOST_CLIENTS,
            description="number of clients; default: that of the data, mostly 5",
        ),
    ] = None
    partition: Annotated[
        str | None,
        Field(
            description="shards, iid, dirichlet[:alpha], quantity[:alpha] or natural; "
            "default: that of the data, mostly shards"
        ),
    ] = None

    @field_validator("data", mode="before")
    @classmethod
    def _join_files(cls, value: Any) -> Any:
        """Join the names of several files by commas."""
        if not isinstance(value, list | tuple) or not all(isinstance(text, str) for text in value):
            return value
        if len(value) > 1 and any("," in text for text in value):
            raise ValueError(
                "a file has a comma in its name; give a pattern in quotes: 'data/*.csv'"
            )
        return ",".join(value)
