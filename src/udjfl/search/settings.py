"""Settings of `udjfl frontier` and `udjfl tune`."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, field_validator

from udjfl.settings import CompareSettings

SEEDS = list(range(10))
EXPONENTS = [-1.0, -0.5, 1.0, 2.0, 4.0, 6.0]
GAMMAS = [-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0]
BUDGETS = [1.0, 2.0, 5.0]
METHODS = ["afl", "qffl", "propfair", "fedfv", "term"]


class FrontierSettings(CompareSettings):
    """A grid of the family, each theory with and without budgets, and other methods."""

    seeds: Annotated[
        list[Annotated[int, Field(ge=0)]],
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
