"""Settings of `udjfl frontier` and `udjfl tune`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from udjfl.settings import CompareSettings, DataSettings, SeedSettings, TrainingSettings
from udjfl.settings.runs import Seed

SEEDS = list(range(10))
NO_FLOOR: dict[str, float] = {}
EXPONENTS = [-1.0, -0.5, 1.0, 2.0, 4.0, 6.0]
GAMMAS = [-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0]
BUDGETS = [1.0, 2.0, 5.0]
METHODS = ["afl", "qffl", "propfair", "fedfv", "term"]


class FrontierSettings(CompareSettings):
    """A grid of the family, each theory with and without budgets, and other methods."""

    seeds: Annotated[
        list[Seed],
        Field(min_length=1, description="number of seeds (from 0), or a list: 0,3,7"),
    ] = SEEDS
    exponents: Annotated[
        list[float],
        Field(
            description="powers of the loss, separated by commas: 1 + beta for Rawls and "
            "utilitarian, 1 for egalitarian, -beta for desert; not 0"
        ),
    ] = EXPONENTS
    gammas: Annotated[
        list[float], Field(description="powers of the uncertainty, separated by commas")
    ] = GAMMAS
    budgets: Annotated[
        list[Annotated[float, Field(ge=0, le=100)]],
        Field(description="points of mean accuracy that each theory may cost, separated by commas"),
    ] = BUDGETS
    methods: Annotated[
        list[str], Field(description="other methods to mark, separated by commas, or all")
    ] = METHODS

    @field_validator("exponents", "gammas", "budgets", mode="before")
    @classmethod
    def _numbers_from_text(cls, value: Any) -> Any:
        if isinstance(value, str):
            return [part.strip() for part in value.split(",") if part.strip()]
        return [value] if isinstance(value, int | float) else value

    @field_validator("exponents", "gammas", "budgets")
    @classmethod
    def _numbers_differ(cls, value: list[float]) -> list[float]:
        if len(set(value)) != len(value):
            raise ValueError("give each number once")
        return value

    @field_validator("exponents")
    @classmethod
    def _exponents_are_not_zero(cls, value: list[float]) -> list[float]:
        if 0.0 in value:
            raise ValueError("with an exponent of 0 no loss enters; leave it out")
        return value


class TuneSettings(SeedSettings):
    """A search for the best point of one theory."""

    federation: DataSettings = DataSettings()
    training: TrainingSettings = TrainingSettings()
    theory: Annotated[
        Literal["rawls", "egalitarian", "utilitarian", "desert"],
        Field(description="the theory whose measure is to be the best on held-out data"),
    ] = "rawls"
    budget: Annotated[
        float,
        Field(ge=0, le=100, description="points of mean accuracy that the point may cost"),
    ] = 2.0
    floor: Annotated[
        dict[str, float],
        Field(
            description="percent that clients have at least: client-5=70,client-1=85; of another "
            "score, the value that they have or a better one"
        ),
    ] = NO_FLOOR
    cost: Annotated[
        float,
        Field(gt=0, description="trainings for each seed, in whole ones, that the search may use"),
    ] = 24.0
    sampler: Annotated[
        Literal["sobol", "optuna"],
        Field(description="where to look first: sobol, evenly; optuna, where it was good (extra)"),
    ] = "sobol"
    seeds: Annotated[
        list[Seed],
        Field(min_length=1, description="number of seeds (from 0), or a list: 0,3,7"),
    ] = SEEDS

    @field_validator("floor", mode="before")
    @classmethod
    def _floor_from_text(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        pairs = [part.partition("=") for part in value.split(",") if part.strip()]
        if not all(name.strip() and equals for name, equals, _ in pairs):
            raise ValueError("write a client and a number, as in client-5=70")
        floors = {name.strip(): number.strip() for name, _, number in pairs}
        if len(floors) < len(pairs):
            raise ValueError("give each client once")
        return floors
