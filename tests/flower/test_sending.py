"""Replies: those that came are returned, though Flower is held up by one that is half there."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

pytest.importorskip("flwr")

from flwr.app import Message
from flwr.serverapp import Grid

from udjfl.flower import sending
from udjfl.flower.sending import send_and_receive


class HandingOut:
    """A grid that hands out each reply once, after some looks, all that have come together.

    ready  for each node the look from which on its reply is there
    cut    nodes whose replies never arrive whole: a look that is given one ends with `give_up`
    """

    def __init__(self, ready: dict[int, int], cut: Iterable[int] = ()) -> None:
        self.ready, self.cut = dict(ready), set(cut)
        self.give_up = threading.Event()
        self.lock = threading.Lock()
        self.looks: list[int] = []

    def push_messages(self, messages: Iterable[Any]) -> list[str]:
        return [f"to-{message.node}" for message in messages]

    def pull_messages(self, names: Iterable[str]) -> list[Any]:
        asked = [int(name.removeprefix("to-")) for name in names]
        with self.lock:
            self.looks.append(len(asked))
            given = [n for n in asked if self.ready.get(n, 10**9) <= len(self.looks)]
            for node in given:
                del self.ready[node]
        if self.cut.intersection(given):
            self.give_up.wait()
        return [make_reply(node) for node in given if node not in self.cut]


def make_reply(node: int, is_error: bool = False) -> Any:
    header = SimpleNamespace(reply_to_message_id=f"to-{node}", src_node_id=node)
    return SimpleNamespace(metadata=header, has_error=lambda: is_error)


def exchange(grid: Any, nodes: Iterable[int], timeout: float) -> list[int]:
    """Send to nodes; return those whose replies came."""
    messages = {node: cast(Message, SimpleNamespace(node=node)) for node in nodes}
    return sorted(node for node, _ in send_and_receive(cast(Grid, grid), messages, timeout))


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in {"PATIENCE": 0.1, "GRACE": 0.1, "FIRST_PAUSE": 0.001}.items():
        monkeypatch.setattr(sending, name, seconds)


@pytest.fixture
def held_up() -> Iterator[HandingOut]:
    """Node 2's reply is cut off, and handed out together with that of node 1."""
    grid = HandingOut({1: 2, 2: 2, 3: 3, 4: 5}, cut=[2])
    yield grid
    grid.give_up.set()


def test_all_replies_are_returned_and_asked_for_together() -> None:
    grid = HandingOut({1: 1, 2: 3, 3: 2})
    assert exchange(grid, [1, 2, 3], 10.0) == [1, 2, 3]
    assert grid.looks == [3, 2, 1]


def test_a_reply_that_does_not_come_costs_no_other() -> None:
    assert exchange(HandingOut({1: 1, 3: 4}), [1, 2, 3], 0.3) == [1, 3]


def test_nobody_is_asked() -> None:
    grid = HandingOut({})
    assert exchange(grid, [], 10.0) == []
    assert grid.looks == []


def test_a_reply_that_is_half_there_costs_those_handed_out_with_it_only(
    held_up: HandingOut,
) -> None:
    assert exchange(held_up, [1, 2, 3, 4], 1.0) == [3, 4]


def test_what_was_held_up_is_used_if_it_comes_in_time(held_up: HandingOut) -> None:
    timer = threading.Timer(0.3, held_up.give_up.set)
    timer.start()
    assert exchange(held_up, [1, 2, 3, 4], 2.0) == [1, 3, 4]
    timer.join()


@pytest.mark.parametrize("reply_is_first", [True, False])
def test_a_message_has_one_reply_though_flower_answers_in_its_place(reply_is_first: bool) -> None:
    class AnswersTwice(HandingOut):
        def pull_messages(self, names: Iterable[str]) -> list[Any]:
            both = [make_reply(2), make_reply(2, is_error=True)]
            return [make_reply(1), *(both if reply_is_first else both[::-1])]

    messages = {node: cast(Message, SimpleNamespace(node=node)) for node in (1, 2)}
    pairs = send_and_receive(cast(Grid, AnswersTwice({})), messages, 10.0)
    assert [(node, reply.has_error()) for node, reply in pairs] == [(1, False), (2, False)]


def test_an_error_of_the_grid_is_raised() -> None:
    class Broken(HandingOut):
        def pull_messages(self, names: Iterable[str]) -> list[Any]:
            raise ConnectionError("no route to the SuperLink")

    with pytest.raises(ConnectionError, match="no route"):
        exchange(Broken({}), [1], 10.0)
