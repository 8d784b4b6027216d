"""What goes wrong between a server and clients that are elsewhere."""

from __future__ import annotations

from flwr.app import Message

from udjfl.errors import UdjflError

# Error codes of Flower for messages that no app has seen, or whose reply was lost: the client was away, and did nothing wrong.
AWAY = {
    3: "its node did not fetch the message in time",
    4: "its node did not send the reply in time",
    5: "its node is not connected",
    8: "its process ended before it could reply",
}


class QuorumError(UdjflError):
    """Fewer clients than the quorum answered. Everything up to the round before is kept."""


def absence(reply: Message) -> str | None:
    """Why the client was not there, where a reply says no more than that; None for every other reply."""
    if not reply.has_error() or reply.error.code not in AWAY:
        return None
    return AWAY[reply.error.code]


def error_text(reply: Message) -> str:
    """The last line of what a client's app raised, which says most; a traceback is too long for a record."""
    lines = [line.strip() for line in (reply.error.reason or "").splitlines() if line.strip()]
    return f"is an error (code {reply.error.code}): {lines[-1][:300] if lines else 'the client gave no reason'}"
