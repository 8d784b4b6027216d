"""Distributive justice for federated learning. See `udjfl --help`, or `udjfl.load` and `udjfl.simulate` to begin."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from udjfl.data import Client, Examples, Federation, load
    from udjfl.errors import (
        CheckpointError,
        DataError,
        DivergedError,
        NotDefinedError,
        ReportError,
        SettingsError,
        StorageError,
        UdjflError,
    )
    from udjfl.methods import (
        UDJ,
        FedAvg,
        Method,
        Plan,
        Reports,
        ServedModels,
        Setup,
        method,
        parameters,
    )
    from udjfl.settings import CompareSettings, TrainingSettings
    from udjfl.simulation.compare import Comparison, compare
    from udjfl.simulation.simulate import simulate
    from udjfl.training.result import Result

# Where each public name lives; it is imported when first used, so `import udjfl` does not wait for torch.
_HOME = {
    "CheckpointError": "errors",
    "Client": "data",
    "CompareSettings": "settings",
    "Comparison": "simulation.compare",
    "DataError": "errors",
    "DivergedError": "errors",
    "Examples": "data",
    "FedAvg": "methods",
    "Federation": "data",
    "Method": "methods",
    "NotDefinedError": "errors",
    "Plan": "methods",
    "ReportError": "errors",
    "Reports": "methods",
    "Result": "training.result",
    "ServedModels": "methods",
    "SettingsError": "errors",
    "Setup": "methods",
    "StorageError": "errors",
    "TrainingSettings": "settings",
    "UDJ": "methods",
    "UdjflError": "errors",
    "compare": "simulation.compare",
    "load": "data",
    "method": "methods",
    "parameters": "methods",
    "simulate": "simulation.simulate",
}

__all__ = [
    "UDJ",
    "CheckpointError",
    "Client",
    "CompareSettings",
    "Comparison",
    "DataError",
    "DivergedError",
    "Examples",
    "FedAvg",
    "Federation",
    "Method",
    "NotDefinedError",
    "Plan",
    "ReportError",
    "Reports",
    "Result",
    "ServedModels",
    "SettingsError",
    "Setup",
    "StorageError",
    "TrainingSettings",
    "UdjflError",
    "compare",
    "load",
    "method",
    "parameters",
    "simulate",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'udjfl' has no attribute {name!r}")
    return getattr(importlib.import_module(f"udjfl.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
