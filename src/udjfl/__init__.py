"""Distributive justice for federated learning. See `udjfl --help`, or `udjfl.load` and `udjfl.simulate` to begin."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from udjfl.comparison import Comparison, compare
    from udjfl.config import CompareSettings, TrainingSettings
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
    from udjfl.methods import UDJ, FedAvg, Method, Plan, Reports, Served, Setup, method, parameters
    from udjfl.result import Result
    from udjfl.simulation import simulate

# Where each public name lives; it is imported when first used, so `import udjfl` does not wait for torch.
_HOME = {
    "CheckpointError": "errors",
    "Client": "data",
    "CompareSettings": "config",
    "Comparison": "comparison",
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
    "Result": "result",
    "Served": "methods",
    "SettingsError": "errors",
    "Setup": "methods",
    "StorageError": "errors",
    "TrainingSettings": "config",
    "UDJ": "methods",
    "UdjflError": "errors",
    "compare": "comparison",
    "load": "data",
    "method": "methods",
    "parameters": "methods",
    "simulate": "simulation",
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
    "Served",
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
