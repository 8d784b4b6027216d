"""A SuperNode that waits no longer than needed: Flower's own, with other pauses.

    python -m udjfl.deployment.supernode ...      # the arguments of flower-supernode

Flower's SuperNode sleeps 3 seconds when there is no message for it, and looks for the reply to one
every half second: seconds in every round, however small the model. Here a wait begins with short
pauses, which grow up to Flower's own: at most a third of a wait is lost, and 0.1 s. A node that has
nothing to do asks every 3 seconds, as ever; after a message it asks up to 5 times in the first
second, 9 times in 7.5 seconds, and then every 3 seconds again.

It relies on a part of Flower that is not public (`flwr_internals`). With another Flower it warns
and runs `flower-supernode`, with the same results.
"""

import logging
import os
import sys
import time
from collections.abc import Callable

from udjfl.deployment import flwr_internals
from udjfl.deployment.flwr_command import executable
from udjfl.deployment.warm import show_log

logger = logging.getLogger("udjfl")
# Seconds: the first pause while there is no message (each is a request to the SuperLink), and
# while there is no reply yet (a look into the memory of this process).
FIRST_PAUSES = {3: 0.1, 0.5: 0.05}
GROWTH = 1.5


class GrowingPause:
    """Sleeps for a short time at first, then longer and longer, up to the time asked for.

    It starts anew when another time is asked for: Flower's SuperNode alternates between waiting
    for a message and waiting for the reply to it.
    """

    def __init__(self, sleep: Callable[[float], None] = time.sleep) -> None:
        self._sleep = sleep
        self._asked, self._pause = 0.0, 0.0

    def sleep(self, seconds: float) -> None:
        """Sleep for at most so many seconds."""
        if seconds != self._asked:
            self._asked, self._pause = seconds, FIRST_PAUSES.get(seconds, seconds)
        self._sleep(min(self._pause, seconds))
        self._pause = min(self._pause * GROWTH, seconds)


def main() -> None:
    """Run a SuperNode in this process, with the arguments of the process."""
    reason = flwr_internals.find_supernode_mismatch()
    if reason is None:
        flwr_internals.run_supernode(GrowingPause())
        return
    show_log()
    logger.warning("Every round takes seconds longer, as Flower's own pauses are kept: %s", reason)
    command = [executable("flower-supernode"), *sys.argv[1:]]
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
