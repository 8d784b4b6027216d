"""A wrong clock: processes that have this folder in PYTHONPATH are TEST_CLOCK_SHIFT seconds off.

Clocks that only measure how long something takes are right, as they are on such a machine.
"""

import datetime
import os
import time

SHIFT = float(os.environ.get("TEST_CLOCK_SHIFT", "0"))
right_time, RightDatetime = time.time, datetime.datetime


class ShiftedDatetime(datetime.datetime):
    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> "ShiftedDatetime":
        return cls.fromtimestamp(right_time() + SHIFT, tz)


if SHIFT:
    time.time = lambda: right_time() + SHIFT
    datetime.datetime = ShiftedDatetime  # type: ignore[misc]
