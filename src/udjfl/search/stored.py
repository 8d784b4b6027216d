"""The types of what a search has written, checked when it is read: it may be somebody else's."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, Strict, StrictInt, StrictStr, ValidationError

Number = Annotated[float, Strict(), Field(allow_inf_nan=False)]
Kind = Literal["reference", "theory", "grid", "budget", "method"]


class StoredPoint(BaseModel):
    """A point of a frontier. Its place in the family is that of its method."""

    name: StrictStr
    label: StrictStr
    kind: Kind
    method: StrictStr
    params: dict[StrictStr, Any]


class StoredFrontier(BaseModel):
    """What `Frontier.as_dict` returns, but for what is computed from the runs."""

    data: StrictStr
    clients: list[StrictStr]
    seeds: list[StrictInt]
    settings: dict[StrictStr, Any]
    points: Annotated[list[StoredPoint], Field(min_length=1)]
    n_classes: Annotated[int, Strict(), Field(ge=0)] | None
    margin: Number
    score: dict[StrictStr, Any] | None = None

    @classmethod
    def read(cls, values: Any) -> StoredFrontier:
        """Check the types of values; a ValueError names the first that is of another."""
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            first = error.errors()[0]
            field = ".".join(str(part) for part in first["loc"])
            raise ValueError(f"{field}: {first['msg'].lower()}") from None
