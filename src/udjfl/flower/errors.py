"""Errors that Flower reports in place of a client's reply."""

import re

from flwr.app import Message

# Flower's error codes for messages that no app has seen, or whose reply was lost: the client was
# away, and did nothing wrong.
AWAY = {
    3: "its node did not fetch the message in time",
    4: "its node did not send the reply in time",
    5: "its node is not connected",
    8: "its process ended before it could reply",
}
# How Flower writes an error that a client's app raised.
RAISED = re.compile(r"<class '(?P<kind>[^']+)'>:<'(?P<message>.*)'>", re.DOTALL)
LONGEST = 300  # characters of it in a record


def absence_reason(reply: Message) -> str | None:
    """Return why the client was away, if that is what the reply says; else None."""
    return AWAY.get(reply.error.code) if reply.has_error() else None


def shorten(text: str) -> str:
    """Return the beginning of a text that a client may have made as long as it likes."""
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


def error_text(reply: Message) -> str:
    """Return in one line what a client's app raised: the message, or a traceback's last line."""
    reason = (reply.error.reason or "").strip()
    raised = RAISED.fullmatch(reason)
    text = raised["message"] if raised else reason
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    # On Ray the message is itself a traceback.
    is_traceback = any(line.startswith('File "') for line in lines)
    if raised and not is_traceback:
        text = f"{raised['kind'].rpartition('.')[2]}: {'; '.join(lines)}"
    else:
        text = lines[-1] if lines else "the client gave no reason"
    return f"is an error (code {reply.error.code}): {shorten(text)}"
