"""Pauses that grow, as a SuperNode asks for them: 3 s for a message, 0.5 s for the reply to it."""

from __future__ import annotations

import pytest

pytest.importorskip("flwr")

from udjfl.deployment.pauses import GrowingPause, Growth


def pauses_for(*asked: float) -> list[float]:
    """Return how long each sleep takes that is asked for."""
    slept: list[float] = []
    clock = GrowingPause({3: Growth(0.1, 1.5), 0.5: Growth(0.05, 1.5)}, slept.append)
    for seconds in asked:
        clock.sleep(seconds)
    return slept


def test_pauses_grow_up_to_those_of_flower() -> None:
    pauses = pauses_for(*[3] * 12)
    assert pauses[:3] == pytest.approx([0.1, 0.15, 0.225])
    assert pauses[-2:] == [3, 3]
    assert pauses == sorted(pauses)


def test_a_message_starts_a_short_wait_for_the_next() -> None:
    """Waiting for a message, for the reply to it, and for the next message."""
    pauses = pauses_for(*[3] * 12, *[0.5] * 8, *[3] * 2)
    assert pauses[12:14] == pytest.approx([0.05, 0.075])
    assert pauses[19] == 0.5
    assert pauses[20:] == pytest.approx([0.1, 0.15])


def test_at_most_a_third_of_a_wait_is_lost_and_a_wait_costs_few_requests() -> None:
    pauses = pauses_for(*[3] * 12)
    for number, pause in enumerate(pauses):
        assert pause <= (sum(pauses[: number + 1])) / 3 + 0.1
    assert sum(pause < 3 for pause in pauses) == 9


def test_other_waits_are_as_asked_for() -> None:
    assert pauses_for(7, 7, 0.2) == [7, 7, 0.2]


def test_a_restart_begins_with_a_short_pause() -> None:
    slept: list[float] = []
    clock = GrowingPause({1.0: Growth(0.05, 1.1)}, slept.append)
    for _ in range(3):
        clock.sleep(1.0)
    clock.restart()
    clock.sleep(1.0)
    assert slept == pytest.approx([0.05, 0.055, 0.0605, 0.05])
