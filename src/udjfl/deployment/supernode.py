"""A SuperNode that waits no longer than needed: Flower's own, with other pauses.

    python -m udjfl.deployment.supernode ...      # the arguments of flower-supernode

Flower's SuperNode sleeps 3 seconds when there is no message for it, and looks for the reply to one
every half second: seconds in every round, however small the model. Here a wait begins with short
pauses, which grow up to Flower's own: of a wait for a message at most a third is lost. A node with
nothing to do asks every 3 seconds, as ever; after a message it asks up to 5 times in the first
second, 9 times in 7.5 seconds, and then every 3 seconds again.

It relies on a part of Flower that is not public (`flwr_internals`). With another Flower it warns
and runs `flower-supernode`, with the same results.
"""

import functools
import logging
import os
import sys
from collections.abc import Callable
from typing import Any

from udjfl.deployment import flwr_internals
from udjfl.deployment.flwr_command import executable
from udjfl.deployment.pauses import GrowingPause, Growth
from udjfl.deployment.warm import show_log

logger = logging.getLogger("udjfl")
# While there is no message, each pause is followed by a request to the SuperLink; while there is
# no reply yet, by a look into the memory of this process.
WAITS = {3: Growth(0.1, 1.5), 0.5: Growth(0.05, 1.1)}


def wait_for_own_reply(
    pull: Callable[..., int | None], push: Callable[..., None]
) -> tuple[Callable[..., int | None], Callable[..., None]]:
    """Return a SuperNode's two steps such that it goes on only once its message was replied to.

    Flower's goes on after any reply. A run that is stopped while a message is being fetched can
    leave one that is replied to later: it is then taken for the reply to the next message, whose
    own reply is not sent before there is another message.
    """
    pulled: list[str] = []
    replied: set[str] = set()

    @functools.wraps(pull)
    def pull_message(*, receive: Callable[[], Any], **others: Any) -> int | None:
        def receive_and_note() -> Any:
            received = receive()
            pulled[:] = [] if received is None else [received[0].metadata.message_id]
            return received

        return pull(receive=receive_and_note, **others)

    @functools.wraps(push)
    def push_messages(*, send: Callable[..., Any], **others: Any) -> None:
        def send_and_note(message: Any, *rest: Any) -> Any:
            replied.add(message.metadata.reply_to_message_id)
            return send(message, *rest)

        replied.clear()
        while not replied.issuperset(pulled):
            push(send=send_and_note, **others)

    return pull_message, push_messages


def main() -> None:
    """Run a SuperNode in this process, with the arguments of the process."""
    reason = flwr_internals.find_supernode_mismatch()
    if reason is None:
        flwr_internals.run_supernode(GrowingPause(WAITS), wait_for_own_reply)
        return
    show_log()
    logger.warning("Every round takes seconds longer, as Flower's own pauses are kept: %s", reason)
    command = [executable("flower-supernode"), *sys.argv[1:]]
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
