"""Tasks in processes of their own."""

from __future__ import annotations

import time

import pytest
from process_tasks import Count, Fail, Sleep

from udjfl.engine import can_fork
from udjfl.simulation.process_pool import _hide_lost_connections, run_in_processes

STARTS = [False, pytest.param(True, marks=pytest.mark.skipif(not can_fork(), reason="no fork"))]


@pytest.mark.parametrize("fork", STARTS)
def test_every_message_arrives_before_the_results(
    fork: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """However quickly they are sent; and warnings are logged in this process, once each."""
    messages: list[int] = []
    assert run_in_processes([Count(500), Count(300)], 2, messages.append, fork=fork) == [500, 300]
    assert sorted(messages) == sorted([*range(500), *range(300)])
    logged = [record.getMessage() for record in caplog.records]
    assert sorted(logged) == ["counted to 300", "counted to 500"]


def test_results_come_in_the_order_of_the_tasks_and_messages_are_delivered() -> None:
    messages: list[str] = []
    assert run_in_processes([Sleep(0.2), Sleep(0.1)], 2, messages.append) == [0.2, 0.1]
    assert messages == ["asleep"] * 2


def test_a_task_that_fails_stops_the_others() -> None:
    started = time.monotonic()
    with pytest.raises(ValueError, match="on purpose"):
        run_in_processes([Fail(), *[Sleep(120)] * 3], 2, lambda message: None)
    assert time.monotonic() - started < 60


def test_an_interrupt_stops_the_tasks() -> None:
    """Ctrl-C raises KeyboardInterrupt in the process that waits."""

    def interrupt(message: str) -> None:
        raise KeyboardInterrupt

    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run_in_processes([Sleep(120)] * 3, 2, interrupt)
    assert time.monotonic() - started < 60


def test_a_worker_is_quiet_when_its_parent_no_longer_reads(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The parent shows why; other errors of a worker's threads are shown."""
    for error in (ConnectionResetError("by peer"), BrokenPipeError("gone"), EOFError()):
        _hide_lost_connections(type(error), error, None)
    assert capsys.readouterr().err == ""
    _hide_lost_connections(ValueError, ValueError("of another cause"), None)
    assert capsys.readouterr().err == "ValueError: of another cause\n"
