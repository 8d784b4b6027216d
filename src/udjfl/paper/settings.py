"""The settings of `udjfl paper`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from udjfl.settings import SeedSettings
from udjfl.settings.base import DataRoot, Device, ModelName, Rounds, Workers


class ReproduceSettings(SeedSettings):
    """One table of the paper."""

    data: Annotated[
        str,
        Field(
            description="dirty-mnist, cure-tsr, signs, dirty-digits or heart; options after colons"
        ),
    ] = "dirty-mnist"
    data_root: DataRoot = None
    profile: Annotated[
        Literal["paper", "authors"],
        Field(
            description="settings of the paper's text, or of its authors' code where it can be run"
        ),
    ] = "paper"
    rounds: Rounds = 500
    epochs: Annotated[
        int, Field(ge=1, le=1_000_000, description="epochs each client trains alone")
    ] = 500
    model: ModelName = "mlp"
    device: Device = "cpu"
    workers: Workers = 0
