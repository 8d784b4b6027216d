"""A limit to what strangers can have written to a log."""

from __future__ import annotations

import logging
import time


class OneASecond(logging.Filter):
    """Lets one warning a second pass: strangers, who cause them, must not fill the disk."""

    def __init__(self) -> None:
        super().__init__()
        self._left_out, self._next = 0, 0.0

    def filter(self, record: logging.LogRecord) -> bool:
        """Tell if a line is written; it says how many were not."""
        now = time.monotonic()
        if record.levelno < logging.WARNING:
            return True
        if now < self._next:
            self._left_out += 1
            return False
        if self._left_out:
            record.msg, record.args = f"{record.getMessage()} ({self._left_out} lines left out)", ()
        self._left_out, self._next = 0, now + 1
        return True
