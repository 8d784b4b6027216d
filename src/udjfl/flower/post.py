"""Sending messages to nodes and waiting for what they reply."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

FIRST_WAIT, LONGEST_WAIT = 0.05, 1.0


class Post:
    """Messages to nodes, and which node a reply is from.

    Replies that Flower makes itself, for a node that is gone, name no node; they do name the message.
    """

    def __init__(self) -> None:
        self._sent: dict[str, int] = {}

    def messages(
        self, kind: str, contents: Mapping[int, RecordDict], timeout: float
    ) -> list[Message]:
        """A message for each node; one that is not fetched within the timeout is never delivered."""
        return [
            Message(content, node, kind, ttl=max(timeout, 1.0))
            for node, content in contents.items()
        ]

    def exchange(self, grid: Grid, messages: Sequence[Message], timeout: float) -> list[Message]:
        """Send, and wait until everybody has replied or the time is over.

        Flower's own `send_and_receive` looks for replies every three seconds, which is longer than most rounds here.
        """
        self._sent = {}
        if not messages:
            return []
        nodes = [message.metadata.dst_node_id for message in messages]
        self._sent = {
            name: node
            for name, node in zip(grid.push_messages(messages), nodes, strict=False)
            if name
        }
        waiting, replies = set(self._sent), list[Message]()
        end, pause = time.monotonic() + timeout, FIRST_WAIT
        while waiting:
            found = list(grid.pull_messages(sorted(waiting)))
            replies += found
            waiting -= {reply.metadata.reply_to_message_id for reply in found}
            if not waiting or time.monotonic() + pause > end:
                break
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_WAIT)
        return replies

    def node_of(self, reply: Message) -> int:
        return int(self._sent.get(reply.metadata.reply_to_message_id, reply.metadata.src_node_id))

    def by_node(self, replies: Iterable[Message]) -> dict[int, Message]:
        """One reply for each node, in the order of their numbers."""
        found = {self.node_of(reply): reply for reply in replies}
        return {node: found[node] for node in sorted(found)}
