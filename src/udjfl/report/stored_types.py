"""The types of what a run folder has in its settings and its result, checked before it is shown.

A folder may be somebody else's: its checksums say that nothing was changed, not that it was ever
right.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    Field,
    Strict,
    StrictInt,
    StrictStr,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    field_validator,
)

from udjfl._ids import id_sort_key
from udjfl.errors import StorageError

# Far beyond any score, and small enough for squares and sums of squares.
LARGEST = 1e100
Number = Annotated[float, Strict(), Field(ge=-LARGEST, le=LARGEST)]
Count = Annotated[int, Strict(), Field(ge=0, le=2**53)]
ByClient = dict[StrictStr, Number]
DAMAGED = "the file is damaged: resume the run, or start it again elsewhere"


class StoredClient(BaseModel):
    """A client in the settings. Here and below, what is missing has a default: only types count."""

    id: StrictStr = ""
    test: Count | None = None
    class_counts: list[Number] | dict[str, Number] | None = None


class StoredFederation(BaseModel):
    """The federation in the settings."""

    name: StrictStr = ""
    fingerprint: StrictStr | None = None
    n_classes: Count | None = None
    clients: list[StoredClient] = []


class StoredSettings(BaseModel):
    """The part of settings.json that tables show."""

    method: StrictStr = ""
    params: dict[str, Any] = {}
    seed: StrictInt = 0
    training: dict[str, Any] = {}
    federation: StoredFederation = StoredFederation()


class StoredResult(BaseModel):
    """The part of result.json that tables show."""

    method: StrictStr = ""
    label: StrictStr = ""
    theory: list[StrictStr] = []
    grade: StrictStr = ""
    undefined: dict[str, StrictStr] = {}
    client_scores: ByClient = {}
    common_scores: ByClient | None = None
    expected_accuracy: ByClient | None = None
    accuracy_alone: ByClient | None = None
    score_alone: ByClient | None = None
    uncertainty: dict[StrictStr, Number | None] = {}
    epistemic: dict[StrictStr, Number | None] | None = None
    notes: list[StrictStr] = []
    test_sizes: dict[StrictStr, Count] | None = None
    n_classes: Count | None = None
    warning: StrictStr | None = None
    client_interval: dict[StrictStr, tuple[Number, Number]] | None = None
    group_accuracy: dict[str, Any] | None = None
    score: dict[str, Any] = {}

    @field_validator("test_sizes")
    @classmethod
    def _names_every_client(
        cls, sizes: dict[str, int] | None, info: ValidationInfo
    ) -> dict[str, int] | None:
        missing = set(info.data.get("client_scores", ())) - set(sizes or ())
        if sizes is not None and missing:
            raise ValueError(f"has no number for {min(missing, key=id_sort_key)}")
        return sizes


SETTINGS, RESULT = TypeAdapter(StoredSettings), TypeAdapter(StoredResult)
METRICS: TypeAdapter[Any] = TypeAdapter(dict[str, Number | None])


def check_types(folder: Path, settings: Any, result: Any) -> None:
    """Raise a `StorageError` that names the file and the field of another type than it has."""
    _check(folder / "settings.json", SETTINGS, settings)
    _check(folder / "result.json", RESULT, result)


def check_metrics(folder: Path, metrics: dict[str, Any]) -> dict[str, Any]:
    """Return metrics; raise a `StorageError` if one is neither a number nor undefined."""
    _check(folder / "result.json", METRICS, metrics)
    return metrics


def _check(path: Path, stored: TypeAdapter[Any], values: Any) -> None:
    try:
        stored.validate_python(values)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        raise StorageError(f"{path}: {field}: {first['msg'].lower()}; {DAMAGED}") from None
