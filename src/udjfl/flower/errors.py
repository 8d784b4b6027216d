"""What goes wrong between a server and clients that are elsewhere."""

from __future__ import annotations

import re

from flwr.app import Message

from udjfl.errors import UdjflError

# Error codes of Flower for messages that no app has seen, or whose reply was lost: the client was away, and did nothing wrong.
AWAY = {
    3: "its node did not fetch the message in time",
    4: "its node did not send the reply in time",
    5: "its node is not connected",
    8: "its process ended before it could reply",
}


# How Flower writes an error that a client's app raised.
RAISED = re.compile(r"<class '(?P<kind>[^']+)'>:<'(?P<message>.*)'>", re.DOTALL)
LONGEST = 300  # characters of it in a record


class QuorumError(UdjflError):
    """Fewer clients than the quorum answered. Everything up to the round before is kept."""


def absence(reply: Message) -> str | None:
    """Why the client was not there, where a reply says no more than that; None for every other reply."""
    if not reply.has_error() or reply.error.code not in AWAY:
        return None
    return AWAY[reply.error.code]


def error_text(reply: Message) -> str:
    """What a client's app raised, in a line: all of its message, or the last line of a traceback, which says most."""
    reason = (reply.error.reason or "").strip()
    raised = RAISED.fullmatch(reason)
    lines = [
        line.strip()
        for line in (raised["message"] if raised else reason).splitlines()
        if line.strip()
    ]
    if raised and not any(
        line.startswith('File "') for line in lines
    ):  # on Ray the message is itself a traceback
        text = f"{raised['kind'].rpartition('.')[2]}: {'; '.join(lines)}"
    else:
        text = lines[-1] if lines else "the client gave no reason"
    return f"is an error (code {reply.error.code}): {text[:LONGEST]}"
