"""Tasks for `udjfl.simulation.process_pool`, in a module that other processes can import."""

from __future__ import annotations

import logging
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


@dataclass(frozen=True)
class Count:
    """Sends numbers quickly, and logs a warning."""

    end: int

    def __call__(self, send: Callable[[Any], None]) -> int:
        for number in range(self.end):
            send(number)
        logging.getLogger("udjfl").warning("counted to %d", self.end)
        return self.end
