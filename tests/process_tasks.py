"""Tasks for `udjfl.simulation.process_pool`, in a module that other processes can import."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Sleep:
    """Sends a message, then sleeps."""

    seconds: float

    def __call__(self, send: Callable[[Any], None]) -> float:
        send("asleep")
        time.sleep(self.seconds)
        return self.seconds


@dataclass(frozen=True)
class Fail:
    """Fails."""

    def __call__(self, send: Callable[[Any], None]) -> None:
        raise ValueError("failed on purpose")
