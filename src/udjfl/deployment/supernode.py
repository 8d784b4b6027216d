"""A SuperNode that waits no longer than needed: Flower's own, with other pauses.

    python -m udjfl.deployment.supernode [--stock] ...      # the arguments of flower-supernode

Flower's SuperNode sleeps 3 seconds when there is no message for it, and looks for the reply to one
every half second: seconds in every round, however small the model. Here a wait begins with short
pauses, which grow up to Flower's own: of a wait for a message at most a third is lost. A node with
nothing to do asks every 3 seconds, as ever; after a message it asks up to 5 times in the first
second, 9 times in 7.5 seconds, and then every 3 seconds again.

It relies on a part of Flower that is not public (`flwr_internals`). With another Flower it warns
and keeps Flower's pauses, as with --stock; the results are the same.

After an error that is not tried again, Flower's SuperNode signs off and comes to its end: a
connection that breaks off in the middle of TLS is enough. But the thread that serves its executor
keeps the process, which does nothing any more, and which nobody would start again. Here the process
ends with the SuperNode, with --stock as well.
"""

import contextlib
import functools
import importlib.metadata
import logging
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

from udjfl.deployment import flwr_internals
from udjfl.deployment.pauses import GrowingPause, Growth
from udjfl.deployment.warm import show_log

logger = logging.getLogger("udjfl")
STOCK = "--stock"
PROGRAM = "flower-supernode"
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


def find_program() -> Callable[[], object]:
    """Return Flower's own program, as its command runs it."""
    installed = importlib.metadata.distribution("flwr").entry_points
    (program,) = installed.select(group="console_scripts", name=PROGRAM)
    found: Callable[[], object] = program.load()
    return found


def end_with(program: Callable[[], object]) -> None:
    """Run a SuperNode, and end this process when it comes to its end."""
    code = 1
    try:
        with contextlib.suppress(OSError):  # of its log, on a full disk
            try:
                program()
            except SystemExit as end:
                code = end.code if isinstance(end.code, int) else int(end.code is not None)
                if isinstance(end.code, str):
                    print(end.code, file=sys.stderr)
            except BaseException:
                traceback.print_exc()
            sys.stdout.flush()
            sys.stderr.flush()
    finally:
        os._exit(code)


def choose_program() -> Callable[[], object]:
    """Return the SuperNode to run: Flower's with other pauses, or just as it is."""
    if sys.argv[1:2] == [STOCK]:
        del sys.argv[1]
        return find_program()
    reason = flwr_internals.find_supernode_mismatch()
    if reason is None:
        run = flwr_internals.run_supernode
        return functools.partial(run, GrowingPause(WAITS), wait_for_own_reply)
    show_log()
    logger.warning("Every round takes seconds longer, as Flower's own pauses are kept: %s", reason)
    return find_program()


def main() -> None:
    """Run a SuperNode in this process, with the arguments of the process."""
    end_with(choose_program())


if __name__ == "__main__":
    main()
