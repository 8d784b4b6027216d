"""A run, and a comparison of several methods over several seeds."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, field_validator

from udjfl.settings.base import MOST, Settings, split_names
from udjfl.settings.data import DataSettings
from udjfl.settings.training import TrainingSettings

MOST_SEEDS = 10_000
LARGEST_SEED = 2**63 - 1  # what fits in 64 bits, of TOML files and other programs
Seed = Annotated[int, Field(ge=0, le=LARGEST_SEED)]


class RunSettings(Settings):
    """One method on one federation with one seed."""

    federation: DataSettings = DataSettings()
    training: TrainingSettings = TrainingSettings()
    method: Annotated[
        str, Field(description="a method, as in `rawls` or `udj:theory=rawls:beta=5`")
    ] = "rawls"
    params: Annotated[dict[str, Any], Field(description="the method's parameters")] = {}
    seed: Annotated[Seed, Field(description="seed of everything random")] = 0


class SeedSettings(Settings):
    """The seeds, and how many processes share them."""

    seeds: Annotated[
        list[Seed],
        Field(
            min_length=1,
            description="number of seeds (from 0), or a list: 0,3,7 (a single one: 7,)",
        ),
    ] = [0, 1, 2, 3, 4]

    jobs: Annotated[
        int, Field(ge=0, le=MOST, description="processes that share the seeds (0: one per core)")
    ] = 1

    @field_validator("seeds", mode="before")
    @classmethod
    def _seeds_from_count_or_text(cls, value: Any) -> Any:
        if isinstance(value, str):
            value = (
                int(value)
                if value.strip().isdigit()
                else [part.strip() for part in value.split(",") if part.strip()]
            )
        if isinstance(value, int) and not isinstance(value, bool):
            if value > LARGEST_SEED:
                raise ValueError(f"at most {MOST_SEEDS} seeds, and none above {LARGEST_SEED}")
            if value > MOST_SEEDS:
                raise ValueError(
                    f"{value} seeds are more than the {MOST_SEEDS} allowed; "
                    f"for the one seed {value} write '{value},'"
                )
            return list(range(value))
        return value

    @field_validator("seeds")
    @classmethod
    def _seeds_differ(cls, value: list[int]) -> list[int]:
        if len(set(value)) != len(value):
            raise ValueError("give each seed once; a seed counted twice makes intervals too narrow")
        return value


class CompareSettings(SeedSettings):
    """Several methods on the same federations."""

    federation: DataSettings = DataSettings()
    training: TrainingSettings = TrainingSettings()

    methods: Annotated[
        list[str],
        Field(min_length=1, description="methods separated by commas; all: the fair ones"),
    ] = [
        "fedavg",
        "rawls",
        "egalitarian",
        "utilitarian",
        "desert",
    ]
    params: Annotated[
        dict[str, Any], Field(description="parameters for each method that has them")
    ] = {}

    @field_validator("methods", mode="before")
    @classmethod
    def _methods_from_text(cls, value: Any) -> Any:
        return split_names(value) if isinstance(value, str) else value
