"""Replies that are changed or lost on the way to the server, for tests in process."""

from __future__ import annotations

from typing import Any

from flwr.app import Error, Message, MetricRecord, RecordDict
from in_process_grid import FIRST_NODE

BAD = FIRST_NODE + 1  # the node of client-2


def in_training(
    change: Any, node: int = BAD, rounds: tuple[int, ...] = (2,), kind: str = "train"
) -> Any:
    """Return a `tamper` that changes the replies of one node in some rounds."""

    def tamper(message: Message, reply: Message) -> Message | None:
        metadata = message.metadata
        at = message.content["config"]["round"]
        if metadata.message_type != kind or metadata.dst_node_id != node or at not in rounds:
            return reply
        changed = change(reply)
        if isinstance(changed, RecordDict | Error):
            return Message(changed, reply_to=message)
        return changed

    return tamper


def with_metrics(**changes: Any) -> Any:
    return lambda reply: RecordDict(
        {**reply.content, "metrics": MetricRecord({**reply.content["metrics"], **changes})}
    )


def changed_uncertainty(reply: Message) -> RecordDict:
    return with_metrics(uncertainty=2 * reply.content["metrics"]["uncertainty"])(reply)
