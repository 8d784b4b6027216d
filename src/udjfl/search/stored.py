"""The types of what a search has written, checked when it is read: it may be somebody else's."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    Strict,
    StrictBool,
    StrictInt,
    StrictStr,
    ValidationError,
)

Number = Annotated[float, Strict(), Field(allow_inf_nan=False)]
Stored = TypeVar("Stored", bound=BaseModel)
Kind = Literal["reference", "theory", "grid", "budget", "method"]


class StoredPoint(BaseModel):
    """A point of a frontier. Its place in the family is that of its method."""

    name: StrictStr
    label: StrictStr
    kind: Kind
    method: StrictStr
    params: dict[StrictStr, Any]


class StoredSettings(BaseModel):
    """The settings of a frontier that tables show, among others."""

    model_config = ConfigDict(extra="allow")

    rounds: StrictInt


class StoredFrontier(BaseModel):
    """The dictionary of `Frontier.as_dict`, but for what is computed from the runs."""

    data: StrictStr
    clients: list[StrictStr]
    seeds: list[StrictInt]
    settings: StoredSettings
    points: Annotated[list[StoredPoint], Field(min_length=1)]
    n_classes: Annotated[int, Strict(), Field(ge=0)] | None
    margin: Number
    score: dict[StrictStr, Any] | None = None


class StoredScore(BaseModel):
    """A candidate's score, as `CandidateScore.as_dict` returns it."""

    method: StrictStr
    params: dict[StrictStr, Any]
    measure_by_seed: list[Number]
    mean_accuracy: Number
    beneficiaries: Number
    shared: Number | None
    clients: dict[StrictStr, Number]
    broken: dict[StrictStr, Number]
    failed: StrictStr | None
    near_budget: StrictBool = False  # of older versions


class StoredRung(BaseModel):
    """The scores of one rung of a search."""

    rounds: StrictInt
    scores: Annotated[list[StoredScore], Field(min_length=1)]


class StoredChoice(BaseModel):
    """The dictionary that `HeldOutChoice.as_dict` returns."""

    theory: Literal["rawls", "egalitarian", "utilitarian", "desert"]
    budget: Number
    floor: dict[StrictStr, Number]
    chosen: StoredScore
    default: StoredScore
    neighbours: list[StoredScore]
    rungs: Annotated[list[StoredRung], Field(min_length=1)]
    defaults: list[StrictStr] = []
    cost: Number
    grid_cost: Number
    score: dict[StrictStr, Any] | None = None


def check_stored(cls: type[Stored], values: Any) -> Stored:
    """Check the types of values; a ValueError names the first that is of another."""
    try:
        return cls.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        raise ValueError(f"{field}: {first['msg'].lower()}") from None
