"""Settings: what can be chosen, its range and its default; validated all at once."""

from udjfl.settings.base import AnySettings, Settings
from udjfl.settings.data import DataSettings, TableSettings
from udjfl.settings.runs import CompareSettings, RunSettings, SeedSettings
from udjfl.settings.training import TrainingSettings
from udjfl.settings.validation import read_toml, validate_settings

__all__ = [
    "AnySettings",
    "CompareSettings",
    "DataSettings",
    "RunSettings",
    "SeedSettings",
    "Settings",
    "TableSettings",
    "TrainingSettings",
    "read_toml",
    "validate_settings",
]
