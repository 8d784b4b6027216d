"""A limit to what strangers can have written to a log."""

from __future__ import annotations

import logging
import time
from collections import Counter


class OneASecond(logging.Filter):
    """Lets one warning of a kind a second pass: strangers, who cause some, must not fill the disk.

    A kind is a message of this package, whatever its values, or all messages of another logger.
    """

    def __init__(self) -> None:
        super().__init__()
        self._left_out: Counter[str] = Counter()
        self._next: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Tell if a line is written; it says how many were not."""
        now = time.monotonic()
        if record.levelno < logging.WARNING:
            return True
        kind = str(record.msg) if record.name.startswith("udjfl.") else record.name
        if now < self._next.get(kind, 0.0):
            self._left_out[kind] += 1
            return False
        if left_out := self._left_out.pop(kind, 0):
            record.msg, record.args = f"{record.getMessage()} ({left_out} lines left out)", ()
        self._next[kind] = now + 1
        return True
