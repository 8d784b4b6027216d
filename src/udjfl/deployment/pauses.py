"""Pauses between looks for something that may come soon, or not for hours."""

import time
from collections.abc import Callable, Mapping
from typing import NamedTuple


class Growth(NamedTuple):
    """The beginning of a wait: its first pause in seconds, and how many times longer the next are.

    Besides the first pause, at most 1 - 1/factor of a wait is lost.
    """

    first: float
    factor: float


class GrowingPause:
    """A `sleep` that is short at first, then longer and longer, up to the time asked for.

    It starts anew after `restart`, and when another time is asked for: that is another wait.

    waits  the growth by the time that is asked for; other sleeps are as long as asked for
    """

    def __init__(
        self, waits: Mapping[float, Growth], sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._waits, self._sleep = waits, sleep
        self._asked, self._pause = 0.0, 0.0

    def restart(self) -> None:
        """Begin with a short pause again."""
        self._asked = 0.0

    def sleep(self, seconds: float) -> None:
        """Sleep for at most so many seconds."""
        growth = self._waits.get(seconds, Growth(seconds, 1))
        if seconds != self._asked:
            self._asked, self._pause = seconds, growth.first
        self._sleep(min(self._pause, seconds))
        self._pause = min(self._pause * growth.factor, seconds)
