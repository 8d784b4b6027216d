"""A wrong clock: processes that have this folder in PYTHONPATH are TEST_CLOCK_SHIFT seconds off.

That holds for `time.time`, and for the function that Flower reads the time with. Clocks that only
measure how long something takes are right, as they are on such a machine.
"""

import datetime
import importlib.machinery
import os
import sys
import time
from collections.abc import Sequence
from types import ModuleType
from typing import Any

SHIFT = float(os.environ.get("TEST_CLOCK_SHIFT", "0"))
FLOWERS = "flwr.supercore.date"
right_time = time.time


class ShiftedLoader(importlib.machinery.SourceFileLoader):
    """Loads a module, and replaces its function `now`."""

    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        right: Any = module.now
        module.now = lambda: right() + datetime.timedelta(seconds=SHIFT)  # type: ignore[attr-defined]


class Finder:
    """Finds Flower's module that reads the time."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: object = None) -> Any:
        if name != FLOWERS:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        assert spec is not None
        assert spec.origin is not None
        spec.loader = ShiftedLoader(name, spec.origin)
        return spec


if SHIFT:
    time.time = lambda: right_time() + SHIFT
    sys.meta_path.insert(0, Finder)  # type: ignore[arg-type]
