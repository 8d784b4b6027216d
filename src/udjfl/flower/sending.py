"""Messages sent to nodes, and the replies that come in time."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Mapping, Sequence

from flwr.app import Message
from flwr.serverapp import Grid

FIRST_PAUSE, LONGEST_PAUSE, GROWTH = 0.05, 1.0, 1.2  # seconds between looks for replies
# Seconds after which a look for replies counts as held up.
PATIENCE = 5.0
# Seconds that replies which are being fetched when the time is over have to arrive.
GRACE = 20.0

Pulled = list[Message] | BaseException


def send_and_receive(
    grid: Grid, messages: Mapping[int, Message], timeout: float
) -> list[tuple[int, Message]]:
    """Send a message to each node; return the replies that came in time, with their nodes.

    Flower's own `send_and_receive` looks for replies every three seconds, which is longer than
    most rounds. Replies that Flower makes itself, for a node that is gone, name the message but no
    node.
    """
    names = grid.push_messages(list(messages.values())) if messages else ()
    nodes = {name: node for name, node in zip(names, messages, strict=False) if name}
    replies = _receive(ReplyFetcher(grid), set(nodes), timeout)
    headers = [reply.metadata for reply in replies]
    senders = [nodes.get(header.reply_to_message_id, header.src_node_id) for header in headers]
    return list(zip(senders, replies, strict=True))


def _receive(fetcher: ReplyFetcher, waiting: set[str], timeout: float) -> list[Message]:
    """Return the replies to messages of these names that come within a number of seconds.

    There is one for each message. While a reply is held up, Flower may answer in its place that
    the node is gone or too late; if the reply itself still comes, it counts.
    """
    replies: dict[str, Message] = {}
    end, pause = time.monotonic() + timeout, FIRST_PAUSE
    while waiting:
        fetcher.look_for(sorted(waiting))
        is_last = time.monotonic() + pause > end
        for reply in fetcher.wait(GRACE if is_last else PATIENCE, even_if_held_up=is_last):
            name = reply.metadata.reply_to_message_id
            if name not in replies or replies[name].has_error():
                replies[name] = reply
        waiting = waiting - set(replies)
        if not waiting or is_last:
            break
        time.sleep(pause)
        pause = min(GROWTH * pause, LONGEST_PAUSE)
    return list(replies.values())


class ReplyFetcher:
    """Fetches replies, and is not held up by one that is only half there.

    Flower hands out every reply once, all that have come together, and waits up to three minutes
    for one whose sender was cut off while it was sending. So each look for replies is made in a
    thread. If one is held up, what it was given comes when Flower gives up, and the replies to all
    other messages are asked for one by one.
    """

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self._answers: queue.SimpleQueue[tuple[tuple[str, ...], Pulled]] = queue.SimpleQueue()
        self._under_way: set[tuple[str, ...]] = set()
        self._held_up: set[tuple[str, ...]] = set()

    def look_for(self, names: Sequence[str]) -> None:
        """Begin to look for the replies to these messages."""
        groups = {(name,) for name in names} if self._under_way else {tuple(names)}
        for group in groups - self._under_way:
            self._under_way.add(group)
            threading.Thread(target=self._pull, args=(group,), daemon=True).start()

    def wait(self, seconds: float, even_if_held_up: bool = False) -> list[Message]:
        """Return what comes of all looks; those held up before are waited for only if told so."""
        ignored = set() if even_if_held_up else self._held_up
        replies: list[Message] = []
        end = time.monotonic() + seconds
        while self._under_way - ignored or not self._answers.empty():
            try:
                group, pulled = self._answers.get(timeout=max(end - time.monotonic(), 0.0))
            except queue.Empty:
                break
            self._under_way.remove(group)
            if isinstance(pulled, BaseException):
                raise pulled
            replies += pulled
        self._held_up = set(self._under_way)
        return replies

    def _pull(self, group: tuple[str, ...]) -> None:
        try:
            pulled: Pulled = list(self.grid.pull_messages(list(group)))
        except BaseException as error:  # raised again by the thread that waits
            pulled = error
        self._answers.put((group, pulled))
